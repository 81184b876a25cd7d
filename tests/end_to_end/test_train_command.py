import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import pytest
from learning import photos, timeless
from making import assert_one_line
from miniature import state
from typer.testing import CliRunner

from cyctr import cli
from cyctr.checkpoint import describe_checkpoint, load_checkpoint
from cyctr.config import BackboneConfig, choices, from_dict, settings, value_at
from cyctr.datasets.dataset import Dataset
from cyctr.errors import TrainingError
from cyctr.evaluation.results import Results, RunKey
from cyctr.methods.cyctr.config import PRESETS, Config
from cyctr.storage import locked
from cyctr.training.options import Options
from cyctr.training.run_folder import CURVES, LAST, STATE, RunFolder

SMALL = {
    "--weights": "tiny",
    "--validation-episodes": 3,
    "--model.dim": 16,
    "--model.encoder.heads": 2,
    "--model.encoder.layers": 1,
    "--training.episodes": 16,
    "--training.batch": 4,
    "--training.augmentation.size": 65,
}
FILES = {"config.json", "metrics.jsonl", STATE, LAST, CURVES, "regions-DIGEST.safetensors", "tensorboard"}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("CYCTR_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A user's folder of classes thing0 to thing3, four images each."""
    return photos(tmp_path_factory.mktemp("things"))


def arguments(things, output, *options, **changes):
    """`cyctr train` on the things, small; later options win."""
    small = [text for pair in {**SMALL, **changes}.items() for text in pair]
    return [*map(str, ("train", "--data", things, "--output", output, *small, *options))]


@pytest.fixture
def train(run, things, tmp_path):
    """Runs `cyctr train` on the things."""

    def main(*options, output="out"):
        return run(*arguments(things, tmp_path / output, *options))

    return main


def assert_well(result):
    assert result[0] == 0, result
    return result[1]


def config_of(folder):
    return from_dict(Config, json.loads((folder / "config.json").read_text())["config"])


def files(folder):
    """The names of what a run left."""
    return {re.sub(r"-[0-9a-f]{12}\.", "-DIGEST.", path.name) for path in folder.iterdir()}


def measured(run, method, out, *data):
    """What `cyctr evaluate` says of a network on fold 0."""
    usual = ("--episodes", 2, "--pictures", 0, "--folds", 0)
    assert_well(run("evaluate", "--method", method, "--data", *data, *usual, "--output", out))
    return Results.load(out / "results.json")


@pytest.mark.usefixtures("few_textures")
def test_a_network_is_trained_on_synthetic_classes_and_evaluated(run, tmp_path):
    small = [text for pair in SMALL.items() for text in pair]
    output = assert_well(run("train", "--data", "synthetic", *small, "--output", tmp_path / "deep" / "out"))
    assert files(tmp_path / "deep" / "out") == FILES
    assert "synthetic, fold 0: 6 classes to learn from, 36 images" in output
    assert "watched on the test classes" in output
    assert all(str(tmp_path / "deep" / "out" / name) in output for name in (LAST, CURVES))
    found = measured(run, tmp_path / "deep" / "out" / LAST, tmp_path / "results", "synthetic")
    assert {row.category for row in found.runs[RunKey(0, 1, 0)].rows.values()} <= {0, 1}
    assert found.conditions["method"]["name"] == "last"


def test_a_network_is_trained_on_a_folder_of_ones_own_and_evaluated_on_the_classes_it_has_not_seen(
    train, run, things, tmp_path
):
    output = assert_well(train("--test-classes", "thing1"))
    assert "folder, fold 0: 3 classes to learn from, 12 images" in output
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["data"]["train"] == ["thing0", "thing2", "thing3"]
    assert about["data"]["test"] == ["thing1"]
    assert describe_checkpoint(tmp_path / "out" / LAST) == (config_of(tmp_path / "out"), about["data"])
    found = measured(run, tmp_path / "out" / LAST, tmp_path / "results", things, "--test-classes", "thing1")
    assert {row.category for row in found.runs[RunKey(0, 1, 0)].rows.values()} == {1}
    assert files(tmp_path / "out") == FILES


def test_by_default_every_class_and_image_is_learned_from(train, run, things, tmp_path):
    output = assert_well(train())
    assert "4 classes to learn from, 16 images" in output
    assert "not validated: no class is held out; --training.hold-out N" in output
    assert json.loads((tmp_path / "out" / "config.json").read_text())["data"]["train"] == [f"thing{i}" for i in range(4)]
    assert measured(run, tmp_path / "out" / LAST, tmp_path / "results", things).runs[RunKey(0, 1, 0)].rows


def test_classes_are_held_out_where_that_is_asked_for(train, tmp_path):
    output = assert_well(train("--training.hold-out", 1))
    assert "validated on 1 held-out training class\n" in output
    about = json.loads((tmp_path / "out" / "config.json").read_text())["data"]
    score = max(line["validation"]["miou"] for line in timeless(tmp_path / "out") if "validation" in line)
    best = f"best: {tmp_path / 'out' / 'best.safetensors'}, mIoU {100 * score:.1f} on 1 held-out class"
    assert f"{best} ({about['validation'][0]})\n" in output
    assert len(about["validation"]) == 1
    assert sorted(about["train"] + about["validation"]) == [f"thing{i}" for i in range(4)]
    assert (tmp_path / "out" / "best.safetensors").exists()


def test_the_command_that_measures_a_network_works_as_it_is_printed(run, tmp_path):
    """Though the folder has a name that a shell would take apart."""
    data = photos(tmp_path / "my things", classes=3, each=2)
    dealt = ("--class-folds", 3, "--split-seed", 1, "--fold", 1)
    output = assert_well(run(*arguments(data, tmp_path / "the run", *dealt)))
    (line,) = re.findall(r"^measure it: (.*)$", output, re.M)
    cyctr, *words = shlex.split(line)
    assert cyctr == "cyctr"
    assert_well(run(*words, "--episodes", 1, "--pictures", 0))
    about = json.loads((tmp_path / "the run" / "config.json").read_text())["data"]
    found = Results.load(tmp_path / "the run" / "test" / "results.json")
    assert {found.classes[row.category] for row in found.runs[RunKey(1, 1, 0)].rows.values()} == set(about["test"])


def test_where_nothing_was_kept_for_a_test_no_command_measures(train):
    assert "measure it" not in assert_well(train())


CHANGED = {  # each setting, as text and as a value that no preset has
    "model.dim": ("64", 64),
    "model.mixer": ("residual", "residual"),
    "model.reduction_dropout": ("0.25", 0.25),
    "model.familiar": ("7", 7),
    "model.auxiliary": ("no", False),
    "model.unbiased": ("yes", True),
    "model.own_prototype": ("on", True),
    "model.plain_averages": ("1", True),
    "model.deep_auxiliary": ("true", True),
    "model.backbone.name": ("resnet18", "resnet18"),
    "model.backbone.weights": ("mobilenetv2", "mobilenetv2"),
    "model.backbone.taps": ("1, 2, 3", (1, 2, 3)),
    "model.backbone.own_strides": ("yes", True),
    "model.backbone.blocks": ("yes", True),
    "model.backbone.deep_stem": ("true", True),
    "model.backbone.stride_in_1x1": ("true", True),
    "model.backbone.dilate_first": ("false", False),
    "model.backbone.mean": ("0.1,0.2,0.3", (0.1, 0.2, 0.3)),
    "model.backbone.std": ("1,2,3", (1.0, 2.0, 3.0)),
    "model.backbone.scale": ("0.5,1,2", (0.5, 1.0, 2.0)),
    "model.backbone.offset": ("-4", -4),
    "model.backbone.tuned": ("no", False),
    "model.backbone.trained": ("2", 2),
    "model.backbone.last_relu": ("no", False),
    "model.prior.votes": ("high", ("high",)),
    "model.prior.temperature": ("0.5", 0.5),
    "model.sampling.tokens_per_shot": ("1e2", 100),
    "model.sampling.training_scale": ("0.5,2", (0.5, 2.0)),
    "model.sampling.training_scale_many": ("0.5,3", (0.5, 3.0)),
    "model.sampling.draw_per_layer": ("on", True),
    "model.sampling.nearest_pixel": ("on", True),
    "model.sampling.draw_ignored": ("on", True),
    "model.sampling.beyond_half": ("on", True),
    "model.sampling.release_labels": ("on", True),
    "model.sampling.seed": ("7", 7),
    "model.encoder.layers": ("3", 3),
    "model.encoder.heads": ("4", 4),
    "model.encoder.points": ("5", 5),
    "model.encoder.mlp_ratio": ("2", 2.0),
    "model.encoder.dropout": ("0.3", 0.3),
    "model.encoder.cross": ("vanilla", "vanilla"),
    "model.encoder.matching": ("dot", "dot"),
    "model.encoder.output_projection": ("off", False),
    "model.encoder.flag_dropout": ("0.2", 0.2),
    "model.encoder.value_dropout": ("0.2", 0.2),
    "model.encoder.branch_dropout": ("0.2", 0.2),
    "model.encoder.unprojected": ("on", True),
    "model.encoder.zero_padding": ("on", True),
    "model.encoder.unpadded_coordinates": ("on", True),
    "model.head.refine": ("on", True),
    "model.head.dropout": ("0.4", 0.4),
    "loss.auxiliary_weight": ("0.5", 0.5),
    "loss.both_channels": ("1", True),
    "loss.clamp": ("yes", True),
    "optimizer.convolutions": ("sgd", "sgd"),
    "optimizer.convolution_rate": ("1e-5", 1e-5),
    "optimizer.rate_multiplier": ("2", 2.0),
    "optimizer.momentum": ("0.5", 0.5),
    "optimizer.convolution_decay": ("0.5", 0.5),
    "optimizer.decay": ("poly", "poly"),
    "optimizer.poly_power": ("2", 2.0),
    "optimizer.backbone_rate": ("1e-5", 1e-5),
    "optimizer.transformer_rate": ("1e-6", 1e-6),
    "optimizer.transformer_decay": ("0.25", 0.25),
    "optimizer.transformer_falls": ("false", False),
    "optimizer.decay_biases": ("False", False),
    "optimizer.decay_norms": ("True", True),
    "optimizer.warm_up": ("0.5", 0.5),
    "optimizer.clip": ("0.5", 0.5),
    "optimizer.average": ("0.5", 0.5),
    "optimizer.drops": ("0.25,0.5", (0.25, 0.5)),
    "optimizer.backbone": ("sgd", "sgd"),
    "optimizer.backbone_decay": ("0.5", 0.5),
    "training.episodes": ("1_200", 1200),
    "training.epochs": ("7", 7),
    "training.batch": ("8", 8),
    "training.shots": ("3", 3),
    "training.rotate": ("no", False),
    "training.order": ("pairs", "pairs"),
    "training.drop_novel": ("yes", True),
    "training.latent_classes": ("5", 5),
    "training.latent_share": ("0.5", 0.5),
    "training.latent_unsure": ("0.25", 0.25),
    "training.hold_out": ("2", 2),
    "training.seed": ("9", 9),
    "training.augmentation.size": ("81", 81),
    "training.augmentation.scale": ("1,2", (1.0, 2.0)),
    "training.augmentation.rotation": ("45", 45.0),
    "training.augmentation.blur": ("0.25", 0.25),
    "training.augmentation.flip": ("0.25", 0.25),
    "training.augmentation.longest": ("none", None),
}


class CaughtError(TrainingError):
    """Nothing is trained."""


class Asked(NamedTuple):
    """What the command would train."""

    config: Config
    options: Options
    dataset: Dataset
    fold: int


@pytest.fixture
def asked(run, things, tmp_path, monkeypatch):
    """What the command makes of its arguments, carried out by nobody."""
    caught = []

    def instead(plan, progress, mining):
        caught.append(Asked(plan.config, plan.options, plan.dataset, plan.fold))
        raise CaughtError("caught")

    monkeypatch.setattr("cyctr.training.run.prepare", instead)

    def main(*given):
        assert_one_line(run("train", "--data", things, "--output", tmp_path / "out", *given), "caught")
        return caught.pop()

    return main


def test_every_setting_is_an_option_that_changes_it_and_nothing_else(asked):
    assert set(CHANGED) == {name for name, _, _ in settings(Config)}
    base = asked().config
    assert base == PRESETS["best"]
    for name, (text, value) in CHANGED.items():
        assert value_at(base, name) != value, name
        config = asked(f"--{name.replace('_', '-')}", text).config
        assert value_at(config, name) == value, name
        assert [other for other, _, _ in settings(Config) if value_at(config, other) != value_at(base, other)] == [name]


def test_options_may_be_spelled_with_underscores(asked):
    asked_for = asked("--training.hold_out", 2, "--model.backbone.stride_in_1x1=yes", "--max_minutes", 3)
    assert asked_for.config.training.hold_out == 2
    assert asked_for.config.model.backbone.stride_in_1x1
    assert asked_for.options.max_minutes == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_the_recipe_is_the_preset_that_is_asked_for_on_weights_that_everyone_can_get(preset, asked):
    named = PRESETS[preset].model.backbone
    backbone = named if named.weights else BackboneConfig("resnet50", "resnet50-keras")
    expected = replace(PRESETS[preset], model=replace(PRESETS[preset].model, backbone=backbone))
    assert asked("--preset", preset).config == expected
    assert asked("--preset", preset, "--weights", "mobilenetv2").config.model.backbone.weights == "mobilenetv2"
    of_a_file = asked("--preset", preset, "--model.backbone.weights", "mine.pth").config.model.backbone
    assert of_a_file == replace(named, weights="mine.pth")  # for its own backbone, the release's deep stem among them


def test_where_classes_are_named_for_the_test_the_others_are_learned_from(asked):
    for options, train, test in (
        ((), [0, 1, 2, 3], []),
        (("--test-classes", "thing1,thing2"), [0, 3], [1, 2]),
        (("--class-folds", 4, "--fold", 3), [0, 1, 2, 3], []),
    ):
        found = asked(*options)
        sides = found.dataset.fold(found.fold)
        if "--class-folds" in options:
            assert (found.fold, len(sides.train), len(sides.test)) == (3, 3, 1)
        else:
            assert (found.fold, list(sides.train), list(sides.test)) == (0, train, test)
    found = asked("--class-folds", 2)
    assert (found.fold, len(found.dataset.folds)) == (0, 2)


def test_a_benchmark_is_learned_from_without_the_test_classes_of_its_first_fold(asked):
    found = asked("--data", "synthetic")
    assert found.fold == 0
    assert found.dataset.fold(0).test


def test_options_that_change_nothing_of_what_is_learned_reach_the_run(asked):
    plain = asked().options
    assert (plain.half, plain.compile, plain.resident, plain.accumulate) == (False, None, None, 1)
    assert plain.validate_every is None  # a tenth of the schedule, whose length the data may decide
    given = {"--precision": "bfloat16", "--compile": "no", "--resident": "yes", "--workers": 3, "--accumulate": 2}
    given |= {"--max-minutes": 7, "--save-minutes": 0.5, "--keep-every": 100, "--validate-every": 0, "--validation-episodes": 9}
    options = asked(*(text for pair in given.items() for text in pair), "--deterministic", "--no-tensorboard").options
    assert (options.half, options.compile, options.resident, options.workers, options.accumulate) == (True, False, True, 3, 2)
    assert (options.max_minutes, options.save_minutes, options.keep_every, options.validate_every) == (7, 0.5, 100, 0)
    assert (options.validation_episodes, options.deterministic, options.tensorboard) == (9, True, False)


def test_the_help_explains_every_setting_in_80_columns():
    common = CliRunner().invoke(cli.app, ["train", "-h"]).output
    assert "--resume" in common and "--model.dim" not in common
    result = CliRunner().invoke(cli.app, ["train", "--help-all"])
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    text = " ".join(result.output.split()).replace("- ", "-")  # a word may be broken after its hyphen
    for name, _, help in settings(Config):
        assert len(help) > 10
        may_be = "|".join(choices(Config, name)) or "X"
        assert f"--{name.replace('_', '-')} {may_be} {help} [".replace("- ", "-") in text, name
    assert "--model.encoder.cross none|vanilla|predicted|cycle_foreground|cycle" in text
    assert "--model.prior.votes mid|high" in text
    assert "so K + 1 images make K + 1 episodes [paper: false, released: false, best: true]" in text
    assert "K: support images of an episode [default: 1]" in text
    for option in ("--data", "--output", "--fold", "--resume", "--force", "--max-minutes", "--validation-episodes", "--kind"):
        assert f" {option} " in text, option
    assert "[default: 0 where the dataset has test classes, else all]" in text
    assert "[default: the preset's, or resnet50-keras]" in text
    assert "[default: best; with --resume the run's own]" in text
    assert f"change: {', '.join(PRESETS)}." in text
    assert result.output.index("\nData:") < result.output.index("\nSettings of model:")


def test_settings_are_written_down_and_travel_with_the_network(train, tmp_path):
    given = {name: CHANGED[name] for name in CHANGED if name.startswith(("optimizer.", "loss.", "training.augmentation."))}
    given |= {name: CHANGED[name] for name in ("model.encoder.cross", "model.prior.votes", "training.seed", "training.rotate")}
    options = [text for name, (text, _) in given.items() for text in (f"--{name.replace('_', '-')}", text)]
    assert_well(train(*options))
    written = config_of(tmp_path / "out")
    for name, (_, value) in given.items():
        assert value_at(written, name) == value, name
    assert load_checkpoint(tmp_path / "out" / LAST)[1] == written


BAD = [
    (("--fold", "1", "--test-classes", "thing0"), ("fold is 1", "fold 0 only")),
    (("--fold", "2", "--class-folds", "2"), ("fold is 2", "folds 0 to 1")),
    (
        ("--fold", "all", "--test-classes", "thing1"),
        ("--fold all learns from every class", "--test-classes", "leave one of them out"),
    ),
    (("--fold", "all", "--class-folds", "2"), ("--fold all learns from every class", "--class-folds", "leave one of them out")),
    (("--fold", "x", "--class-folds", "2"), ("fold is 'x'", "a number from 0 to 1, or all")),
    (("--fold", "1.0"), ("fold is '1.0'",)),
    (("--fold", "-1"), ("fold is '-1'",)),
    (("--fold", "²"), ("fold is '²'",)),
    (("--fold", ""), ("fold is ''",)),
    (("--fold", "0"), ("no train classes", "leave the others to learn from")),
    (("--fold", "0", "--test-classes", "thing9"), ("class 'thing9' is not in the dataset", "thing0, thing1")),
    (("--fold", "0", "--test-classes", ","), ("test_classes is empty",)),
    (("--fold", "0", "--test-classes", "thing0,thing1,thing2,thing3"), ("no train classes", "leave the others to learn from")),
    (("--class-folds", "9"), ("folds is 9 for 4 classes",)),
    (("--training.shots", "4", "--training.batch", "5"), ("class 'thing0' has 4 images", "a 4-shot episode needs 5")),
    (("--training.shots", "4"), ("a 4-shot episode needs 5", "ask for less", "cyctr data check")),
    (("--training.shots", "2"), ("training.batch is 4 and training.rotate makes 3", "a multiple of 3")),
    (("--training.shots", "0"), ("training.shots is 0", "1 to 65,536")),
    (("--training.hold-out", "4"), ("training.hold_out is 4", "4 training classes: expected 0 to 3")),
    (("--training.hold-out", "-1"), ("training.hold_out is -1",)),
    (("--preset", "papre"), ("preset is 'papre'", "paper, released, best")),
    (("--weights", ""), ("weights is ''", "cyctr weights list")),
    (("--weights", "resnet51"), ("weights is 'resnet51'", "cyctr weights list")),
    (("--model.backbone.weights", "nowhere.pt"), ("backbone.weights is 'nowhere.pt'",)),
    (("--device", "tpu"), ("device is 'tpu'",)),
    (("--precision", "half"), ("--precision is 'half'", "auto, bfloat16, float32")),
    (("--compile", "maybe"), ("--compile is 'maybe'", "auto, yes, no")),
    (("--resident", "maybe"), ("--resident is 'maybe'",)),
    (("--accumulate", "0"), ("--accumulate",)),
    (("--accumulate", "3"), ("2 groups of 2 images", "3 accumulated parts", "training.batch")),
    (("--max-minutes", "-1"), ("--max-minutes",)),
    (("--max-minutes", "soon"), ("--max-minutes", "valid number")),
    (("--validation-episodes", "0"), ("--validation-episodes",)),
    (("--training.batch", "four"), ("training.batch is 'four'; expected a number",)),
    (("--training.batch", "2.5"), ("training.batch is '2.5'; expected a whole number",)),
    (("--training.batch", ""), ("training.batch is ''",)),
    (("--training.batch", "inf"), ("training.batch is 'inf'",)),
    (("--training.seed", "nan"), ("training.seed is 'nan'",)),
    (("--training.batch", "0"), ("training.batch is 0", "1 to 65,536")),
    (("--optimizer.transformer-rate", "1e38"), ("optimizer.transformer_rate is 1e+38", "0 to 1,000,000")),
    (("--accumulate", "3"), ("do not share equally; change training.batch, or accumulate (now 3)",)),
    (("--output", ""), ("--output is empty",)),
    (("--output=",), ("--output is empty",)),
    (("--training.batch", "3"), ("training.batch is 3", "a multiple of 2")),
    (("--training.episodes", "-5"), ("training.episodes is -5",)),
    (("--training.rotate", "perhaps"), ("training.rotate is 'perhaps'; expected true or false",)),
    (("--training.order", "random"), ("order is 'random'", "'pairs'")),
    (("--training.augmentation.scale", "1"), ("training.augmentation.scale is '1'", "2 values with commas")),
    (("--training.augmentation.scale", "2,1"), ("augmentation.scale is (2.0, 1.0)", "LOW <= HIGH")),
    (("--training.augmentation.size", "3"), ("augmentation.size is 3",)),
    (("--optimizer.clip", "nan"), ("optimizer.clip is nan",)),
    (("--optimizer.average", "1"), ("optimizer.average is 1.0",)),
    (("--model.encoder.heads", "3"), ("model.dim is 16 and model.encoder.heads is 3",)),
    (("--model.mixer", "blender"), ("mixer is 'blender'", "residual")),
    (("--data", "nowhere"), ("nowhere: no such folder",)),
    (("--kind", "cocoa"), ("kind is 'cocoa'",)),
    (("--year", "2014"), ("year is 2014", "only coco takes it")),
    (("--training.rotate",), ("--training.rotate", "argument")),
    (("--training.hold-outs", "1"), ("No such option", "--training.hold-out")),
    (("--model.colour", "red"), ("No such option",)),
    (("--model.encoder.mlp-ratio", "inf"), ("encoder.mlp_ratio is inf", "a positive number")),
    (("--model.sampling.training-scale", "1,inf"), ("sampling.training_scale is (1.0, inf)",)),
    (("--model.encoder.cross", "x"), ("cyctr: model.encoder.cross is 'x'; expected one of 'none', 'vanilla', ",)),
    (("--model.backbone.name", "resnet18"), ("backbone.weights is None",)),
    (("--resume",), ("out/config.json: no such file, so there is no run to resume", "leave resume out", "(--resume)")),
    (("--resume", "--force"), ("--resume", "--force", "one of them")),
    (("--test-classes", "thing0,thing1,thing2,thing3"), ("no train classes", "leave the others to learn from")),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[" ".join(options) for options, _ in BAD])
def test_a_wrong_value_is_one_line_and_nothing_is_written(options, words, train, tmp_path):
    assert_one_line(train(*options, output="deep/out"), *words)
    assert not list(tmp_path.iterdir())


def test_a_refusal_leaves_a_folder_of_the_user_where_it_is(train, tmp_path):
    (tmp_path / "deep" / "out").mkdir(parents=True)
    assert_one_line(train("--training.hold-out", 4, output="deep/out"), "training.hold_out is 4")
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "out"]


