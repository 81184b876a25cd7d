import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from making import episode, tiny
from measuring import CPU, NAMES, SMALL, Album, album, dataset, measure, noise, oracle
from reading import Reader

import cyctr
from cyctr.errors import CheckpointError, ConfigError, DataError, WeightsError
from cyctr.evaluation.answering import open_method
from cyctr.evaluation.preview import episode_contact_sheet
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, RunKey, merge
from cyctr.evaluation.run import draw_pictures, environment, prepare
from cyctr.methods.cyctr.config import RELEASED, Config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small network of the released code's settings, which hold ranges."""
    small = tiny().config
    network = tiny(replace(RELEASED.model, dim=32, encoder=small.encoder))
    path = tmp_path_factory.mktemp("run") / "best.safetensors"
    cyctr.save_checkpoint(path, network, Config(model=network.config))
    return path


def job(**options):
    return prepare(dataset(), SMALL, **{"shots": (1, 2), "episodes": 7, **options})


def opened(method="background", weights="tiny", device="cpu", precision="auto", **options):
    made = job(**options)
    return made, *made.open(method, weights, device, precision)


def test_a_job_is_every_fold_and_seed_for_each_number_of_shots():
    made = prepare(dataset(), replace(SMALL, seeds=(3, 5)), shots=(1, 2))
    assert sorted(made.run_keys) == [RunKey(f, k, s) for f in (0, 1) for k in (1, 2) for s in (3, 5)]
    assert made.episodes == SMALL.episodes
    assert prepare(dataset(), SMALL, folds=[1], episodes=9).run_keys == [RunKey(1, 1, 0)]
    assert prepare(dataset(), SMALL, episodes=9).episodes == 9


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"folds": [0, 2]}, DataError, "fold is 2; album has folds 0 to 1"),
        ({"split": "tset"}, ConfigError, "split is 'tset'; expected test, validation or train"),
        ({"split": "validation"}, DataError, "no validation classes"),
        ({"shots": (1, 3)}, DataError, "class 'ant' has 3 images .* a 3-shot episode needs 4"),
    ],
)
def test_a_job_that_cannot_be_done_is_refused_before_it_begins(options, kind, words):
    with pytest.raises(kind, match=words):
        job(**options)


def test_a_job_measures_what_its_parts_measure_together():
    whole, method, results = opened("prototype")
    whole.run(method, results, batch=3, workers=2)
    assert all(run.finished for run in results.runs.values())
    assert len({row.counts for run in results.runs.values() for row in run.rows.values()}) > 10
    parts = []
    for place in (1, 0):
        one, method, empty = opened("prototype", part=(place, 2))
        one.run(method, empty, batch=5, workers=1)
        parts.append(empty)
    assert merge(parts).runs == results.runs
    assert merge(parts).summary() == results.summary()


def test_a_job_knows_how_much_is_done():
    made, method, results = opened()
    assert made.counts(results) == (28, 0)
    made.run(method, results, 4, 1)
    assert made.counts(results) == (28, 28)
    assert job(episodes=10).counts(results) == (40, 28)
    assert job(episodes=10, part=(1, 3)).counts(results) == (12, 8)
    assert job(episodes=3).counts(results) == (28, 28)  # those that were asked for before still are


def test_results_go_on_with_the_same_settings_whatever_the_number_of_episodes(tmp_path, checkpoint):
    """Also those of a checkpoint, whose settings hold tuples: a file gives lists back."""
    for method in ("prototype", str(checkpoint)):
        made, _, results = opened(method)
        results.save(tmp_path / "results.json")
        found = Results.load(tmp_path / "results.json")
        assert made.resumed(found, opened(method, episodes=3, folds=[1])[2]) is found


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"method": "foreground"}, 'method.name "background" / "foreground"'),
        ({"precision": "bfloat16"}, 'method.precision "float32" / "bfloat16"'),
        ({"split": "train"}, 'split "test" / "train"'),
    ],
)
def test_results_of_other_settings_do_not_go_on_and_the_field_is_named(other, field):
    made, _, results = opened()
    with pytest.raises(ConfigError, match="other settings") as refusal:
        made.resumed(results, opened(**other)[2])
    assert field in str(refusal.value)
    others = str(refusal.value).count(" / ") - 2  # there / here, and that field
    assert others == ("split" in other)  # another split has other classes, too


def test_what_decides_the_answers_of_a_method_is_among_the_settings(checkpoint):
    def about(method, weights="tiny"):
        return open_method(method, weights, CPU)[1]

    assert about("prior:0.6") == {**about("prior:0.7"), "name": "prior:0.6", "threshold": 0.6}
    assert about("prototype:mid")["level"] == "mid"
    assert about("prior")["backbone"]["name"] == "tiny"
    assert "backbone" not in about("foreground", "resnet50-keras")
    assert about(str(checkpoint))["name"] == "best"
    assert re.fullmatch("[0-9a-f]{64}", about(str(checkpoint))["checkpoint"]["sha256"])
    assert about(str(checkpoint))["checkpoint"]["model"]["dim"] == 32


