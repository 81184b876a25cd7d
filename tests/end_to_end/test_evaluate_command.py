import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from making import assert_one_line, tiny
from miniature import class_mask_folder, labelled_folder, picture, state, truncate
from PIL import Image
from reading import Reader

import cyctr
from cyctr.config import AugmentationConfig, TrainingConfig
from cyctr.datasets.opening import open_dataset
from cyctr.episodes.sampler import Sampler
from cyctr.evaluation import protocol
from cyctr.evaluation.results import Results, RunKey
from cyctr.evaluation.tables import fold_table
from cyctr.methods.cyctr.config import Config
from cyctr.storage import locked


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of four images with cats and dogs."""
    return labelled_folder(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def evaluate(run, photos, tmp_path):
    """Runs `cyctr evaluate` on the photos, without pictures."""

    def main(*options, output="out", method="foreground", episodes=6):
        usual = ("--data", photos, "--method", method, "--weights", "tiny", "--episodes", episodes, "--pictures", 0)
        return run("evaluate", *usual, "--class-folds", 2, "--output", tmp_path / output, *options)

    return main


def assert_well(result):
    assert (result[0], result[2]) == (0, ""), result
    return result[1]


def measured(folder):
    """What decides whether two runs are equal: everything but notes of time and machine."""
    content = json.loads((folder / "results.json").read_text())
    return {name: content[name] for name in ("settings", "summary", "runs")}


@pytest.mark.usefixtures("few_textures")
def test_an_evaluation_writes_numbers_tables_and_pictures(run, tmp_path):
    out = tmp_path / "deep" / "out"
    output = assert_well(
        run(
            *("evaluate", "--data", "synthetic", "--method", "foreground", "--folds", "0,2", "--shots", "1,2"),
            *("--episodes", 3, "--order", "classes", "--pictures", 1, "--output", out),
        )
    )
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "results.json", "results.md"]
    assert all(str(out / name) in output for name in ("index.html", "results.json", "results.md"))

    results = Results.load(out / "results.json")
    assert sorted(results.runs) == [RunKey(fold, shots, 0) for fold in (0, 2) for shots in (1, 2)]
    assert all(len(found.rows) == 3 and 0 < found.result().miou < 1 for found in results.runs.values())
    assert results.conditions["method"] == {"name": "foreground", "precision": "float32"}
    assert results.sessions[0]["cyctr"] == cyctr.__version__
    assert results.sessions[0]["seconds"] > 0

    table = fold_table(results)
    said, _, *written = (out / "results.md").read_text().splitlines()
    assert said == "foreground on synthetic, test split: input 473 px, without flip, float32, scored at the original size."
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in (written[0], *written[2:4])] == table
    assert all(cell in output for line in table for cell in line)

    read = Reader((out / "index.html").read_text())
    assert read.texts["h1"] == ["foreground on synthetic"]
    assert read.texts["p"][0] == said
    assert len(read.pictures()) == 3 * 3 + 3 * 4
    assert set(table[1]) <= set(read.texts["td"])


def test_references_and_checkpoints_answer_through_the_command(evaluate, tmp_path):
    network = tiny()
    cyctr.save_checkpoint(tmp_path / "mine.safetensors", network, Config(model=network.config))
    for place, method in enumerate(("prior:0.6", "prototype", tmp_path / "mine.safetensors")):
        assert_well(evaluate("--folds", 0, method=method, episodes=2, output=f"out{place}"))
        results = Results.load(tmp_path / f"out{place}" / "results.json")
        assert len(results.runs[RunKey(0, 1, 0)].rows) == 2
    assert results.conditions["method"]["name"] == "mine"
    assert_well(evaluate("--folds", 0, "--resume", method=tmp_path / "mine.safetensors", episodes=3, output="out2"))
    assert len(Results.load(tmp_path / "out2" / "results.json").runs[RunKey(0, 1, 0)].rows) == 3


@pytest.fixture
def trained(tmp_path):
    """A checkpoint of a network that learned from cats at 65 pixels."""
    network, augmentation = tiny(), AugmentationConfig(size=65)
    config = Config(model=network.config, training=TrainingConfig(augmentation=augmentation))
    data = {"name": "folder", "train": ["cat", "cow"], "validation": [], "test": ["dog"]}
    cyctr.save_checkpoint(tmp_path / "last.safetensors", network, config, data=data)
    return tmp_path / "last.safetensors"


@pytest.mark.parametrize(
    ("options", "size"),
    [((), 65), (("--size", 41), 41), (("--protocol", "pfenet"), 65), (("--protocol", "hsnet"), 400)],
    ids=["default", "given", "pfenet", "hsnet, which scores at the size of the input"],
)
def test_a_checkpoint_is_tested_at_the_size_it_learned_from(options, size, evaluate, trained, tmp_path):
    output = assert_well(evaluate("--folds", 0, *options, method=trained, episodes=1))
    assert Results.load(tmp_path / "out" / "results.json").conditions["protocol"]["input"]["size"] == size
    written = (tmp_path / "out" / "results.md").read_text()
    assert written.startswith(f"{trained} (sha256 ") and f"input {size} px, without flip" in written
    assert str(tmp_path / "out" / "results.md") in output


def test_a_reference_is_tested_at_the_size_of_the_protocol_or_the_one_that_is_given(evaluate, tmp_path):
    for options, size in (((), 473), (("--size", 65), 65)):
        assert_well(evaluate("--folds", 0, *options, episodes=1, output=f"{size}"))
        assert Results.load(tmp_path / f"{size}" / "results.json").conditions["protocol"]["input"]["size"] == size


def test_scores_on_classes_that_were_learned_from_come_with_a_note(evaluate, trained):
    note = "note: the network was trained on 1 of the scored classes (cat); scores on classes it has learned from say little"
    outputs = [assert_well(evaluate("--folds", fold, method=trained, episodes=2, output=f"{fold}")) for fold in (0, 1)]
    assert sorted(output.count(note) for output in outputs) == [0, 1]
    assert "learned from" not in assert_well(evaluate(episodes=2))


@pytest.mark.parametrize("name", ["cyctr", "pfenet", "hsnet"])
def test_a_full_answer_is_scored_with_the_objects_share_under_every_protocol(name, evaluate, tmp_path):
    assert_well(evaluate("--protocol", name, "--order", "pairs"))
    results = Results.load(tmp_path / "out" / "results.json")
    shares = {"cat": (4 * 5 + 3 * 3 + 3 * 14) / 3, "dog": (8 * 12 + 1) / 2}  # pixels of 12 x 16, each image equally often
    (summary,) = results.summary()
    for kind, pixels in shares.items():  # at the size of the input only nearly
        assert summary["classes"][kind] == pytest.approx(100 * pixels / (12 * 16), abs=1.0 if name == "hsnet" else 1e-3)


def test_the_method_is_given_as_many_episodes_at_a_time_as_asked_for(evaluate, monkeypatch):
    sizes, score = [], protocol.score
    monkeypatch.setattr(
        protocol, "score", lambda method, batch, *rest: sizes.append(len(batch.draws)) or score(method, batch, *rest)
    )
    assert_well(evaluate("--batch", 4, "--folds", 0))
    assert sizes == [4, 2]


def test_training_lists_can_leave_out_images_of_test_classes(evaluate, run, photos, tmp_path):
    """Image b shows a cat, to learn from, and a dog, which fold 0 tests."""
    data, train = ("--data", photos, "--class-folds", 2), ("--split", "train")
    for options, queries in (((), ["a", "b", "d"]), (("--drop-novel",), ["a", "d"])):
        listing = assert_well(run("episodes", *data, *train, *options, "--count", len(queries)))
        assert [line[2] for line in listed(listing)] == queries
        assert_well(evaluate("--folds", 0, *train, *options, output=f"out{len(queries)}"))
        rows = Results.load(tmp_path / f"out{len(queries)}" / "results.json").runs[RunKey(0, 1, 0)].rows
        assert {row.query for row in rows.values()} == set(queries)
        sizes = [line.split() for line in assert_well(run("data", "info", *data[1:], *options)).splitlines()]
        assert ["0", "train", "1", *[str(len(queries))] * 3, "(cat)"] in sizes


def test_results_that_are_there_are_not_written_over_unasked(evaluate, tmp_path):
    assert_well(evaluate())
    before = state(tmp_path / "out")
    assert_one_line(evaluate(method="background"), "results.json: is there already", "--resume", "--force", "--output")
    assert state(tmp_path / "out") == before
    assert_well(evaluate("--force", method="background"))
    assert Results.load(tmp_path / "out" / "results.json").conditions["method"]["name"] == "background"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "background"), 'method.name "foreground" / "background"'),
        (("--order", "pairs"), 'protocol.order "images" / "pairs"'),
        (("--split", "train"), 'split "test" / "train"'),
        (("--protocol", "hsnet"), "protocol.input.size 473 / 400"),
        (("--split-seed", "3"), "dataset.folds [[1], [0]] / [[0], [1]]"),
    ],
)
def test_results_of_other_settings_are_not_resumed(options, words, evaluate, tmp_path):
    assert_well(evaluate())
    before = state(tmp_path / "out")
    assert_one_line(evaluate("--resume", *options), "other settings", words)
    assert state(tmp_path / "out") == before


def test_a_resume_adds_what_is_missing_and_equals_a_run_in_one_go(evaluate, tmp_path):
    assert_well(evaluate("--folds", 0, episodes=3))
    assert_well(evaluate("--resume", "--batch", 4, episodes=7))
    assert_well(evaluate(output="whole", episodes=7))
    assert measured(tmp_path / "out") == measured(tmp_path / "whole")
    before = measured(tmp_path / "out")
    assert_well(evaluate("--resume", episodes=7))
    assert measured(tmp_path / "out") == before


def test_a_resume_of_nothing_begins(evaluate, tmp_path):
    assert_well(evaluate("--resume"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.json", "results.md"]  # no pictures asked for
    assert all(found.finished for found in Results.load(tmp_path / "out" / "results.json").runs.values())


def test_a_damaged_file_is_not_resumed_and_stays(evaluate, tmp_path):
    assert_well(evaluate())
    truncate(tmp_path / "out" / "results.json")
    before = state(tmp_path / "out")
    assert_one_line(evaluate("--resume"), "results.json: cannot be read (not JSON)")
    assert state(tmp_path / "out") == before


CTRL_C = """
import os, signal
from cyctr import cli
from cyctr.evaluation import protocol

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
score, scored = protocol.score, []

