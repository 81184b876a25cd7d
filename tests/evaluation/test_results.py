import json
import statistics

import numpy as np
import pytest

from cyctr.errors import DataError
from cyctr.evaluation.metrics import Counts
from cyctr.evaluation.results import Results, Row, Run, RunKey, description, differences, merge
from cyctr.evaluation.tables import class_table, fold_table, learned_classes, markdown, spread_text

NAMES = ["ant", "bee", "cat", "dog"]


def settings(classes=NAMES, **protocol):
    return {
        "method": {"name": "test", "precision": "float32"},
        "dataset": {"name": "album", "classes": list(classes)},
        "split": "test",
        "protocol": {"order": "images", "score": "original", "input": {"size": 473}, **protocol},
    }


def row(percent, category=0, query="query", supports=("support",)):
    """An episode of that IoU, in percent, on 200 pixels."""
    return Row(category, query, supports, Counts(percent, 100 - percent, 0, 100))


def run(*percents, category=0, wanted=None):
    """A run whose episodes have these IoUs."""
    episodes = {number: row(percent, category) for number, percent in enumerate(percents)}
    return Run(len(percents) if wanted is None else wanted, 5, 6, episodes)


def random_run(wanted=9, seed=0):
    random = np.random.default_rng(seed)
    episodes = {
        number: Row(number % 4, f"q{number}", ("s",), Counts(*random.integers(1, 99, 4).tolist())) for number in range(wanted)
    }
    return Run(wanted, 20, 30, episodes)


def some():
    runs = {RunKey(fold, shots, 0): random_run(seed=fold + 7 * shots) for fold in (0, 1) for shots in (1, 5)}
    return Results(settings(), runs, [{"seconds": 1.5}])


def test_more_seeds_on_the_same_images_do_not_narrow_the_interval_of_images():
    """Episodes of other seeds meet the same images under other classes: what the images could have been stays as open."""
    random = np.random.default_rng(0)
    quality = random.integers(20, 90, 60).tolist()

    def seeded(seed):
        classes = np.random.default_rng(seed).integers(0, 2, 60).tolist()
        return Run(60, 60, 120, {i: row(quality[i], classes[i], f"image {i}") for i in range(60)})

    def width(seeds):
        (summary,) = Results(settings(), {RunKey(0, 1, seed): seeded(seed) for seed in range(seeds)}).summary()
        return summary["interval"][1] - summary["interval"][0]

    assert width(6) > 0.85 * width(1)


def reloaded(results, tmp_path):
    path = tmp_path / "deep" / "results.json"
    results.save(path)
    return Results.load(path)


def test_a_file_gives_back_what_was_saved(tmp_path):
    results = some()
    assert reloaded(results, tmp_path) == results
    assert reloaded(results, tmp_path).summary() == results.summary()
    empty = Results(settings(), {RunKey(0, 1, 0): Run(5, 2, 3)})
    assert reloaded(empty, tmp_path) == empty