def test_another_training_of_the_same_network_is_another_method(checkpoint, tmp_path):
    network, config = cyctr.load_checkpoint(checkpoint)
    with torch.no_grad():
        next(p for p in network.parameters() if p.requires_grad).add_(1)
    cyctr.save_checkpoint(tmp_path / "best.safetensors", network, config)
    one, other = (open_method(str(path), "tiny", CPU)[1] for path in (checkpoint, tmp_path / "best.safetensors"))
    assert one["checkpoint"].pop("sha256") != other["checkpoint"].pop("sha256")
    assert one == other


def test_a_checkpoint_answers_as_its_network_does(checkpoint):
    given = episode(shots=2)
    method, _ = open_method(str(checkpoint), "tiny", CPU)
    network, _ = cyctr.load_checkpoint(checkpoint)
    with torch.no_grad():
        torch.testing.assert_close(method(given).logits, network(given).logits, atol=1e-3, rtol=1e-3)
        assert torch.equal(method(given).logits, method(given).logits)  # nothing is dropped at random


def test_precision_is_float32_on_a_cpu_unless_asked_for():
    given = episode()
    answers = {}
    for precision in ("auto", "float32", "bfloat16"):
        method, about = open_method("prototype", "tiny", CPU, precision)
        answers[precision] = method(given).logits
        assert about["precision"] == ("bfloat16" if precision == "bfloat16" else "float32")
    assert torch.equal(answers["auto"], answers["float32"])
    assert not torch.equal(answers["bfloat16"], answers["float32"])
    torch.testing.assert_close(answers["bfloat16"], answers["float32"], atol=0.05, rtol=0.05)


def test_bfloat16_answers_are_scored_like_any_other():
    made, method, results = opened("prior", precision="bfloat16")
    made.run(method, results, 4, 1)
    assert all(run.finished and 0 < run.result().fb_iou < 1 for run in results.runs.values())


