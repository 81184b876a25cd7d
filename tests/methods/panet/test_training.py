"""PANet from its recipe to masks: what any method can, it can."""

import json
from dataclasses import replace

import pytest
import torch
from learning import QUIET, begun, changed, go, photos, resumed, same_bits, state_of, textures, timeless, trained
from safetensors.torch import load_file

import cyctr
from cyctr.checkpoint import load_checkpoint
from cyctr.config import BackboneConfig
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.methods.panet.config import PAPER
from cyctr.methods.panet.network import PANet
from cyctr.training.run_folder import LAST

TINY = BackboneConfig("tiny", taps=(-1,), trained=2, last_relu=False)
SHORT = changed(PAPER, model={"backbone": TINY}, training={"episodes": 24, "batch": 4})
SHORT = changed(SHORT, training={"augmentation": replace(PAPER.training.augmentation, size=65)}, optimizer={"average": 0.9})
FEW = {"validation_episodes": QUIET.validation_episodes, "tensorboard": False}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_short_training_beats_the_untrained_network_on_classes_it_has_never_seen(tmp_path):
    config = changed(
        SHORT, optimizer={"backbone_rate": 0.02, "average": 0.0}, training={"hold_out": 8, "episodes": 320, "batch": 8}
    )
    options = replace(QUIET, validation_episodes=60)
    trainer = begun(tmp_path, config, options, dataset=open_synthetic(SyntheticPool(24, 4, 65)), method="panet")
    untrained = trainer.validate()
    go(trainer)
    *lines, validation = timeless(tmp_path)
    assert lines[-1]["query"] < lines[0]["query"]
    assert validation["validation"]["miou"] > 1.1 * untrained["miou"]


@pytest.mark.parametrize(
    "config", [SHORT, changed(SHORT, training={"shots": 2, "rotate": True, "batch": 3})], ids=["one shot", "two shots, rotated"]
)
def test_a_run_that_is_stopped_and_resumed_has_the_bits_of_the_run_in_one_go(config, tmp_path, monkeypatch):
    monkeypatch.setattr("cyctr.training.loop._LOG_STEPS", 1)  # lines that do not depend on when it was stopped
    go(begun(tmp_path / "parts", config, method="panet"), until=1)
    go(resumed(tmp_path / "parts", config, method="panet"), until=4)
    go(resumed(tmp_path / "parts", config, method="panet"))
    trained(tmp_path / "whole", config, method="panet")
    assert same_bits(state_of(tmp_path / "parts"), state_of(tmp_path / "whole"))
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    assert (tmp_path / "parts" / LAST).read_bytes() == (tmp_path / "whole" / LAST).read_bytes()


def test_rates_fall_to_a_tenth_at_the_steps_of_the_recipe(tmp_path):
    trained(tmp_path, SHORT, method="panet")
    told = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert told.keys() >= {"query", "alignment", "backbone_rate"}
    rates = [begun(tmp_path / "other", SHORT, method="panet").optimization.rates(step)["backbone"] for step in range(6)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_a_checkpoint_holds_what_was_learned_of_the_backbone_and_nothing_else(tmp_path):
    trainer = trained(tmp_path, SHORT, method="panet")
    network, config = load_checkpoint(tmp_path / LAST)
    assert isinstance(network, PANet) and config == SHORT
    kept = load_file(tmp_path / LAST)
    assert kept.keys() == {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert same_bits(kept, {name: trainer.optimization.tested[name] for name in kept})
    given = torch.rand(1, 3, 65, 65)
    with torch.no_grad():
        expected = trainer.method().network.backbone(given).maps[-1]
        torch.testing.assert_close(network.backbone(given).maps[-1], expected, rtol=1e-3, atol=1e-3)


def test_a_frozen_backbone_has_nothing_to_learn_and_that_is_said(tmp_path):
    config = changed(SHORT, model={"backbone": replace(TINY, trained=0)})
    with pytest.raises(cyctr.CyctrError, match=r"nothing of PANet learns under this config; set model\.backbone\.trained"):
        begun(tmp_path, config, method="panet")


@pytest.mark.usefixtures("few_textures")
def test_its_checkpoint_is_evaluated_and_segments_photos(run, tmp_path):
    checkpoint = cyctr.train(textures(), tmp_path / "run", config=SHORT, method="panet", device="cpu", **FEW)
    evaluate = ("evaluate", "--data", "synthetic", "--method", checkpoint, "--folds", 0, "--shots", "1,5", "--episodes", 4)
    assert run(*evaluate, "--device", "cpu", "--output", tmp_path / "test")[0] == 0
    results = json.loads((tmp_path / "test" / "results.json").read_text())
    assert [one["shots"] for one in results["runs"]] == [1, 5]

    things = photos(tmp_path / "things", classes=1, each=3)
    segmenter = cyctr.Segmenter.from_pretrained(checkpoint, device="cpu")
    support = segmenter.encode_support(things / "images" / "00.png", things / "masks" / "thing0" / "00.png")
    result = segmenter.segment(things / "images" / "01.png", support)
    assert result.mask.shape == (65, 65)

    queries = photos(tmp_path / "others", classes=1, each=4) / "images"
    folders = ("--support", things, "--query", queries, "--output", tmp_path / "out")
    code, _, error = run("segment", "--model", checkpoint, *folders, "--device", "cpu")
    assert code == 0, error
    assert len(list((tmp_path / "out").rglob("0*.png"))) >= 3


def test_the_command_trains_it_and_goes_on(run, tmp_path):
    settings = {
        "--model.backbone.trained": 2,
        "--training.episodes": 16,
        "--training.batch": 4,
        "--training.augmentation.size": 65,
        "--validation-episodes": 3,
    }
    given = (
        "train",
        "--method",
        "panet",
        "--data",
        photos(tmp_path / "things"),
        "--test-classes",
        "thing0",
        "--weights",
        "tiny",
    )
    given = (*given, *(text for pair in settings.items() for text in pair), "--no-tensorboard", "--device", "cpu")
    assert run(*given, "--output", tmp_path / "parts", "--max-minutes", 0)[0] == 0
    code, output, error = run(*given, "--output", tmp_path / "parts", "--resume")
    assert code == 0, error
    assert "going on after 4 episodes" in output
    assert run(*given, "--output", tmp_path / "whole")[0] == 0
    assert (tmp_path / "parts" / LAST).read_bytes() == (tmp_path / "whole" / LAST).read_bytes()
    found = load_checkpoint(tmp_path / "parts" / LAST)[1]
    assert found.model.backbone == replace(TINY, weights=None)