def test_saving_twice_writes_the_same_bytes_whatever_the_order_of_runs_and_episodes(tmp_path):
    results = some()
    shuffled = Results(
        results.conditions,
        {s: Run(r.wanted, r.images, r.pairs, dict(reversed(r.rows.items()))) for s, r in reversed(results.runs.items())},
        results.sessions,
    )
    results.save(tmp_path / "one.json")
    shuffled.save(tmp_path / "other.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_each_episode_is_a_line_of_the_file_under_columns_that_name_its_fields(tmp_path):
    results = Results(settings(), {RunKey(1, 2, 3): Run(1, 5, 6, {4: Row(2, "q", ("a", "b"), Counts(10, 20, 30, 40))})})
    results.save(tmp_path / "results.json")
    lines = (tmp_path / "results.json").read_text().splitlines()
    assert '   [4, 2, "q", ["a", "b"], 10, 20, 30, 40]' in lines
    (saved,) = json.loads("\n".join(lines))["runs"]
    assert (saved["fold"], saved["shots"], saved["seed"]) == (1, 2, 3)
    named = dict(zip(saved["columns"], saved["episodes"][0], strict=True))
    assert named == {
        "episode": 4,
        "class": 2,
        "query": "q",
        "supports": ["a", "b"],
        "true_positive": 10,
        "false_positive": 20,
        "false_negative": 30,
        "true_negative": 40,
    }


@pytest.mark.parametrize(
    "name", ["@0", "@1", "a [ b ]", "[", '"quoted"', "café 猫", "a\\b", "tab\there", "a | b", "{x}", "a,\n b"]
)
def test_any_name_of_a_class_or_a_file_survives(name, tmp_path):
    episodes = {0: row(50, 0, name, (name, "other")), 1: row(20, 1)}
    runs = {RunKey(fold, 1, 0): Run(2, 2, 2, dict(episodes)) for fold in (0, 1)}
    results = Results(settings([name, "bee"]), runs)
    assert reloaded(results, tmp_path) == results


def test_settings_are_kept_as_a_file_gives_them_back(tmp_path):
    """A tuple of a config becomes a list in JSON; that is no difference."""
    results = Results({**settings(), "model": {"scale": (0.6, 4.0)}})
    assert differences(reloaded(results, tmp_path).conditions, results.conditions) == []
    assert reloaded(results, tmp_path) == results


@pytest.mark.parametrize(("dataset", "order"), [("coco-2014", "classes"), ("pascal", "images")])
def test_results_of_earlier_versions_had_an_order_for_coco_beside_the_usual_one(dataset, order, tmp_path):
    now, before = settings(order=order), settings(order_coco="classes")
    now["dataset"]["name"] = before["dataset"]["name"] = dataset
    assert reloaded(Results(before), tmp_path) == Results(now)


def test_a_failed_save_says_so_and_keeps_the_file_before(tmp_path):
    (tmp_path / "occupied").write_text("mine")
    with pytest.raises(DataError, match=r"results.json: cannot be written .* choose another place"):
        some().save(tmp_path / "occupied" / "results.json")
    assert (tmp_path / "occupied").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["occupied"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "cannot be read (not JSON)"),
        (b'{"format": "cyctr-results-1", ', "cannot be read (not JSON)"),
        (b"\xff\xfe\x00", "cannot be read (not JSON)"),
        (b"[1, 2]", "is no 'cyctr-results-1'"),
        (b'{"images": [], "annotations": []}', "is no 'cyctr-results-1'"),
        (b'{"format": "cyctr-results-2"}', "is no 'cyctr-results-1'"),
        (b'{"format": "cyctr-results-1"}', "KeyError('settings')"),
        (b'{"format": "cyctr-results-1", "settings": {}, "sessions": [], "runs": [7]}', "not as `cyctr evaluate` wrote it"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_with_its_name_and_the_reason(content, message, tmp_path):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as refusal:
        Results.load(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        Results.load(tmp_path)


def test_equal_settings_have_no_differences():
    assert differences(settings(), settings()) == []


def test_differences_name_the_field_and_both_values():
    assert differences(settings(), settings(order="pairs")) == ['protocol.order "images" / "pairs"']
    assert differences(settings(), settings(input={"size": 400})) == ["protocol.input.size 473 / 400"]
    assert differences({"a": 1, "b": 2}, {"b": 3, "c": 4}) == ["a 1 / null", "b 2 / 3", "c null / 4"]


def test_a_long_value_is_shortened_among_the_differences():
    (text,) = differences({"classes": [f"class {i}" for i in range(99)]}, {"classes": []})
    assert text.startswith('classes ["class 0", "class 1"')
    assert text.endswith("... / []")
    assert len(text) < 80


def parts():
    """What two processes found of `some`."""
    whole = some()
    made = []
    for place in (0, 1):
        chosen = {
            s: Run(r.wanted, r.images, r.pairs, {n: row for n, row in r.rows.items() if n % 2 == place})
            for s, r in whole.runs.items()
        }
        made.append(Results(whole.conditions, chosen, {"seconds": place}))
    return made


def test_merged_parts_are_the_whole():
    whole = some()
    for order in (parts(), parts()[::-1]):
        assert merge(order).runs == whole.runs
        assert merge(order).summary() == whole.summary()
    assert merge([whole]).runs == whole.runs


def test_merging_leaves_the_parts_as_they_were():
    given = parts()
    merge(given)
    assert given == parts()


def test_the_same_part_twice_counts_once():
    first, second = parts()
    assert merge([first, second, first]).runs == some().runs


def test_a_missing_part_is_an_unfinished_whole():
    whole = merge(parts()[:1])
    assert not any(run.finished for run in whole.runs.values())
    assert all(row["finished"] is False for row in whole.summary())


def test_runs_of_different_settings_join_where_only_the_folds_differ():
    whole = some()
    folds = [Results(whole.conditions, {s: r for s, r in whole.runs.items() if s.fold == fold}) for fold in (1, 0)]
    assert merge(folds).runs == whole.runs
    assert merge(folds).summary() == whole.summary()


def test_results_of_other_settings_are_not_merged_and_the_field_is_named():
    with pytest.raises(DataError, match=r'other settings \(protocol.order "images" / "pairs"\)'):
        merge([Results(settings()), Results(settings(order="pairs"))])


def test_the_largest_wish_counts_when_parts_wanted_different_numbers():
    whole = merge([Results(settings(), {RunKey(0, 1, 0): run(1, wanted=1)}), Results(settings(), {RunKey(0, 1, 0): run(1, 2)})])
    assert whole.runs[RunKey(0, 1, 0)].wanted == 2


@pytest.mark.parametrize("other", [row(61), row(60, category=1), row(60, query="another"), row(60, supports=("another",))])
def test_an_episode_that_went_differently_is_not_merged(other):
    one, two = (Results(settings(), {RunKey(2, 1, 0): Run(4, 5, 6, {3: episode})}) for episode in (row(60), other))
    with pytest.raises(DataError, match=r"episode 3 of RunKey\(fold=2, shots=1, seed=0\) differs"):
        merge([one, two])


def test_the_summary_of_one_run_is_its_own_numbers_in_percent():
    made = random_run(40)
    (summary,) = Results(settings(), {RunKey(2, 5, 0): made}).summary()
    result = made.result(seed=2)  # the fold decides the chance of the interval
    assert (summary["shots"], summary["seeds"], summary["episodes"], summary["finished"]) == (5, [0], 40, True)
    assert summary["folds"] == {"2": {"mean": pytest.approx(100 * result.miou, abs=1e-3), "std": None}}
    assert summary["mean"] == summary["folds"]["2"]
    assert summary["fb_iou"] == {"mean": pytest.approx(100 * result.fb_iou, abs=1e-3), "std": None}
    assert summary["interval"] == [pytest.approx(100 * bound, abs=1e-3) for bound in result.interval]
    assert summary["classes"] == {NAMES[c]: pytest.approx(100 * iou, abs=1e-3) for c, iou in result.classes.items()}


def test_several_seeds_give_a_mean_and_the_sample_s_standard_deviation():
    values = {0: {0: 40, 1: 50, 2: 63}, 1: {0: 70, 1: 78, 2: 60}}  # fold -> seed -> IoU
    results = Results(settings(), {RunKey(f, 1, s): run(v, category=f) for f, own in values.items() for s, v in own.items()})
    (summary,) = results.summary()
    for fold, own in values.items():
        assert summary["folds"][str(fold)]["mean"] == pytest.approx(statistics.mean(own.values()), abs=1e-3)
        assert summary["folds"][str(fold)]["std"] == pytest.approx(np.std(list(own.values()), ddof=1), abs=1e-3)
    of_seeds = [55, 64, 61.5]  # each the mean over folds
    assert summary["mean"]["mean"] == pytest.approx(np.mean(of_seeds), abs=1e-3)
    assert summary["mean"]["std"] == pytest.approx(np.std(of_seeds, ddof=1), abs=1e-3)
    assert summary["seeds"] == [0, 1, 2]
    assert summary["classes"] == {"ant": 51, "bee": pytest.approx(69.333, abs=1e-3)}


def test_the_interval_of_several_folds_lies_around_their_mean():
    (summary, _) = some().summary()
    low, high = summary["interval"]
    assert low < summary["mean"]["mean"] < high


def test_folds_are_drawn_independently_and_the_seeds_of_one_fold_together():
    """Of two folds of equal spread the mean is surer, by the square root of two; of two seeds of one fold it is not."""

    def width(*measured):
        percents = np.random.default_rng(0).integers(20, 80, 60).tolist()
        rows = {number: row(percent, query=f"q{number}") for number, percent in enumerate(percents)}
        (summary,) = Results(settings(), {setting: Run(60, 60, 60, rows) for setting in measured}).summary()
        return summary["interval"][1] - summary["interval"][0]

    alone = width(RunKey(0, 1, 0))
    assert width(RunKey(0, 1, 0), RunKey(0, 1, 1)) == pytest.approx(alone)
    assert width(RunKey(0, 1, 0), RunKey(1, 1, 0)) == pytest.approx(alone / 2**0.5, rel=0.15)


def test_a_seed_that_lacks_a_fold_does_not_bend_the_mean():
    results = Results(settings(), {RunKey(0, 1, 0): run(40), RunKey(1, 1, 0): run(60), RunKey(0, 1, 1): run(90)})
    (summary,) = results.summary()
    assert summary["mean"] == {"mean": 50, "std": None}
    assert summary["folds"]["0"]["mean"] == 40  # all numbers of a line are of the same runs


def test_the_fold_table_has_the_paper_s_form():
    runs = {RunKey(fold, shots, 0): run(10 * fold + shots, category=fold) for shots in (5, 1) for fold in (1, 0, 3, 2)}
    table = fold_table(Results(settings(), runs))
    assert table[0] == ["shots", "fold-0", "fold-1", "fold-2", "fold-3", "mean mIoU", "95 % interval", "FB-IoU", "episodes"]
    assert [line[:6] for line in table[1:]] == [
        ["1", "1.0", "11.0", "21.0", "31.0", "16.0"],
        ["5", "5.0", "15.0", "25.0", "35.0", "20.0"],
    ]
    assert [line[-1] for line in table[1:]] == ["4", "4"]


def test_a_fold_that_was_not_measured_is_a_dash():
    table = fold_table(Results(settings(), {RunKey(0, 1, 0): run(10), RunKey(0, 5, 0): run(20), RunKey(1, 5, 0): run(30)}))
    assert table[0][1:3] == ["fold-0", "fold-1"]
    assert [line[1:3] for line in table[1:]] == [["10.0", "–"], ["20.0", "30.0"]]


def test_folds_stay_in_order_when_the_first_shots_lack_some():
    runs = {RunKey(2, 1, 0): run(10), RunKey(0, 5, 0): run(20), RunKey(2, 5, 0): run(30), RunKey(10, 5, 0): run(30)}
    assert fold_table(Results(settings(), runs))[0][1:4] == ["fold-0", "fold-2", "fold-10"]


def test_several_seeds_show_their_deviation_in_the_table():
    table = fold_table(Results(settings(), {RunKey(0, 1, 0): run(40), RunKey(0, 1, 1): run(50)}))
    assert table[1][1:3] == ["45.0 ± 7.1", "45.0 ± 7.1"]
    assert spread_text({"mean": 1.25, "std": None}) == "1.2"


@pytest.mark.parametrize(
    "runs",
    [
        {RunKey(0, 1, 0): run(40, 50, wanted=3)},
        {RunKey(0, 1, 0): run(40, 50), RunKey(1, 1, 0): run(wanted=2)},
        {RunKey(0, 1, 0): run(40, 50), RunKey(0, 1, 1): run(40, wanted=2)},
    ],
    ids=["some episodes", "a fold that was not begun", "a seed"],
)
def test_an_unfinished_run_says_so(runs):
    results = Results(settings(), runs)
    assert results.summary()[0]["finished"] is False
    assert fold_table(results)[1][-1].endswith(" (unfinished)")
    assert "(unfinished)" in markdown(results)


def test_a_finished_run_says_nothing_of_that():
    assert "unfinished" not in markdown(some())


def test_results_without_an_episode_have_empty_tables():
    for results in (Results(settings()), Results(settings(), {RunKey(0, 1, 0): Run(5, 2, 3)})):
        assert results.summary() == []
        assert len(fold_table(results)) == len(class_table(results)) == 1


def test_the_class_table_has_a_line_for_each_class_that_was_met():
    runs = {
        RunKey(0, 1, 0): run(10, category=0),
        RunKey(1, 1, 0): run(40, category=3),
        RunKey(0, 5, 0): run(20, category=0),
        RunKey(1, 5, 0): run(50, category=2),
    }
    assert class_table(Results(settings(), runs)) == [
        ["class", "1-shot", "5-shot"],
        ["ant", "10.0", "20.0"],
        ["cat", "–", "50.0"],
        ["dog", "40.0", "–"],
    ]


def parse(text):
    """The pipe tables of Markdown, as a reader would: cells split at bars that no backslash protects."""
    tables = []
    for block in text.strip().split("\n\n")[1:]:  # after the line that says what was measured
        lines = [line.replace(r"\|", "\0").strip("|").split("|") for line in block.splitlines()]
        lines = [[cell.strip().replace("\0", "|") for cell in line] for line in lines]
        assert len({len(line) for line in lines}) == 1
        assert all(set(cell) <= set(":-") and len(cell) >= 3 for cell in lines[1])
        tables.append([lines[0], *lines[2:]])
    return tables


def test_markdown_is_both_tables():
    results = some()
    assert parse(markdown(results)) == [fold_table(results), class_table(results)]


def test_a_line_says_what_was_measured_and_how():
    line = "test on album, test split: input 473 px, without flip, float32, scored at the original size."
    assert description(some()) == line
    assert markdown(some()).startswith(f"{line}\n\n| shots |")
    about = settings(input={"size": 129})
    about["method"] |= {"name": "last", "flip": True, "checkpoint": {"sha256": "0123456789abcdef"}}
    sessions = [{"checkpoint": "old/last.safetensors"}, {"checkpoint": "runs/last.safetensors"}, {"seconds": 1}]
    assert description(Results(about, {}, sessions)) == (
        "runs/last.safetensors (sha256 0123456789ab) on album, test split: input 129 px, with flip, float32, "
        "scored at the original size."
    )
    assert description(Results(about)).startswith("last (sha256 0123456789ab) on album")


def test_classes_that_were_learned_from_are_known_where_the_checkpoint_says_so():
    about = settings()
    assert learned_classes(Results(about, {RunKey(0, 1, 0): run(10, category=2)})) == []
    about["method"]["checkpoint"] = {"sha256": "0", "data": {"train": ["cat", "ant", "cow"]}}
    runs = {RunKey(0, 1, 0): run(10, category=2), RunKey(1, 1, 0): run(10, category=3)}
    assert learned_classes(Results(about, runs)) == ["cat"]


def test_a_bar_in_a_name_does_not_split_a_cell():
    results = Results(settings(["black | white"]), {RunKey(0, 1, 0): run(10)})
    assert parse(markdown(results))[1] == [["class", "1-shot"], ["black | white", "10.0"]]