@pytest.mark.parametrize(
    ("method", "options", "kind", "words"),
    [
        (
            "priro",
            {},
            ConfigError,
            "'priro'; expected prior, prototype, background, foreground, lite0, resnet50, or the path",
        ),
        ("prior:2", {}, ConfigError, "threshold from 0 to 1"),
        ("nowhere/best.safetensors", {}, ConfigError, "method is 'nowhere/best.safetensors'; expected prior"),
        ("prior", {"weights": "resnet51"}, ConfigError, "weights is 'resnet51'; expected a name of `cyctr weights list`"),
        ("prior", {"precision": "half"}, ConfigError, "precision is 'half'; expected auto, float32 or bfloat16"),
        ("prior", {"device": "tpu"}, ConfigError, "device is 'tpu'; expected auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_method_that_cannot_be_opened_is_one_line(method, options, kind, words):
    with pytest.raises(kind) as refusal:
        opened(method, **options)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path):
    for path, content in ((tmp_path / "notes.txt", b"hello"), (tmp_path / "a.safetensors", b"")):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{path}: not a whole safetensors file"):
            open_method(str(path), "tiny", CPU)
    with pytest.raises(CheckpointError, match=f"'{tmp_path}'; expected lite0 or resnet50, or the path of a checkpoint"):
        open_method(str(tmp_path), "tiny", CPU)


def test_the_notes_say_versions_and_machine():
    notes = environment(CPU)
    assert notes["cyctr"] == cyctr.__version__
    assert notes["torch"] == torch.__version__
    assert notes["device"].startswith("cpu (")
    assert opened()[2].sessions == [notes]


def drawn(tmp_path, count, method=noise, **options):
    """A page of pictures, and what was measured."""
    made = job(**options)
    results = measure(method, made.evaluation, made.run_keys, made.episodes)
    path = tmp_path / "index.html"
    draw_pictures(made, method, results, path, count)
    return Reader(path.read_text()), results


def captions(read, results, shots):
    """The (IoU, fold, episode) shown as best, as median and as worst, of one number of shots."""
    found = [
        (float(iou), int(fold), int(number))
        for text in read.texts["figcaption"]
        for iou, fold, number in re.findall(r"IoU ([\d.]+) \(fold (\d+), episode (\d+)\)", text)
    ]
    each = len(found) // 6
    start = 0 if shots == 1 else 3 * each
    return [found[start + place * each : start + (place + 1) * each] for place in range(3)]


def test_the_page_shows_the_best_the_median_and_the_worst_episodes(tmp_path):
    read, results = drawn(tmp_path, 2, episodes=20)
    assert read.texts["h2"] == [
        f"{name} of 40 episodes, {shots}-shot" for shots in (1, 2) for name in ("Best", "Median", "Worst")
    ]
    for shots in (1, 2):
        rows = {
            (setting.fold, number): row
            for setting, run in results.runs.items()
            if setting.shots == shots
            for number, row in run.rows.items()
        }
        ious = sorted((row.counts.iou for row in rows.values()), reverse=True)
        best, median, worst = captions(read, results, shots)
        assert best[0][0] == round(ious[0], 2)
        assert worst[-1][0] == round(ious[-1], 2)
        assert median[0][0] >= round(ious[19], 2) >= median[-1][0]
        for shown in (best, median, worst):
            assert [iou for iou, *_ in shown] == sorted((iou for iou, *_ in shown), reverse=True)
            assert all(round(rows[fold, number].counts.iou, 2) == iou for iou, fold, number in shown)
            assert len({rows[fold, number].query for _, fold, number in shown}) == 2  # each query once


def test_a_figure_shows_supports_query_and_answer_and_names_the_class(tmp_path):
    read, results = drawn(tmp_path, 1)
    assert read.tags.count("figure") == 6
    assert len(read.pictures()) == 3 * 3 + 3 * 4  # one support, then two; query and answer
    for text in read.texts["figcaption"]:
        name, key, fold, number = re.fullmatch(r"(\w+), (\S+), IoU .* \(fold (\d), episode (\d+)\)", text).groups()
        row = next(run.rows[int(number)] for setting, run in results.runs.items() if setting.fold == int(fold))
        assert (name, key) == (NAMES[row.category], row.query)


def test_the_answer_is_drawn_on_the_image_wherever_it_was_scored(tmp_path):
    """The truth as answer looks like the truth, also where pixels were compared on the padded input."""
    left_half = [np.pad(np.full((20, 40), 1 + i % 4, np.uint8), ((0, 0), (0, 40))) for i in range(8)]
    made = prepare(dataset(Album(left_half)), replace(SMALL, score="input"), folds=[0], episodes=2)
    results = measure(oracle, made.evaluation, made.run_keys, 2)
    draw_pictures(made, oracle, results, tmp_path / "index.html", 1)
    pictures = Reader((tmp_path / "index.html").read_text()).pictures()[:3]
    _, truth, answer = (np.asarray(each.convert("RGB")).astype(int) for each in pictures)
    centre = truth.shape[0] // 2
    band = slice(centre - 20, centre + 20)  # the image is four times as wide as high
    for columns in (slice(20, centre - 20), slice(centre + 20, -20)):  # the object, and the rest
        assert np.abs(truth - answer)[band, columns].mean() < 3
    assert np.abs(truth[band, 20 : centre - 20] - truth[band, centre + 20 : -20]).mean() > 30


def test_more_pictures_than_episodes_are_as_many_as_there_are_queries(tmp_path):
    read, results = drawn(tmp_path, 50, shots=(1,), folds=[0], episodes=4)
    queries = {row.query for row in results.runs[RunKey(0, 1, 0)].rows.values()}
    assert read.tags.count("figure") == 3 * len(queries)


def test_the_page_holds_the_tables_and_says_how_it_was_measured(tmp_path):
    read, _ = drawn(tmp_path, 1)
    assert "mean mIoU" in read.texts["th"]
    assert set(NAMES) <= set(read.texts["td"])
    assert read.texts["h1"] == ["test on album"]
    assert read.texts["p"][0] == ("test on album, test split: input 33 px, without flip, float32, scored at the original size.")


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "occupied").write_text("mine")
    made, method, results = opened(shots=(1,), folds=[0], episodes=1)
    made.run(method, results, 1, 1)
    with pytest.raises(DataError, match=r"index.html: cannot be written .* choose another place"):
        draw_pictures(made, method, results, tmp_path / "occupied" / "index.html", 1)


def sheet(numbers=range(3), augment=False, shots=1, seed=0, pool=None):
    evaluation = Evaluation(dataset(pool or album()), SMALL)
    return episode_contact_sheet(evaluation, RunKey(0, shots, seed), numbers, augment)


def test_a_contact_sheet_has_room_for_every_episode_and_shot():
    few, many, wide = sheet(range(3)), sheet(range(4)), sheet(range(3), shots=2)
    assert many.height > few.height + 200
    assert wide.width > 2 * 3 * 200
    assert few.width > 3 * 2 * 200


def test_a_contact_sheet_shows_the_episodes_of_its_numbers():
    def below_the_title(**options):
        return np.asarray(sheet(**options))[60:]

    assert np.array_equal(below_the_title(), below_the_title())
    assert not np.array_equal(below_the_title(), below_the_title(numbers=range(3, 6)))
    assert not np.array_equal(below_the_title(), below_the_title(seed=1))


def test_an_augmented_sheet_shows_other_pixels_and_the_same_ones_every_time():
    assert sheet(augment=True).size == sheet().size
    assert not np.array_equal(sheet(augment=True), sheet())
    assert np.array_equal(sheet(augment=True), sheet(augment=True))


def test_weights_that_are_not_here_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="cyctr weights get mobilenetv2"):
        open_method("prior", "mobilenetv2", CPU)