def test_the_paper_s_recipe_on_another_backbone_needs_its_weights(run, things, tmp_path):
    small = [text for pair in SMALL.items() if pair[0] != "--weights" for text in pair]
    command = ("train", "--data", things, "--output", tmp_path / "out", *small, "--preset", "paper")
    assert_one_line(run(*command, "--model.backbone.name", "resnet18"), "made for resnet50, but backbone.name is 'resnet18'")
    assert_one_line(run(*command, "--model.backbone.weights", "none"), "backbone.weights is None")
    assert not list(tmp_path.iterdir())


def test_several_processes_that_nobody_started_are_one_line(train, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_one_line(train(), "WORLD_SIZE is '2'", "start them with torchrun, or unset WORLD_SIZE")
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_there_is_one_line(train, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_one_line(train("--device", "cuda"), "torch sees no CUDA here; use 'cpu'", "(--device)")


def test_a_run_that_is_there_is_not_written_over_unasked(train, tmp_path):
    assert_well(train("--training.episodes", 4))
    before = state(tmp_path / "out")
    assert_one_line(train(), "out: holds a run already", "--resume", "--force", "--output")
    assert state(tmp_path / "out") == before

    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "best.safetensors").write_text("of the run before")
    assert_well(train("--force", "--training.seed", 5))
    assert config_of(tmp_path / "out").training.seed == 5
    assert load_checkpoint(tmp_path / "out" / LAST)[1].training.seed == 5
    assert [line["episodes"] for line in timeless(tmp_path / "out")][-1] == 16
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "out" / "best.safetensors").exists()


