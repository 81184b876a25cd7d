"""The benchmarks run, and compare only what can be compared. How fast anything is, is no matter here."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learning import textures
from making import tiny

from cyctr import Config, save_checkpoint
from cyctr.backbones.backbone import Backbone
from cyctr.config import BackboneConfig

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return load("segmenter")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path, network, plain = tmp_path_factory.mktemp("network") / "small.safetensors", tiny(), Config()
    training = replace(plain.training, augmentation=replace(plain.training.augmentation, size=65))
    save_checkpoint(path, network, Config(model=network.config, training=training))
    return str(path)


def test_the_segmenter_is_measured_in_processes_of_their_own_and_reported(script, checkpoint, tmp_path, capsys):
    path = tmp_path / "found.json"
    options = ["--model", checkpoint, "--device", "cpu", "--threads", "1", "--quick", "--output", str(path)]
    script.main([*options, "--cases", script.TILED])
    report, shown = json.loads(path.read_text()), capsys.readouterr().out
    found = report["models"]["small"]
    assert (report["device"], report["threads"], report["quick"]) == ("cpu", 1, True)
    assert found["start"]["import_seconds"] > 0 and found["start"]["ready_seconds"] > 0
    case = found["cases"][script.TILED]
    assert 0 < case["ready_mib"] <= case["peak_mib"] < script.MEMORY_AIM
    assert f"{script.TILED} " in shown and shown.endswith("MiB in tiles: met\n")


@pytest.fixture
def options(checkpoint):
    return {
        "model": checkpoint,
        "precision": "auto",
        "device": "cpu",
        "threads": None,
        "images": 1,
        "repeats": 1,
        "batch": None,
    }


@pytest.mark.parametrize("name", ["1 support", "5 supports", "10 classes", "12 megapixels, whole"])
def test_every_case_is_a_task(script, options, name):
    assert script.tasks([name], options)["found"][name]["images_per_second"] > 0


def test_the_growth_is_told_as_ratios_to_one(script, options):
    growth = json.loads(json.dumps(script.tasks([script.GROWTH], options)["found"][script.GROWTH]))
    assert growth["supports"]["1"] == growth["classes"]["1"] == 1
    assert (
        growth["image_seconds"] > 0
        and growth["plain_pass_seconds"] > 0
        and all(value > 0 for value in growth["encode_seconds_per_support"].values())
    )


def test_the_growth_and_the_comparison_are_shown(script):
    ratios = {"supports": [1.0, 1.06, 2.67, 4.31], "classes": [1.0, 1.0, 3.5, 6.5]}
    growth = {name: dict(zip(script.COUNTS, values, strict=True)) for name, values in ratios.items()}
    growth["encode_seconds_per_support"] = dict.fromkeys(script.COUNTS, 0.2)
    growth["plain_pass_seconds"] = 0.455
    start = {"import_seconds": 0.1, "ready_seconds": 2.0}
    released = {"image": 7.0, "episode": 5.0, "image, 5 shots": 9.0, "episode, 5 shots": 4.0, "aim": 6.0}
    found = {"start": start, "cases": {}, "growth": growth, "released": released}
    shown = script.table({"environment": {"device": "cpu"}, "models": {"small": found}}).splitlines()
    encode, supports, classes, plain = (line.split() for line in shown[-7:-3])
    assert (encode[-4:], supports[-4:]) == (["0.200"] * 4, ["1.00", "1.06", "2.67", "4.31"])
    assert classes[-4:] == ["1.00", "1.00", "3.50", "6.50"] and plain[-2:] == ["455", "ms"]
    assert [line.strip() for line in shown[-3:]] == [
        "7.0 x the released code's speed; 5.0 x with supports for each image",
        "9.0 x the released code's speed, 5 shots; 4.0 x with supports for each image",
        "aim 6 x: image met",
    ]


def test_the_released_code_is_counted_in_plain_passes_of_the_same_run(script):
    two = {"device": "cpu", "threads": 2, "environment": {"device": "cpu (x86_64, 2 threads)"}}
    found = {"plain_pass_seconds": 0.5, "image_seconds": 0.6, "supports": {"1": 1.0, "5": 2.0}}
    found["encode_seconds_per_support"] = {"1": 0.2, "5": 0.1}
    one, five = (0.5 * script.RELEASED_PASSES[shots] for shots in (1, 5))
    ratios = {"image": one / 0.6, "episode": one / 0.8, "image, 5 shots": five / 1.2, "episode, 5 shots": five / 1.7}
    assert script.compared("lite0", two, found) == pytest.approx(ratios | {"aim": 6})
    assert script.compared("small", two, found) == pytest.approx(ratios)
    assert script.compared("lite0", {**two, "threads": 4}, found) is None


def test_on_a_gpu_the_speed_is_compared_on_the_card_of_the_released_code(script):
    gpu = {"device": "cuda", "threads": 8, "environment": {"device": "cuda (NVIDIA H200, 8 threads)"}}
    found = {"image_seconds": 0.6, "supports": {"1": 1.0}, "encode_seconds_per_support": {"1": 0.2}}
    assert script.compared("resnet50", gpu, found)["image"] == pytest.approx(1 / 32.9 / 0.6)
    assert script.compared("resnet50", {**gpu, "environment": {"device": "cuda (NVIDIA T4, 8 threads)"}}, found) is None


def test_each_rewrite_is_timed_with_and_without_the_others(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)
    script, path = load("rewrites"), tmp_path / "found.json"
    script.main(["--model", checkpoint, "--size", "65", "--repeats", "1", "--precisions", "fp32", "--output", str(path)])
    (row,) = json.loads(path.read_text())["rows"]
    assert set(row["gains"]) == {*script.REWRITES, *script.ON_CPU}
    assert all(time["ms"] > 0 for time in row["backbone pass"].values())
    assert "round trips" in capsys.readouterr().out


def test_it_is_told_how_many_layers_a_rewrite_replaces(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    backbone = Backbone(BackboneConfig("resnet18"))
    norms = sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in backbone.modules())
    layers = load("rewrites").replaced(backbone, torch.rand(1, 3, 65, 65))
    assert layers["folded BatchNorms"] == norms
    assert layers["depthwise"] == layers["channels last"] == 0


@pytest.mark.parametrize(("preset", "tuned"), [("paper", False), ("best", True)])
def test_training_and_testing_are_measured_part_by_part(preset, tuned, tmp_path, monkeypatch):
    script, path = load("training"), tmp_path / "found.json"
    monkeypatch.setattr(script, "open_dataset", lambda path: textures(each=6))
    size = ["--size", "65", "--batch", "4", "--steps", "1", "--warm", "1", "--episodes", "2", "--test-batch", "2"]
    small = ["model.dim=16", "model.encoder.heads=2", "model.encoder.points=2", "training.latent_classes=0"]
    script.main(["--preset", preset, "--weights", "tiny", "--device", "cpu", *size, "--output", str(path), *small])
    found = json.loads(path.read_text())
    assert (found["training"]["batch"], found["preset"]) == (4, preset)
    parts = {"data", "backbone", "encoder forward", "encoder backward", "optimizer"}
    assert set(found["training"]["parts_ms"]) == parts | ({"backbone backward"} if tuned else set())
    assert [(one["shots"], one["features"]) for one in found["testing"]] == [(1, "once"), (5, "once"), (1, "anew"), (5, "anew")]


def test_the_page_is_measured_by_a_server_in_a_process_of_its_own(checkpoint, tmp_path, capsys):
    path = tmp_path / "found.json"
    load("studio").main(["--quick", "--cases", "load", "again", "--model", checkpoint, "--output", str(path)])
    report = json.loads(path.read_text())
    assert report["load"]["failures"] == 0 and report["load"]["requests"] == 4 * 20
    assert report["load"]["masks_on_disk"] > 0
    again = report["again"]
    assert again["first"]["looks_known"] == 0 < again["same example"]["looks_known"]
    assert again["new example"]["looks_new"] < again["first"]["looks_new"]
    assert "requests_per_second" in capsys.readouterr().out
