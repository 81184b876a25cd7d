import errno
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from making import episode, tiny
from parcels import random_state, truncate
from safetensors.torch import load_file, save_file

from cyctr.checkpoint import describe_checkpoint, load_checkpoint, load_model, pack, save_checkpoint, unpack
from cyctr.config import BackboneConfig, to_dict
from cyctr.errors import CheckpointError, CyctrError
from cyctr.methods.cyctr.config import (
    ABLATIONS,
    RELEASED,
    Config,
    EncoderConfig,
    LossConfig,
    ModelConfig,
    PriorConfig,
    SamplingConfig,
)
from cyctr.methods.cyctr.network import build


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


def rewrite(path, change_state=dict, **changes):
    """Writes a checkpoint again with something changed."""
    state, about = unpack(path)
    path.write_bytes(pack(change_state(state), {**about, **changes}))


def test_save_and_reload_give_equal_bits(saved, model):
    again, _ = load_checkpoint(saved)
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    task = episode(shots=2)
    with torch.inference_mode():
        assert torch.equal(again(task).logits, model(task).logits)


def test_equal_networks_are_equal_files(saved, model, config, tmp_path):
    for name in map(str, range(8)):  # several entries of metadata would come in another order soon
        save_checkpoint(tmp_path / name, model, config)
        assert (tmp_path / name).read_bytes() == saved.read_bytes()
    weights = dict(reversed(model.state_dict().items()))
    save_checkpoint(tmp_path / "weights", model, config, weights)
    assert (tmp_path / "weights").read_bytes() == saved.read_bytes()


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="it is a pipe"):
        unpack(tmp_path / "state.safetensors")


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


@pytest.mark.parametrize(
    ("metadata", "found"), [(None, None), ({"format": "pt"}, None), ({"about": '{"format": "cyctr-1"}'}, "cyctr-1")]
)
def test_a_safetensors_file_of_somebody_else_is_refused(metadata, found, tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata)
    with pytest.raises(CheckpointError, match=rf"has format {found!r}, expected 'cyctr-\d+'; it is no checkpoint of ours"):
        load_checkpoint(path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_checkpoint_whose_description_is_damaged_is_refused(text, saved):
    save_file(load_file(saved), saved, {"about": text})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file"):
        load_checkpoint(saved)


def with_unknown_setting(values):
    values["model"]["encoder"]["wings"] = 2
    return values


def with_bad_value(values):
    values["model"]["encoder"]["layers"] = 0
    return values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_unknown_setting, r"model\.encoder\.wings is not a setting of this version"),
        (with_bad_value, r"encoder\.layers is 0; expected at least 1"),
        (lambda values: [], r"config is \[\]"),
    ],
    ids=["unknown_setting", "bad_value", "no_config"],
)
def test_a_config_that_cannot_be_read_is_an_error_that_names_the_setting(change, message, saved, config):
    rewrite(saved, config=change(to_dict(config)))
    with pytest.raises(
        CheckpointError, match=rf"its config cannot be read \(.*{message}.*\); use the version of cyctr that wrote it"
    ):
        load_checkpoint(saved)


def test_other_weights_are_written_in_place_of_the_network_s_own(tmp_path, model, config):
    """A moving average, say, of those that are trained."""
    average = {name: torch.randn_like(p) for name, p in model.named_parameters() if p.requires_grad}
    own = {name: value.clone() for name, value in model.state_dict().items()}
    save_checkpoint(tmp_path / "average.safetensors", model, config, weights=average)
    again, _ = load_checkpoint(tmp_path / "average.safetensors")
    for name, value in again.state_dict().items():
        assert torch.equal(value, average.get(name, own[name])), name
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())  # as it was


def test_weights_that_the_network_lacks_are_not_written(tmp_path, model, config):
    with pytest.raises(CheckpointError, match=r"weights has 'wings\.left', which this network lacks"):
        save_checkpoint(tmp_path / "model.safetensors", model, config, weights={"wings.left": torch.ones(2)})
    assert not list(tmp_path.iterdir())


def test_weights_of_the_backbone_are_not_written_whoever_brings_them(tmp_path, model, config):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, config, weights=model.state_dict())
    assert not any(name.startswith("backbone.") for name in load_file(path))


