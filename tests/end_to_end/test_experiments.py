import importlib.util
import json
import re
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from learning import textures

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import describe_checkpoint, load_checkpoint, save_checkpoint
from cyctr.config import BackboneConfig, parse, settings
from cyctr.datasets.opening import open_dataset
from cyctr.episodes.image_store import open_store
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import build
from cyctr.types import Prediction

FOLDER = Path(__file__).parents[2] / "experiments"
SMALL = {
    "model.dim": "16",
    "model.encoder.heads": "2",
    "model.encoder.points": "2",
    "training.episodes": "16",
    "training.batch": "8",
    "training.augmentation.size": "65",
    "training.latent_classes": "0",
}


def script(name):
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lab():
    """The script that trains and tests, with a few small images in place of the synthetic ones."""
    module = script("run")
    module.open_dataset = lambda path: textures()
    return module


def test_a_plan_is_trained_and_tested_row_by_row_and_reported(tmp_path, monkeypatch, capsys):
    bug = {**SMALL, "model.sampling.release_labels": "true"}
    rows = {"plain": {"weights": "tiny", "settings": SMALL}, "bug": {"weights": "tiny", "settings": bug}}
    test = {"split": "test", "shots": [1, 2], "seeds": [0, 1], "episodes": 2, "flip": True, "plain": True, "edges": True}
    plan, output = tmp_path / "plan.json", tmp_path / "runs"
    plan.write_text(json.dumps({"rows": rows, "folds": [1], "test": test}))
    monkeypatch.setattr(sys, "argv", ["run", str(plan), "--data", "synthetic", "--output", str(output), "--device", "cpu"])
    lab().main()
    first = capsys.readouterr().out
    for name in rows:
        found = json.loads((output / f"{name}-fold1.json").read_text())
        tests = [(one["shots"], (one["flip"], one["plain"], one["edges"]), one["seed"]) for one in found["test"]]
        no, yes = False, True
        ways = ((no, no, no), (yes, no, no), (no, yes, no), (no, no, yes), (yes, no, yes))
        assert tests == [(shots, way, seed) for shots in (1, 2) for way in ways for seed in (0, 1)]
        assert found["config"]["training"]["episodes"] == 16
        config, data = describe_checkpoint(output / f"{name}-fold1.safetensors")
        assert config.model.dim == 16
        assert (data["name"], data["fold"], data["test"]) == ("synthetic", 1, ["texture-002", "texture-003"])
        assert name in first
    lab().main()  # what is there already is not done again
    assert capsys.readouterr().out == ""
    changed = {"plain": {**rows["plain"], "settings": {**SMALL, "model.dim": "32"}}}
    plan.write_text(json.dumps({"rows": changed, "folds": [1], "test": test}))
    lab().main()  # and told apart from what the plan asks for now
    assert capsys.readouterr().out == f"{output / 'plain-fold1.json'}: is of another configuration; remove it to do it again\n"

    script("report").main([str(output), "--plots", str(tmp_path / "plots")])
    table = capsys.readouterr().out
    assert "| plain | 2 |" in table and "| bug, mirrored | 1 |" in table and "| bug, mirrored, along edges | 2 |" in table
    assert (tmp_path / "plots" / "runs-classes-1.png").exists()


