"""Weights and config <-> one .safetensors file.

The frozen backbone is not in it: it is the same for everyone and comes from `cyctr.weights`, as the config says.
"""

import hashlib
import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from cyctr.config import Config, from_dict, to_dict
from cyctr.errors import CheckpointError, ConfigError
from cyctr.model import Backbone, CyCTR
from cyctr.storage import write_atomically
from cyctr.weights import load_model

_BACKBONE = "backbone."
_FORMAT = "cyctr-1"


def save_checkpoint(path: Path | str, model: CyCTR, config: Config) -> None:
    """Writes everything trainable, and the config, in one step: a reader never sees half a file.

    Args:
        path: ends in .safetensors; what was there is replaced.
        model: the network.
        config: how it was made; `config.model` must be the network's own.
    """
    path = Path(path)
    if config.model != model.config:
        raise CheckpointError("config.model is not the configuration this network was built from; save the right one")
    if model.accelerated:
        raise CheckpointError("this network was accelerated for inference; save it before accelerate()")
    if config.model.backbone.weights is None and config.model.backbone.name != "tiny":
        raise CheckpointError(
            "backbone.weights is None, so nobody could load this backbone again, and it is not part of a checkpoint; "
            "set it to a name of `cyctr weights list`, 'timm:TAG' or a file, and build the network with cyctr.load_model"
        )
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    trained = {name: value for name, value in state.items() if not name.startswith(_BACKBONE)}
    metadata = {"format": _FORMAT, "config": json.dumps(to_dict(config)), "backbone": _digest(model.backbone)}
    try:
        write_atomically(path, serialize(trained, metadata))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def load_checkpoint(path: Path | str) -> tuple[CyCTR, Config]:
    """The network of a checkpoint, in evaluation mode, and its config."""
    path = Path(path)
    state, config, backbone = _read(path)
    model = load_model(config.model)
    if _digest(model.backbone) != backbone:
        raise CheckpointError(
            f"{path}: was trained on other backbone weights than {config.model.backbone.weights!r} gives here; restore those"
        )
    expected = {name: value for name, value in model.state_dict().items() if not name.startswith(_BACKBONE)}
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or extra:
        raise CheckpointError(
            f"{path}: does not fit its own config (missing {missing[:2]}, unknown {extra[:2]}); save it again"
        )
    wrong = [name for name in sorted(expected) if state[name].shape != expected[name].shape]
    if wrong:
        shapes = f"{tuple(state[wrong[0]].shape)}, expected {tuple(expected[wrong[0]].shape)}"
        raise CheckpointError(f"{path}: does not fit its own config ({wrong[0]} is {shapes}); save it again")
    model.load_state_dict(state, strict=False)
    return model.eval(), config


def _read(path: Path) -> tuple[dict[str, Tensor], Config, str]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected a checkpoint that save_checkpoint wrote")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); copy or train it again") from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path}: has format {metadata.get('format')!r}, expected {_FORMAT!r}; it is no checkpoint of ours"
        )
    try:
        return state, from_dict(Config, json.loads(metadata["config"])), metadata["backbone"]
    except (ConfigError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: its config cannot be read ({error}); use the version of cyctr that wrote it") from error


def _digest(backbone: Backbone) -> str:
    """A checksum of the frozen weights, by which a checkpoint knows its backbone."""
    total = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        if value.is_floating_point():
            total.update(name.encode())
            total.update(value.detach().cpu().float().contiguous().numpy().tobytes())
    return total.hexdigest()