def test_a_half_checkpoint_is_half_as_large_and_answers_nearly_the_same(saved, model, config, tmp_path):
    path = tmp_path / "half.safetensors"
    save_checkpoint(path, model, config, half=True)
    whole, half = load_file(saved), load_file(path)
    assert whole.keys() == half.keys()
    assert {value.dtype for value in half.values()} == {torch.float16}
    assert sum(value.nbytes for value in whole.values()) == 2 * sum(value.nbytes for value in half.values())
    again, loaded = load_checkpoint(path)
    assert loaded == config
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, atol=1e-4, rtol=1e-3)
    task = episode(shots=2)
    with torch.inference_mode():
        difference = (again(task).probability - model(task).probability).abs()
    assert 0 < difference.max() < 0.02


def test_a_checkpoint_without_the_head_of_training_answers_the_same(model, config, tmp_path, saved):
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, model, config, auxiliary=False)
    assert {name for name in load_file(saved) if not name.startswith("auxiliary.")} == set(load_file(path))
    assert len(load_file(path)) < len(load_file(saved))
    again, loaded = load_checkpoint(path)
    assert loaded == config
    task = episode(shots=2)
    with torch.inference_mode():
        assert torch.equal(again(task).logits, model(task).logits)


def test_a_network_that_never_had_the_head_of_training_is_saved_and_loaded(tmp_path):
    model = tiny(replace(tiny().config, auxiliary=False))
    for auxiliary in (True, False):
        save_checkpoint(tmp_path / "model.safetensors", model, Config(model=model.config), auxiliary=auxiliary)
        again, _ = load_checkpoint(tmp_path / "model.safetensors")
        assert again.auxiliary is None
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_part_of_the_head_of_training_is_not_taken_for_all_of_it(saved):
    def without_one(state):
        name = next(name for name in sorted(state) if name.startswith("auxiliary."))
        return {key: value for key, value in state.items() if key != name}

    rewrite(saved, without_one)
    with pytest.raises(CheckpointError, match=r"does not fit its own config \(missing \['auxiliary\."):
        load_checkpoint(saved)


def test_a_network_that_votes_survives_a_reload(tmp_path):
    model = tiny(replace(tiny().config, prior=PriorConfig(("high", "mid"), 0.1)))
    save_checkpoint(tmp_path / "model.safetensors", model, Config(model=model.config))
    again, loaded = load_checkpoint(tmp_path / "model.safetensors")
    assert loaded.model.prior == PriorConfig(("high", "mid"), 0.1)
    task = episode(shots=2)
    with torch.inference_mode():
        assert torch.equal(again(task).logits, model(task).logits)


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
    rewrite(saved, config=to_dict(wider))
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
    save_checkpoint(path, load_model(config), config)
    load_checkpoint(path)
    torch.save(random_state("test_resnet"), file)
    with pytest.raises(CheckpointError, match="trained on other backbone weights"):
        load_checkpoint(path)


def test_a_checkpoint_says_what_it_learned_from_where_it_was_told(tmp_path):
    model = tiny()
    config = Config(model=model.config)
    data = {"name": "folder", "train": ["tasse à café"], "validation": ["plate"], "test": []}
    save_checkpoint(tmp_path / "model.safetensors", model, config, data=data)
    assert describe_checkpoint(tmp_path / "model.safetensors") == (config, data)
    assert load_checkpoint(tmp_path / "model.safetensors")[1] == config
    save_checkpoint(tmp_path / "older.safetensors", model, config)
    assert describe_checkpoint(tmp_path / "older.safetensors") == (config, {})


@pytest.mark.parametrize("seed", range(15))
def test_a_flipped_bit_anywhere_in_the_tensors_is_noticed(seed, saved):
    content = bytearray(saved.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    content[random.Random(seed).randrange(begin, len(content))] ^= 1 << seed % 8
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checksum is not of what it holds.*copy or train it again"):
        load_checkpoint(saved)


def test_a_checkpoint_of_an_earlier_version_has_no_checksum_and_loads(saved, model):
    tensors, about = unpack(saved)
    save_file(tensors, saved, {"about": json.dumps(about)})
    again, _ = load_checkpoint(saved)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize(("layers", "dim", "message"), [(2**63, 32, "expected at most 64"), (64, 8192, "it holds .* numbers")])
def test_a_config_of_a_far_larger_network_is_refused_before_it_is_built(layers, dim, message, saved):
    _, about = unpack(saved)
    about["config"]["model"]["dim"] = dim
    about["config"]["model"]["encoder"]["layers"] = layers
    rewrite(saved, config=about["config"])
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(saved)


def test_what_is_nested_too_deep_in_a_checkpoint_is_one_clear_error(saved):
    tensors, _ = unpack(saved)
    save_file(tensors, saved, {"about": "[" * 100_000})
    with pytest.raises(CheckpointError, match="nested more than 64 deep"):
        load_checkpoint(saved)