def test_ways_to_test_that_a_plan_asks_for_later_are_measured_with_the_checkpoint(tmp_path, monkeypatch, capsys):
    row = {"weights": "tiny", "settings": {**SMALL, "training.hold_out": "2"}}
    test = {"split": "validation", "shots": [1], "seeds": [0, 1], "episodes": 2}
    more = {"flip": True, "edges": True}

    plan, output = tmp_path / "plan.json", tmp_path / "runs" / "row-fold0.json"
    given = ["run", str(plan), "--data", "synthetic", "--output", str(output.parent), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", given)

    def run(test):
        plan.write_text(json.dumps({"rows": {"row": row}, "folds": [0], "test": test}))
        lab().main()
        return json.loads(output.read_text()), capsys.readouterr().out

    first, _ = run(test)
    then, line = run(test | more)
    assert "1-shot flip edges" in line
    assert then | {"test": first["test"], "tested": test} == first
    assert then["tested"] == test | more
    ways = [(one["flip"], one["edges"]) for one in then["test"][::2]]
    assert ways == [(False, False), (True, False), (False, True), (True, True)]
    assert then["test"][:2] == first["test"]
    output.write_text(json.dumps(then | {"test": then["test"][2:], "tested": test}))
    again, _ = run(test | more)  # what training's own network scored, from its checkpoint
    assert again["test"][2:] == then["test"][2:]
    for one, other in zip(again["test"], first["test"], strict=False):
        assert one["seed"] == other["seed"] and one["miou"] == pytest.approx(other["miou"], abs=0.5)  # that is in float16
    _, line = run(test | {"episodes": 3})
    assert line == f"{output}: is of another test; remove it to do it again\n"


def test_networks_of_several_rows_answer_together_by_the_mean_of_their_odds(tmp_path, monkeypatch, capsys):
    seeds = {"one": "0", "other": "1", "third": "2"}
    rows = {name: {"weights": "tiny", "settings": {**SMALL, "training.seed": seed}, "test": {}} for name, seed in seeds.items()}
    rows["all"] = {"together": list(seeds)}
    ways = {"ways": [[], ["edges"]], "also": {"shots": [2], "ways": [["flip", "edges"]]}}
    test = {"split": "test", "shots": [1], "seeds": [0, 1], "episodes": 3, **ways}
    plan, output = tmp_path / "plan.json", tmp_path / "runs"
    plan.write_text(json.dumps({"rows": rows, "folds": [1], "test": test}))
    monkeypatch.setattr(sys, "argv", ["run", str(plan), "--data", "synthetic", "--output", str(output), "--device", "cpu"])
    lab().main()
    found = json.loads((output / "all-fold1.json").read_text())
    told = [(one["shots"], one["flip"], one["edges"], one["seed"]) for one in found["test"]]
    kinds = [(1, False, False), (1, False, True), (2, True, True)]
    assert told == [(*kind, seed) for kind in kinds for seed in (0, 1)]
    assert all(len(one["fewer"]) == 2 for one in found["test"])
    capsys.readouterr()

    networks = [load_checkpoint(output / f"{name}-fold1.safetensors")[0] for name in seeds]

    class Mean(torch.nn.Module):
        """All of them, one after the other."""

        familiar = None

        def forward(self, episode):
            return Prediction(sum(network(episode).logits for network in networks) / 3)

    module = lab()
    laboratory = module.Laboratory(Path("synthetic"), torch.device("cpu"), tmp_path)
    job = module.Job("mean", {}, 1, test)
    config = load_checkpoint(output / "one-fold1.safetensors")[1]
    mean = module.NetworkMethod(Mean(), torch.device("cpu"), half=False)
    for one, other in zip(found["test"], laboratory.test([mean], config, laboratory.dataset, job), strict=True):
        assert one["miou"] == pytest.approx(other["miou"], abs=0.2)  # of weights in another order, and folded ones
        assert one["seed"] == other["seed"]
    lab().main()
    assert capsys.readouterr().out == ""
    plan.write_text(json.dumps({"rows": rows, "folds": [1], "test": {**test, "ways": [[], ["flip"], ["edges"]]}}))
    lab().main()  # a way that is asked for later is measured with the same networks
    assert capsys.readouterr().out.startswith("all ")
    more = json.loads((output / "all-fold1.json").read_text())["test"]
    assert [one for one in more if not one["flip"] or one["edges"]] == found["test"]
    assert len(more) == len(found["test"]) + 2


def test_a_row_that_fails_costs_no_other_row_and_is_not_passed_over(tmp_path, monkeypatch, capsys):
    rows = {
        "wrong": {"weights": "tiny", "settings": {**SMALL, "model.dim": "3"}},
        "right": {"weights": "tiny", "settings": SMALL},
    }
    plan, output = tmp_path / "plan.json", tmp_path / "runs"
    plan.write_text(json.dumps({"rows": rows, "folds": [0]}))
    monkeypatch.setattr(sys, "argv", ["run", str(plan), "--data", "synthetic", "--output", str(output), "--device", "cpu"])
    with pytest.raises(SystemExit, match="1"):
        lab().main()
    assert "wrong-fold0: ConfigError: model.dim is 3" in capsys.readouterr().out
    assert [path.name for path in output.glob("*.json")] == ["right-fold0.json"]


@pytest.mark.parametrize("plan", sorted(FOLDER.glob("*.json")), ids=lambda plan: plan.stem)
def test_every_plan_names_settings_and_presets_that_exist(plan):
    run = script("run")
    content = json.loads(plan.read_text())
    assert content["rows"] and content["folds"]
    for row in content["rows"].values():
        config = run.configuration(row)
        named = {name.replace("-", "_") for name in row.get("settings", {})}
        assert named <= {name for name, _, _ in settings(type(config))}


KINDS = ("exact", "light", "panet", "ship", "small", "table1", "table4")
FOUND = {
    path: json.loads(path.read_text()) for kind in KINDS for path in sorted((FOLDER.parent / "results" / kind).glob("*.json"))
}
GONE = {"model.encoder.marks"}  # settings that were measured and left the code; their rows left the plans
MEASURED = [path for path, found in FOUND.items() if not GONE & found["row"].get("settings", {}).keys()]


@pytest.fixture(scope="module")
def planned():
    """What the plans ask for, by the name of the file that it gives."""
    jobs = list(script("run").jobs(sorted(FOLDER.glob("*.json")), ""))
    titles = [job.title for job in jobs]
    assert len(set(titles)) == len(titles)  # all plans may write to one folder
    return dict(zip(titles, jobs, strict=True))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_plan_asks_for_what_was_measured_in_all_that_the_result_says_of_it(path, planned):
    found, job = FOUND[path], planned[path.stem]
    assert job.trained(found)
    assert found.get("tested", job.test) == job.test
    asked = script("run").measured(job.test) if job.test else []
    assert [one["shots"] for one in found.get("test", [])] == [shots for shots, _ in asked for _ in job.test["seeds"]]


def test_all_that_plans_ask_for_was_measured_but_for_what_is_queued(planned):
    queued = {job.title for job in script("run").jobs([FOLDER / "queue.json"], "")}
    assert queued and set(planned) - queued == {path.stem for path in MEASURED}


def test_the_page_of_the_queue_says_what_each_row_should_answer():
    _, page = (FOLDER / "README.md").read_text().split("## The queue")
    told = {
        name for line in page.splitlines() if line.startswith("| `") for name in re.findall("`([^`]+)`", line.split("|")[1])
    }
    assert told == json.loads((FOLDER / "queue.json").read_text())["rows"].keys()


def test_folds_that_were_not_tested_leave_the_means_of_a_report_as_they_are():
    report = script("report")
    one = {"shots": 1, "miou": 50.0, "fb_iou": 60.0}
    tested = [{"fold": fold, "test": [one], "seconds": {"training": 60.0}} for fold in range(4)]
    everything = {"fold": "all", "seconds": {"training": 60.0}}
    assert report.table({"some": tested, "all": [everything]}) == report.table({"some": tested})
    assert "| 50.0 | 60.0 |" in report.table({"some": tested})


def test_the_cycle_is_compared_with_none_on_the_same_episodes_by_what_they_hold(tmp_path, monkeypatch, capsys):
    paths = {cross: tmp_path / f"{cross}.safetensors" for cross in ("cycle", "vanilla")}
    for cross, path in paths.items():
        encoder = EncoderConfig(heads=2, points=2, cross=cross)
        config = Config(ModelConfig(dim=16, backbone=BackboneConfig("tiny"), encoder=encoder))
        config = parse(Config, config, {"training.augmentation.size": "97"})
        torch.manual_seed(0)  # the same weights, so that without its cycle the first is the last
        save_checkpoint(path, build(config.model), config)
    output = tmp_path / "cycle.json"
    options = [
        "--data",
        "synthetic",
        "--fold",
        "1",
        "--episodes",
        "5",
        "--seeds",
        "0",
        "1",
        "--device",
        "cpu",
        "--output",
        str(output),
    ]
    monkeypatch.setattr(sys, "argv", ["cycle", "--with", str(paths["cycle"]), "--without", str(paths["vanilla"]), *options])
    script("cycle").main()
    kinds = json.loads(output.read_text())["kinds"]
    assert kinds["all"]["episodes"] == 10
    for kind in kinds.values():
        assert kind["switched off"] == kind["without"]
        assert kind["gain"] == pytest.approx(kind["with the cycle"] - kind["without"], abs=0.011)
        assert kind["interval"][0] <= kind["gain"] <= kind["interval"][1]
    parts = [kind["episodes"] for name, kind in kinds.items() if name.startswith("query object")]
    assert sum(parts) == 10
    assert "other classes in the support" in capsys.readouterr().out or "no other class in the support" in kinds
    monkeypatch.setattr(sys, "argv", ["cycle", "--with", str(paths["cycle"]), *options])
    script("cycle").main()
    alone = json.loads(output.read_text())["kinds"]
    for name, kind in alone.items():
        assert "without" not in kind and {**kind, "without": kind["switched off"]} == kinds[name]


def test_confidence_is_measured_on_queries_with_and_without_the_class_and_fitted_again_from_rows(tmp_path, monkeypatch, capsys):
    config = Config(ModelConfig(dim=16, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=2, points=2)))
    checkpoint, first, again = tmp_path / "tiny.safetensors", tmp_path / "first.json", tmp_path / "again.json"
    save_checkpoint(checkpoint, build(config.model), config)
    asked = ["confidence", "--data", "synthetic", "--checkpoint", f"{checkpoint}@0", "--checkpoint", f"{checkpoint}@1"]
    small = ["--shots", "1,2", "--pairs", "4,3", "--size", "65", "--device", "cpu", "--output", str(first)]
    monkeypatch.setattr(sys, "argv", [*asked, *small])
    script("confidence").main()
    found = json.loads(first.read_text())
    rows = [dict(zip(found["rows"]["columns"], values, strict=True)) for values in found["rows"]["values"]]
    classes = {row["category"] for row in rows}
    assert len(rows) == len(classes) * 2 * (4 + 3)
    assert {row["fold"] for row in rows} == {0, 1}
    dataset = open_dataset(Path("synthetic"))
    pool = dataset.pool("test")
    for row in rows[::5]:
        label = pool.label(list(pool.keys).index(row["query"]), dataset.classes.index(row["category"]))
        assert (label == 1).any() == row["present"]
    printed = capsys.readouterr().out
    assert "fitted on other classes" in printed
    monkeypatch.setattr(sys, "argv", ["confidence", "--rows", str(first), "--output", str(again)])
    script("confidence").main()
    assert again.read_text() == first.read_text()


