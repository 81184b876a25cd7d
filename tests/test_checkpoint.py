import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from making import episode, tiny
from parcels import random_state, truncate
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cyctr.checkpoint import load_checkpoint, save_checkpoint
from cyctr.config import (
    ABLATIONS,
    RELEASED,
    BackboneConfig,
    Config,
    EncoderConfig,
    LossConfig,
    ModelConfig,
    SamplingConfig,
    to_dict,
)
from cyctr.errors import CheckpointError, CyctrError
from cyctr.model import build
from cyctr.weights import load_model


@pytest.fixture
def model():
    """A network that has moved away from its initial values."""
    model = tiny()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.01)
    return model


@pytest.fixture
def config(model):
    return Config(model=model.config)


@pytest.fixture
def saved(tmp_path, model, config):
    path = tmp_path / "run" / "model.safetensors"
    save_checkpoint(path, model, config)
    return path


def rewrite(path, change_state=dict, **metadata):
    """Writes a checkpoint again with something changed."""
    with safe_open(path, "pt") as file:
        before = file.metadata()
    save_file(change_state(load_file(path)), path, {**before, **metadata})


def test_save_and_reload_give_equal_bits(saved, model):
    again, _ = load_checkpoint(saved)
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    task = episode(shots=2)
    with torch.inference_mode():
        assert torch.equal(again(task).logits, model(task).logits)


@pytest.mark.parametrize("row", ["baseline", "self", "predicted", "full"])
def test_every_kind_of_network_survives_a_reload(row, tmp_path):
    model = tiny(replace(ABLATIONS[row], dim=32))
    save_checkpoint(tmp_path / "row.safetensors", model, Config(model=model.config))
    again, config = load_checkpoint(tmp_path / "row.safetensors")
    assert config.model == model.config
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_reloaded_network_is_ready_to_use(saved):
    again, _ = load_checkpoint(saved)
    assert not any(module.training for module in again.modules())


def test_the_frozen_backbone_is_not_in_the_file(saved, model):
    names = set(load_file(saved))
    assert names == {name for name in model.state_dict() if not name.startswith("backbone.")}
    assert any(name.startswith("backbone.") for name in model.state_dict())


def test_the_whole_config_survives_a_reload(tmp_path):
    model = tiny(
        replace(
            RELEASED.model, dim=32, encoder=EncoderConfig(heads=4, points=3), sampling=SamplingConfig(77, (0.5, 2.0), seed=9)
        )
    )
    config = replace(RELEASED, model=model.config, loss=LossConfig(auxiliary_weight=0.25))
    save_checkpoint(tmp_path / "model.safetensors", model, config)
    again, loaded = load_checkpoint(str(tmp_path / "model.safetensors"))
    assert loaded == config
    assert again.config == config.model


def test_a_checkpoint_is_replaced_by_a_later_one(saved, config):
    later = tiny()
    save_checkpoint(saved, later, config)
    again, _ = load_checkpoint(saved)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in later.state_dict().items())
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()], ids=["full", "stop"]
)
def test_a_failed_save_leaves_the_earlier_file_and_no_draft(failure, monkeypatch, saved, model, config):
    def half_a_file(path, content):
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])
        raise failure

    before = saved.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", half_a_file)
    with pytest.raises((OSError, CyctrError, KeyboardInterrupt)):
        save_checkpoint(saved, model, config)
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_bytes() == before


def test_a_config_of_another_network_is_not_saved(tmp_path, model, config):
    other = replace(config, model=replace(config.model, dim=64))
    with pytest.raises(CheckpointError, match="not the configuration this network was built from"):
        save_checkpoint(tmp_path / "model.safetensors", model, other)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"missing\.safetensors: no such file; expected a checkpoint"):
        load_checkpoint(tmp_path / "missing.safetensors")


def test_half_a_file_is_refused(saved):
    truncate(saved)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: not a whole safetensors file \(.+\); copy or train it again"
    ):
        load_checkpoint(saved)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "notes.safetensors"
    path.write_text("to do: train the network")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load_checkpoint(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_of_somebody_else_is_refused(metadata, tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata)
    found = repr((metadata or {}).get("format"))
    with pytest.raises(CheckpointError, match=rf"has format {found}, expected 'cyctr-\d+'; it is no checkpoint of ours"):
        load_checkpoint(path)


def with_unknown_setting(values):
    values["model"]["encoder"]["wings"] = 2
    return json.dumps(values)


def with_bad_value(values):
    values["model"]["encoder"]["layers"] = 0
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_unknown_setting, r"config\.model\.encoder\.wings is not a setting of this version"),
        (with_bad_value, r"encoder\.layers is 0; expected at least 1"),
        (lambda values: "{", "Expecting property name"),
        (lambda values: "[]", r"config is \[\]"),
    ],
    ids=["unknown_setting", "bad_value", "no_json", "no_config"],
)
def test_a_config_that_cannot_be_read_is_an_error_that_names_the_setting(change, message, saved, config):
    rewrite(saved, config=change(to_dict(config)))
    with pytest.raises(
        CheckpointError, match=rf"its config cannot be read \(.*{message}.*\); use the version of cyctr that wrote it"
    ):
        load_checkpoint(saved)


def one_misnamed(state):
    name = min(state)
    return {f"{name}_of_old" if key == name else key: value for key, value in state.items()}


def one_of_another_shape(state):
    return {**state, min(state): torch.ones(3, 5, 7)}


@pytest.mark.parametrize("change", [one_misnamed, one_of_another_shape])
def test_tensors_that_do_not_fit_the_config_are_refused(change, saved):
    rewrite(saved, change)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: does not fit its own config \(.+\)") as error:
        load_checkpoint(saved)
    assert "\n" not in str(error.value)


def test_tensors_of_a_wider_network_are_refused(saved, config):
    wider = replace(config, model=replace(config.model, dim=64))
    rewrite(saved, config=json.dumps(to_dict(wider)))
    with pytest.raises(CheckpointError, match="does not fit its own config"):
        load_checkpoint(saved)


def test_a_place_that_cannot_be_written_is_an_error_of_ours(tmp_path, model, config):
    (tmp_path / "occupied").touch()
    with pytest.raises(CyctrError, match="occupied"):
        save_checkpoint(tmp_path / "occupied" / "model.safetensors", model, config)


def test_an_accelerated_network_is_not_saved(tmp_path):
    model = tiny(ModelConfig(dim=128, encoder=EncoderConfig(points=3))).accelerate()
    with pytest.raises(CheckpointError, match=r"save it before accelerate\(\)"):
        save_checkpoint(tmp_path / "model.safetensors", model, Config(model=model.config))


def test_a_network_on_a_backbone_nobody_could_load_again_is_not_saved(tmp_path):
    config = Config(model=ModelConfig(dim=32, backbone=BackboneConfig("test_resnet")))
    with pytest.raises(CheckpointError, match=r"backbone\.weights is None, so nobody could load this backbone again"):
        save_checkpoint(tmp_path / "model.safetensors", build(config.model), config)


def test_a_checkpoint_knows_the_backbone_it_was_trained_on(tmp_path):
    file, path = tmp_path / "backbone.pth", tmp_path / "model.safetensors"
    config = Config(model=ModelConfig(dim=32, backbone=BackboneConfig("test_resnet", weights=str(file))))
    torch.save(random_state("test_resnet"), file)
    save_checkpoint(path, load_model(config.model), config)
    load_checkpoint(path)
    torch.save(random_state("test_resnet"), file)
    with pytest.raises(CheckpointError, match="trained on other backbone weights"):
        load_checkpoint(path)