def scored_until_ctrl_c(*given):
    scored.append(given)
    if len(scored) == 9:
        os.kill(os.getpid(), signal.SIGINT)
    return score(*given)

protocol.score = scored_until_ctrl_c
cli.main()
"""


def test_ctrl_c_keeps_what_was_measured_and_a_resume_finishes_it(evaluate, photos, tmp_path):
    """The signal comes in the second of two folds."""
    options = ("--data", photos, "--class-folds", 2, "--method", "foreground", "--weights", "tiny", "--episodes", 6)
    command = [sys.executable, "-c", CTRL_C, "evaluate", *options, "--output", tmp_path / "out"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ.copy(), check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert "go on with --resume" in done.stdout
    assert "(unfinished)" in done.stdout
    found = Results.load(tmp_path / "out" / "results.json")
    kept = sum(len(each.rows) for each in found.runs.values())
    assert 6 <= kept <= 8
    assert f"stopped after {kept} episodes" in done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]  # and no draft of it

    assert_well(evaluate("--resume"))
    assert_well(evaluate(output="whole"))
    assert measured(tmp_path / "out") == measured(tmp_path / "whole")


def test_merged_parts_equal_one_process(evaluate, run, tmp_path):
    assert_well(evaluate(output="whole", episodes=7))
    for part in (1, 2, 3):
        assert_well(evaluate("--part", f"{part}/3", output=f"part{part}", episodes=7))
    folders = [tmp_path / "part3", tmp_path / "part1" / "results-1of3.json", tmp_path / "part2"]
    output = assert_well(run("merge", *folders, "--output", tmp_path / "merged"))
    assert measured(tmp_path / "merged") == measured(tmp_path / "whole")
    assert (tmp_path / "merged" / "results.md").read_text() == (tmp_path / "whole" / "results.md").read_text()
    assert "missing" not in output

    assert_one_line(run("merge", *folders, "--output", tmp_path / "merged"), "is there already", "--force")
    output = assert_well(run("merge", *folders[:2], "--output", tmp_path / "merged", "--force"))
    assert "missing: 4 episodes; is a part not there?" in output
    assert "(unfinished)" in output


def test_what_cannot_be_merged_is_one_line(evaluate, run, tmp_path):
    assert_well(evaluate("--folds", 0, output="one"))
    assert_well(evaluate("--folds", 0, output="other", method="background"))
    out = tmp_path / "merged"
    assert_one_line(run("merge", tmp_path / "one", tmp_path / "other", "--output", out), "method.name", '"background"')
    assert_one_line(run("merge", tmp_path / "one", tmp_path / "nowhere", "--output", out), "nowhere", "No such file")
    assert_one_line(run("merge", tmp_path, "--output", out), str(tmp_path / "results.json"), "No such file")
    text = (tmp_path / "one" / "results.json").read_text()
    assert "[0, " in text
    changed = re.sub(r"\[0, (\d), (.*), (\d+)\]", r"[0, \1, \2, 1\3]", text, count=1)
    (tmp_path / "changed.json").write_text(changed)
    assert_one_line(run("merge", tmp_path / "one", tmp_path / "changed.json", "--output", out), "episode 0", "fold=0")
    assert not out.exists()


BAD = [
    (("--folds", "x"), ("--folds is 'x'", "0-3")),
    (("--folds", "2"), ("fold is 2", "folds 0 to 1")),
    (("--folds", "1-0"), ("--folds is '1-0'",)),
    (("--folds", "²"), ("--folds is '²'",)),
    (("--folds", ""), ("--folds is ''",)),
    (("--folds", "0,0"), ("--folds is '0,0'", "different numbers")),
    (("--shots", "0"), ("--shots is '0'", "from 1 on")),
    (("--shots", "one"), ("--shots is 'one'",)),
    (("--shots", "4"), ("a 4-shot episode needs 5",)),
    (("--seeds", "-1"), ("--seeds is '-1'",)),
    (("--part", "3/2"), ("--part is '3/2'", "1/4")),
    (("--part", "0/2"), ("--part is '0/2'",)),
    (("--part", "2"), ("--part is '2'",)),
    (("--part", "²/3"), ("--part is '²/3'",)),
    (("--part", 5000 * "9" + "/" + 5000 * "9"), ("--part is '9999",)),
    (("--protocol", "hsnt"), ("protocol is 'hsnt'", "cyctr, released, pfenet, hsnet")),
    (("--split", "tset"), ("split is 'tset'", "test, validation or train")),
    (("--split", "validation"), ("no validation classes",)),
    (("--order", "random"), ("order is 'random'", "'pairs'")),
    (("--data", "nowhere"), ("nowhere: no such folder",)),
    (("--kind", "cocoa"), ("kind is 'cocoa'",)),
    (("--kind", "pascal"), ("",)),
    (("--class-folds", "7"), ("folds is 7 for 2 classes",)),
    (("--smallest", "999"), ("at least 999 pixels",)),
    (("--method", "priro"), ("method is 'priro'", "prototype")),
    (("--method", "nowhere.safetensors"), ("method is 'nowhere.safetensors'", "path of a checkpoint")),
    (("--weights", "resnet51"), ("weights is 'resnet51'",)),
    (("--device", "tpu"), ("device is 'tpu'",)),
    (("--precision", "half"), ("precision is 'half'",)),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_a_wrong_value_is_one_line_and_nothing_is_written(options, words, evaluate, tmp_path):
    assert_one_line(evaluate(*options), *words)
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_there_is_one_line(evaluate, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_one_line(evaluate("--device", "cuda"), "torch sees no CUDA here; use 'cpu'", "(--device)")


def test_an_output_that_cannot_be_written_is_one_line(evaluate, run, tmp_path):
    (tmp_path / "occupied").write_text("mine")
    assert_one_line(evaluate(output="occupied"), "occupied/results.json: cannot be written", "(--output)")
    assert (tmp_path / "occupied").read_text() == "mine"
    (tmp_path / "out" / "results.md").mkdir(parents=True)
    assert_one_line(evaluate(), "results.md: is there already")
    assert_one_line(evaluate("--force"), "results.md: cannot be written")
    assert Results.load(tmp_path / "out" / "results.json").summary()[0]["finished"]  # the numbers are safe
    again = run("merge", tmp_path / "out", "--output", tmp_path / "occupied")
    assert_one_line(again, "occupied/results.json: cannot be written")


def test_tables_are_whole_on_a_narrow_screen(evaluate, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "30")
    output = assert_well(evaluate("--seeds", "0-2"))
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    assert all(line in lines for line in fold_table(Results.load(tmp_path / "out" / "results.json")))


def test_names_of_classes_are_shown_as_they_are(run, tmp_path):
    names = ["[bold]cup", "[/cup] :cat: | x"]
    labelled_folder(tmp_path / "photos")
    (tmp_path / "photos" / "classes.txt").write_text("\n".join(names))
    options = ("--method", "foreground", "--weights", "tiny", "--episodes", 6, "--pictures", 1)
    output = assert_well(run("evaluate", "--data", tmp_path / "photos", *options, "--output", tmp_path / "out"))
    assert all(name in output for name in names)
    assert r"| [/cup] :cat: \| x |" in (tmp_path / "out" / "results.md").read_text()
    assert set(names) <= set(Reader((tmp_path / "out" / "index.html").read_text()).texts["td"])
    assert all(name in assert_well(run("episodes", "--data", tmp_path / "photos")) for name in names)
    output = assert_well(run("data", "info", tmp_path / "photos", "--class-folds", 2))
    assert all(f"({name})" in output for name in names)


def listed(output):
    return [line.split("\t") for line in output.splitlines() if "\t" in line]


def test_episodes_are_listed_a_line_each(run, photos):
    output = assert_well(run("episodes", "--data", photos, "--first", 3, "--count", 5, "--seed", 2))
    dataset = open_dataset(photos)
    pool = dataset.pool("test")
    sampler = Sampler(dataset, pool.index(), seed=2)
    expected = []
    for number in range(3, 8):
        draw = sampler(number)
        supports = " ".join(pool.keys[i] for i in draw.supports)
        expected.append([str(number), dataset.classes[draw.category], pool.keys[draw.query], supports])
    assert listed(output) == expected
    assert output.count("\n") == 5


def test_the_listed_episodes_are_those_that_are_measured(run, evaluate, photos, tmp_path):
    assert_well(evaluate("--folds", 1))
    rows = Results.load(tmp_path / "out" / "results.json").runs[RunKey(1, 1, 0)].rows
    output = assert_well(run("episodes", "--data", photos, "--class-folds", 2, "--fold", 1, "--count", 6))
    assert [(line[2], line[3]) for line in listed(output)] == [(row.query, *row.supports) for _, row in sorted(rows.items())]


def test_a_contact_sheet_of_episodes_is_a_picture_and_is_not_written_over_unasked(run, photos, tmp_path):
    sheet = tmp_path / "deep" / "sheet.png"
    arguments = ("episodes", "--data", photos, "--count", 3, "--sheet", sheet)
    assert str(sheet) in assert_well(run(*arguments))
    with Image.open(sheet) as image:
        assert image.format == "PNG"
        before = np.asarray(image)
    assert before.shape[1] > 3 * 2 * 200
    assert len(np.unique(before.reshape(-1, 3), axis=0)) > 100

    known = state(tmp_path / "deep")
    assert_one_line(run(*arguments), "sheet.png: is there already", "--force")
    assert state(tmp_path / "deep") == known
    assert_well(run(*arguments, "--force", "--augment"))
    with Image.open(sheet) as image:
        assert not np.array_equal(np.asarray(image), before)


def test_a_sheet_that_cannot_be_written_is_one_line(run, photos, tmp_path):
    (tmp_path / "occupied").write_text("mine")
    for name in ("occupied/sheet.png", "sheet.xyz", "sheet"):
        result = run("episodes", "--data", photos, "--count", 1, "--sheet", tmp_path / name)
        assert_one_line(result, f"{tmp_path / name}: cannot be written", "choose another --sheet")
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fold", 3), "fold is 3"),
        (("--shots", 9), "a 9-shot episode needs 10"),
        (("--split", "train"), "no train classes"),
        (("--order", "random"), "order is 'random'"),
        (("--protocol", "x"), "protocol is 'x'"),
    ],
)
def test_episodes_that_cannot_be_drawn_are_one_line(options, words, run, photos):
    result = run("episodes", "--data", photos, *options)
    assert_one_line(result, words)
    assert result[1] == ""


def test_a_good_folder_has_no_problems(run, photos):
    output = assert_well(run("data", "check", photos))
    assert "folder: 4 images, 2 classes" in output
    assert output.endswith("no problems\n")


def test_every_problem_of_a_bad_folder_is_listed(run, tmp_path):
    root = class_mask_folder(tmp_path / "photos")
    truncate(root / "images" / "a.png")
    picture(root / "images" / "b.png", (9, 9))
    (root / "masks" / "dog" / "c.png").unlink()
    code, output, error = run("data", "check", root)
    lines = output.splitlines()
    for beginning in (root / "images" / "a.png", root / "masks" / "cat" / "b.png", root / "masks" / "dog" / "b.png"):
        assert any(line.startswith(f"{beginning}: ") for line in lines), beginning
    assert any(line.startswith(f"{root}: class dog has") for line in lines)
    assert "no problems" not in output
    count = int(re.search(r": (\d+) problems, listed above", error)[1])
    assert count >= 4
    assert_one_line((code, output, error), str(root), "mend them")

    code, output, error = run("data", "check", root, "--show", 1)
    assert f"... and {count - 1} more" in output
    assert_one_line((code, output, error), f"{count} problems")


def test_a_folder_that_is_not_there_is_one_problem(run, tmp_path):
    result = run("data", "check", tmp_path / "nowhere")
    assert result[1].startswith(f"{tmp_path / 'nowhere'}: no such folder")
    assert_one_line(result, "1 problem", "mend it")
    assert_one_line(run("data", "check", tmp_path, "--kind", "x"), "kind is 'x'")


def test_info_shows_the_size_of_every_list(run, photos):
    output = assert_well(run("data", "info", photos, "--class-folds", 2))
    rows = [line.split() for line in output.splitlines()]
    dataset = open_dataset(photos, folds=2)
    held = {"cat": 3, "dog": 2}
    for number, fold in enumerate(dataset.folds):
        for side, classes in (("train", fold.train), ("test", fold.test)):
            (name,) = (dataset.classes[c] for c in classes)
            assert [str(number), side, "1", str(held[name]), str(held[name]), str(held[name]), f"({name})"] in rows
    assert "from 1 pixel of it on" in output
    assert_one_line(run("data", "info", photos, "--protocol", "x"), "protocol is 'x'")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_of_ours(run, photos, cache_folder):
    cache_folder.write_text("a file in place of the cache")
    code, output, error = run("episodes", "--data", photos, "--count", 1)
    assert code == 0
    assert listed(output)
    assert error.startswith("cyctr: note: ") and error.count("\n") == 1, error
    assert "the index cannot be kept" in error and "CYCTR_CACHE" in error


def test_the_package_is_a_command_too():
    done = subprocess.run([sys.executable, "-m", "cyctr", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cyctr {cyctr.__version__}\n", "")


def test_files_of_the_user_in_the_output_folder_are_not_replaced(evaluate, tmp_path):
    for name in ("index.html", "results.md"):
        mine = tmp_path / name.partition(".")[0] / name
        mine.parent.mkdir()
        mine.write_text("mine")
        assert_one_line(evaluate(output=mine.parent.name), f"{name}: is there already", "--force")
        assert mine.read_text() == "mine"


def test_an_output_that_another_process_writes_is_refused(evaluate, tmp_path):
    with locked(tmp_path / "out" / ".results.json.lock") as held:
        assert held
        assert_one_line(evaluate(), "another process is writing it", "--part")
    assert_well(evaluate())


def test_names_that_are_too_long_are_one_line(evaluate):
    assert_one_line(evaluate(output="x" * 300), "File name too long")
    assert_one_line(evaluate("--shots", "1-99999999999"), "--shots is '1-99999999999'", "at most 1000")