def unlabelled():
    """Eight small images of two classes, and where they are."""
    pool, pairs = textures().pool("train"), [(image, image // 4) for image in range(8)]
    return open_store(pool, pool.index(), pairs, torch.device("cpu")), pairs


def test_a_student_learns_what_its_teacher_says_of_images(monkeypatch, capsys):
    module, images = script("distil"), unlabelled()
    monkeypatch.setattr(module, "_TOLD", 10)
    torch.manual_seed(0)
    student, teacher = Backbone(BackboneConfig("tiny")), Backbone(BackboneConfig("tiny"))
    before, taught = ({name: value.clone() for name, value in one.state_dict().items()} for one in (student, teacher))
    told = module.distil(student, teacher, module.crops(*images, 65, 8, 25, 0), 25, 3e-3, half=False)
    assert [one["step"] for one in told] == [10, 20, 25]
    assert told[-1]["mid"] < 0.9 * told[0]["mid"] and told[-1]["high"] < 0.9 * told[0]["high"]
    moved = {name for name, value in student.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, _ in student.named_parameters()}
    assert all(torch.equal(value, taught[name]) for name, value in teacher.state_dict().items())
    assert not any(value.requires_grad for value in student.parameters())
    assert "step 25 of 25" in capsys.readouterr().out


def test_a_student_is_compared_with_what_its_teacher_says_of_the_same_pixels():
    module, maps = script("distil"), torch.randn(1, 2, 5, 7)
    assert torch.allclose(module.shifted(maps, 1.0)[..., :-1, :-1], maps[..., 1:, 1:], atol=1e-5)
    assert torch.allclose(module.shifted(maps, -2.0)[..., 2:, 2:], maps[..., :-2, :-2], atol=1e-5)
    halfway = (maps[..., :-1, :-1] + maps[..., :-1, 1:] + maps[..., 1:, :-1] + maps[..., 1:, 1:]) / 4
    assert torch.allclose(module.shifted(maps, 0.5)[..., :-1, :-1], halfway, atol=1e-5)
    student, teacher = (Backbone(BackboneConfig("tiny", offset=offset)) for offset in (-4, 6))
    translation = module.Translation(student, teacher)
    assert translation.shift == 1.25  # cells: 8i + 6 is 8 (i + 1.25) - 4
    for layer in (translation.mid, translation.high):
        torch.nn.init.dirac_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    said = tuple(torch.randn(2, width, 9, 9) for width in (sum(student.channels[:2]), student.channels[2]))
    meant = tuple(module.shifted(maps, 1.25) for maps in said)
    assert translation(said, meant).max() < 1e-5 < translation(said, said).min()


def test_the_first_linear_maps_are_the_best_for_the_student_as_it_is():
    module = script("distil")
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig("tiny"))
    translation = module.Translation(backbone, backbone)
    widths = (sum(backbone.channels[:2]), backbone.channels[2])
    turns = [torch.linalg.qr(torch.randn(width, width)).Q for width in widths]

    def example():
        said = [torch.nn.functional.normalize(torch.randn(2, width, 9, 9), dim=1) for width in widths]
        return said, [torch.einsum("ij,bjhw->bihw", turn, maps) for turn, maps in zip(turns, said, strict=True)]

    before = translation(*example())
    translation.fit(example() for _ in range(8))
    assert translation(*example()).max() < 1e-4 < before.min()
    for turn, layer in zip(turns, (translation.mid, translation.high), strict=True):
        assert torch.allclose(layer.weight[..., 0, 0], turn, atol=1e-2)


def test_crops_show_every_image_before_any_again_and_are_drawn_by_the_seed():
    module, (store, pairs), asked = script("distil"), unlabelled(), []

    class Watched:
        def stream(self, plans):
            for plan in plans:
                asked.append([image for image, _ in plan])
                yield from store.stream([plan])

    first = list(module.crops(Watched(), pairs, 65, 4, 4, 0))
    assert sorted(asked[0] + asked[1]) == sorted(asked[2] + asked[3]) == list(range(8))
    assert all(one.shape == (4, 3, 65, 65) and one.dtype == torch.uint8 for one in first)
    again, other = list(module.crops(store, pairs, 65, 4, 4, 0)), list(module.crops(store, pairs, 65, 4, 4, 1))
    assert all(torch.equal(one, same) for one, same in zip(first, again, strict=True))
    assert not any(torch.equal(one, same) for one, same in zip(first, other, strict=True))
    of_one_image = [torch.cat(list(module.crops(store, pairs[:1], 65, 1, 3, seed))) for seed in range(4)]
    assert not any(torch.equal(one, another) for one, another in combinations(of_one_image, 2))


def test_networks_references_and_the_segmenter_are_scored_on_the_classes_of_a_dataset(tmp_path, monkeypatch, capsys):
    config = Config(ModelConfig(dim=16, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=2, points=2)))
    config = replace(config, training=replace(config.training, augmentation=replace(config.training.augmentation, size=65)))
    save_checkpoint(tmp_path / "own.safetensors", build(config.model), config)
    module, own = script("gallery"), str(tmp_path / "own.safetensors")
    monkeypatch.setattr(module, "open_dataset", lambda path: textures())
    dataset = [
        "--data",
        "synthetic",
        "--folds",
        "0",
        "3",
        "--episodes",
        "4",
        "--size",
        "65",
        "--weights",
        "tiny",
        "--device",
        "cpu",
    ]
    files = ["--output", str(tmp_path), "--together", str(tmp_path / "sheet.png"), "--shown", "3"]
    monkeypatch.setattr(sys, "argv", ["gallery", own, f"segmenter:{own}", "prototype", "--votes", "1", *dataset, *files])
    module.main()
    found = json.loads((tmp_path / "gallery.json").read_text())
    assert list(found) == ["own", "segmenter:own, votes 1", "prototype"]
    for scores in found.values():
        assert set(scores) == {"texture-000", "texture-001", "texture-006", "texture-007", "mean"}
        assert scores["mean"] == pytest.approx(sum(scores[name] for name in scores if name != "mean") / 4)
    assert len({scores["mean"] for scores in found.values()}) == 3
    assert "prototype                mean" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").exists()
    monkeypatch.setattr(sys, "argv", ["gallery", own, str(tmp_path / "b" / "own.safetensors"), *dataset, *files])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    assert "two methods have the same name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "shown", "places"), [(8, 3, [0, 2, 5]), (8, 5, [0, 1, 3, 4, 6]), (2, 7, [0, 1]), (3, None, [0, 1, 2])]
)
def test_as_many_tasks_are_shown_as_are_asked_for_evenly(count, shown, places):
    assert script("gallery").spread(count, shown) == places


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (None, (), "No such file"),
        ("no JSON", (), "not a plan (JSONDecodeError"),
        ('{"rows": {"one": {}}}', (), "not a plan (KeyError: 'folds'"),
        ("[]", (), "not a plan"),
        ('{"rows": {"one": {}}, "folds": [0]}', ("--only", "two"), "--only is 'two', and no row's name begins so"),
        ('{"rows": {"one": {}}, "folds": [0]}', ("--data", "nowhere"), "nowhere"),
        ('{"rows": {"one": {}}, "folds": [0]}', ("--device", "tpu"), "'tpu'"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_in_a_line(plan, options, words, tmp_path, monkeypatch, capsys):
    if plan is not None:
        (tmp_path / "plan.json").write_text(plan)
    given = [str(tmp_path / "plan.json"), "--data", "synthetic", "--output", str(tmp_path / "out"), *options]
    monkeypatch.setattr(sys, "argv", ["run.py", *given])
    with pytest.raises(SystemExit, match="2"):
        script("run").main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("run.py: ") and words in line


def test_a_row_that_cannot_be_is_a_line_and_costs_no_other(tmp_path, monkeypatch, capsys):
    plan = {"rows": {"bad": {"settings": {"training.batch": "0"}}, "worse": {"settings": {"model.dims": "1"}}}, "folds": [0]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path / "plan.json"), "--data", "synthetic", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        script("run").main()
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "bad-fold0: ConfigError: training.batch is 0; expected 1 to 65,536",
        "worse-fold0: ConfigError: model.dims is not a setting; the nearest one is model.dim",
    ]
    assert "Traceback" not in captured.err


def test_a_folder_without_results_is_no_empty_table(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        script("report").main([str(tmp_path)])
    assert "holds no results" in capsys.readouterr().err