@pytest.mark.parametrize("name", ["best.safetensors", "at-000000004.safetensors"])
def test_files_of_the_user_in_the_output_folder_are_not_removed_unasked(name, train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    for options in ((), ("--force",)):
        assert_one_line(train(*options), f"out: holds what no run has written ({name})", "choose another output", "(--output)")
    assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [(name, "mine")]


def test_files_of_the_user_of_other_names_are_left_alone(train, tmp_path):
    for name in ("at-home.safetensors", "mine.png"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    assert_well(train())
    assert_well(train("--force"))
    assert all((tmp_path / "out" / name).read_text() == "mine" for name in ("at-home.safetensors", "mine.png"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--training.seed", 3), ("config.training.seed 0 / 3",)),
        (
            ("--optimizer.clip", 2, "--model.encoder.points", 3),
            ("config.optimizer.clip 1.0 / 2.0", "config.model.encoder.points 9 / 3"),
        ),
        (("--fold", 0, "--test-classes", "thing2"), ("data.name", "data.train")),
    ],
    ids=["seed", "two settings", "data"],
)
def test_a_run_of_other_settings_is_not_resumed(options, words, train, tmp_path):
    assert_well(train("--max-minutes", 0))
    before = state(tmp_path / "out")
    assert_one_line(train("--resume", *options), "made with other settings", "give the same options", *words)
    assert state(tmp_path / "out") == before


@pytest.mark.parametrize(
    "data", [(), ("--class-folds", 2, "--fold", 1), ("--test-classes", "thing1")], ids=["all", "a fold", "test classes"]
)
def test_a_run_is_resumed_with_its_own_settings_where_none_are_given(data, train, run, things, tmp_path):
    assert_well(train("--max-minutes", 0, *data))
    again = [option for option in data if option not in ("--fold", 1)]
    assert "going on after 4 episodes" in assert_well(
        run("train", "--resume", "--data", things, "--output", tmp_path / "out", *again, "--validation-episodes", 3)
    )
    assert_well(train(*data, output="whole"))
    assert_same_network(tmp_path / "out", tmp_path / "whole")


def test_a_run_is_resumed_with_what_else_changes_its_bits_and_files(train, run, things, tmp_path):
    options = ("--accumulate", 2, "--keep-every", 8, "--validate-every", 8, "--training.hold-out", 2)
    assert_well(train("--max-minutes", 0, *options))
    resume = ("train", "--resume", "--data", things, "--output", tmp_path / "out")
    output = assert_well(run(*resume))
    assert "going on after 4 episodes" in output and "note:" not in output
    assert_well(train(*options, output="whole"))
    assert_same_network(tmp_path / "out", tmp_path / "whole")
    name = "at-000000008.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_will_change_the_bits_of_a_run_that_is_resumed_is_told(train, run, things, tmp_path):
    assert_well(train("--max-minutes", 0, "--accumulate", 2))
    resume = ("train", "--resume", "--data", things, "--output", tmp_path / "out")
    output = assert_well(run(*resume, "--accumulate", 1, "--precision", "bfloat16"))
    assert "note: until now precision float32, now bfloat16; accumulate 2, now 1: the network will be another" in output
    sessions = json.loads((tmp_path / "out" / "config.json").read_text())["sessions"]
    assert [session["accumulate"] for session in sessions] == [2, 1]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")])
def test_a_machine_whose_memory_does_not_suffice_is_told_what_to_lower(error, train, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("cyctr.training.loop.Trainer.losses", fail)
    words = (
        "this machine's memory does not suffice for 4 episodes at a time",
        "accumulate (now 1)",
        "size (now 65)",
        "(--accumulate, --",
    )
    assert_one_line(train(), *words)


def test_files_that_may_be_somebody_elses_are_not_replaced(train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"my": "settings"}')
    before = state(tmp_path / "out")
    assert_one_line(train("--force"), "out: holds what no run has written (config.json)", "choose another output", "(--output)")
    assert state(tmp_path / "out") == before


def test_a_setting_that_differs_from_those_of_the_run_is_named_alone(train, run, things, tmp_path):
    assert_well(train("--max-minutes", 0))
    resume = ("train", "--resume", "--data", things, "--output", tmp_path / "out")
    result = run(*resume, "--training.seed", 3)
    assert_one_line(result, "(there / here: config.training.seed 0 / 3);")
    assert_one_line(run(*resume, "--preset", "paper"), "config.training.rotate true / false")


@pytest.mark.parametrize("damage", [lambda values: values.pop("config"), lambda values: values["config"].update(moon=1)])
def test_a_run_whose_settings_cannot_be_read_is_not_resumed(damage, train, run, things, tmp_path):
    assert_well(train("--max-minutes", 0))
    path = tmp_path / "out" / "config.json"
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    assert_one_line(
        run("train", "--resume", "--data", things, "--output", tmp_path / "out"),
        f"{path}: ",
        "begin again in another output",
        "(--output)",
    )


def test_a_run_of_which_nothing_was_saved_begins_anew_and_says_so(train, tmp_path):
    assert_well(train("--max-minutes", 0))
    for name in (STATE, LAST):
        (tmp_path / "out" / name).unlink()
    assert "nothing was saved before the run ended: it begins again" in assert_well(train("--resume"))
    assert_well(train(output="whole"))
    assert_same_network(tmp_path / "out", tmp_path / "whole")


def test_a_damaged_state_is_one_line(train, tmp_path):
    assert_well(train("--max-minutes", 0))
    path = tmp_path / "out" / STATE
    path.write_bytes(path.read_bytes()[:1000])
    assert_one_line(train("--resume"), "state.safetensors: not a whole state of a run", "--output")


def test_an_output_that_cannot_be_written_is_one_line(train, tmp_path):
    (tmp_path / "occupied").write_text("mine")
    for output in ("occupied", "occupied/deep"):
        assert_one_line(train(output=output), "occupied", "cannot be written", "(--output)")
    assert (tmp_path / "occupied").read_text() == "mine"
    assert_one_line(train(output="x" * 300), "File name too long")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_output_is_one_line(train, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    assert_one_line(train(), "cannot be written (Permission denied)", "choose another")


def test_a_full_disk_is_one_line(train, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert_one_line(train(), "cannot be written (No space left on device); nothing was saved yet", "begin again")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_an_output_that_another_process_writes_is_refused(train, tmp_path):
    with locked(tmp_path / "out" / ".run.lock") as held:
        assert held
        result = train()
    assert_one_line(
        result, f"{tmp_path / 'out'}: another process is writing it; wait for it, or choose another folder (--output)"
    )
    assert "--part" not in result[2]
    assert_well(train())


LOST = r"Dice 0\.\d+, of supports 0\.\d+  "


def test_a_run_says_after_a_few_steps_how_long_it_will_take(train):
    code, output, error = train()
    assert code == 0
    assert re.search(rf"  12 of 16 episodes  ({LOST})?\d+\.\d episodes/s  \d+ s left\n", error), error
    assert "left" not in output


def test_a_run_says_how_long_it_will_take_and_what_it_lost_now_and_then(train, monkeypatch):
    monkeypatch.setattr("cyctr.cli.watch._TELL_SECONDS", 0)
    monkeypatch.setattr("cyctr.training.loop._LOG_STEPS", 1)
    error = train()[2]
    assert re.search(rf"  12 of 16 episodes  {LOST}\d+\.\d episodes/s  \d+ s left\n", error), error
    assert re.search(rf"  16 of 16 episodes  {LOST}\d+\.\d episodes/s  0 s left\n", error), error


def test_a_run_without_the_auxiliary_loss_tells_of_one_loss_alone_and_counts_whole_steps(train, monkeypatch):
    monkeypatch.setattr("cyctr.cli.watch._TELL_SECONDS", 0)
    monkeypatch.setattr("cyctr.training.loop._LOG_STEPS", 1)
    _, output, error = train("--model.auxiliary", "false", "--training.episodes", 15)
    assert "16 episodes, 4 a step" in output
    assert re.search(r"  16 of 16 episodes  Dice 0\.\d+  \d+\.\d episodes/s  0 s left\n", error), error


def test_a_long_run_says_so_once_and_what_would_make_it_shorter(train, monkeypatch):
    monkeypatch.setattr("cyctr.cli.watch._LONG", 0)
    monkeypatch.setattr("cyctr.cli.watch._TELL_SECONDS", 0)
    error = train("--training.episodes", 24)[2]
    assert error.count("note: at this speed it takes ") == 1
    assert " more; lower --training.episodes (now 24) or --training.augmentation.size (now 65), or use a GPU" in error


@pytest.mark.parametrize(
    ("saved", "words"), [(False, "nothing was saved yet"), (True, "--resume goes on from what was saved before")]
)
def test_a_second_signal_ends_the_run_at_once_and_says_what_is_left(saved, words, tmp_path, capsys):
    if saved:
        (tmp_path / STATE).write_text("")
    with cli.train._signals(RunFolder(tmp_path)) as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        assert "once more stops at once" in capsys.readouterr().err
        with pytest.raises(SystemExit) as stop:
            signal.raise_signal(signal.SIGTERM)
    assert stop.value.code == 143
    assert f"stopped at once; {words}" in capsys.readouterr().err


def test_looking_for_latent_classes_is_told_where_there_is_no_terminal(train, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["cyctr.cli.options"], "_TELL_SECONDS", 0)
    latent = ("--training.latent-classes", 2, "--max-minutes", 0)
    code, _, error = train(*latent)
    assert code == 0
    assert re.search(r"^looking for latent classes: 32 of 32$", error, re.M), error
    assert "looking for latent classes" not in train("--resume", *latent)[2]


def test_scores_of_validations_are_told(train, tmp_path):
    _, _, error = train("--training.hold-out", 1, "--validate-every", 8)
    told = re.findall(r"(\d+) episodes  mIoU ([\d.]+)  FB-IoU ([\d.]+)  \(validation classes\)", error)
    found = [(line["episodes"], line["validation"]) for line in timeless(tmp_path / "out") if "validation" in line]
    assert [(int(episodes), miou, fb) for episodes, miou, fb in told] == [
        (episodes, f"{100 * one['miou']:.1f}", f"{100 * one['fb_iou']:.1f}") for episodes, one in found
    ]
    assert [episodes for episodes, _ in found] == [8, 16]


def assert_same_network(one, other):
    assert config_of(one) == config_of(other)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in (LAST, STATE))


def test_a_run_whose_time_is_up_is_resumed_to_the_same_network(train, tmp_path):
    output = assert_well(train("--max-minutes", 0))
    assert "time is up after 4 of 16 episodes; go on with --resume" in output
    assert "going on after 4 episodes" in assert_well(train("--resume"))
    assert_well(train(output="whole"))
    assert_same_network(tmp_path / "out", tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is_and_says_so(train, tmp_path):
    assert_well(train())
    before = state(tmp_path / "out")
    assert "nothing is left to resume, and nothing changes" in assert_well(train("--resume"))
    assert state(tmp_path / "out") == before


LONG = {"--training.episodes": 160}


_WHOLE = []


@pytest.fixture
def whole(run, things, tmp_path_factory):
    """A longer run in one go, made once."""
    if not _WHOLE:
        out = tmp_path_factory.mktemp("whole") / "out"
        assert_well(run(*arguments(things, out, "--no-tensorboard", **LONG)))
        _WHOLE.append(out)
    return _WHOLE[0]


def begin(things, out):
    """`cyctr train` in a process of its own, which keeps its state at every step."""
    command = [sys.executable, "-m", "cyctr", *arguments(things, out, "--no-tensorboard", "--save-minutes", 0, **LONG)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_states(process, out, steps=3):
    """Returns when the state of so many steps was kept."""
    while process.poll() is None:
        if (out / STATE).exists() and len((out / "metrics.jsonl").read_text().splitlines()) >= steps:
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_a_run_that_is_killed_is_resumed_to_the_same_network(train, things, whole, tmp_path):
    process = begin(things, tmp_path / "out")
    try:
        wait_for_states(process, tmp_path / "out")
    finally:
        process.kill()
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    done = RunFolder(tmp_path / "out").load_state()[1].step
    assert 1 <= done < 40
    code, output, _ = train("--resume", "--no-tensorboard", *(text for pair in LONG.items() for text in pair))
    assert code == 0
    assert f"going on after {4 * done} episodes" in output
    assert_same_network(tmp_path / "out", whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_stop_saves_and_is_resumed_to_the_same_network(number, code, train, things, whole, tmp_path):
    long = ("--no-tensorboard", *(text for pair in LONG.items() for text in pair))
    process = begin(things, tmp_path / "out")
    try:
        assert "4 classes to learn from" in process.stdout.readline()  # though it is no terminal
        wait_for_states(process, tmp_path / "out")
        for again in ("--force", "--resume"):
            assert_one_line(train(again, *long), "another process is writing it")
        assert_one_line(train(*long), "holds a run already")
        process.send_signal(number)
        output, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code
    assert "stopping after this step, and saving" in error
    assert "Traceback" not in error
    done = RunFolder(tmp_path / "out").load_state()[1].step
    assert f"stopped after {4 * done} of 160 episodes; go on with --resume" in output
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]

    assert_well(train("--resume", *long))
    assert_same_network(tmp_path / "out", whole)
