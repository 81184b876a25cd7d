"""Weights and config <-> one .safetensors file.

The frozen backbone is not in it: it is the same for everyone, and the config says where it comes from. What of
it has learned is; and all of it, where `backbone.weights` says that it is inside.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from cyctr import json_files
from cyctr.backbones.backbone import Backbone
from cyctr.backbones.tuning import SPECTRUM
from cyctr.backbones.weights import INSIDE, load_backbone
from cyctr.config import BackboneConfig, Recipe, from_dict, to_dict
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.base import Method
from cyctr.methods.table import USUAL, check_method, find_method, name_of
from cyctr.storage import sweep, write_atomically

_BACKBONE = "backbone."
AnyMethod = Method[Any]
_FORMAT, _ABOUT, _CHECKSUM = "cyctr-2", "about", "sha256"


def load_model(config: Recipe, method: str | type[AnyMethod] = USUAL) -> AnyMethod:
    """The network of a configuration in evaluation mode, its backbone loaded and the rest untrained.

    Args:
        config: of the method's own kind.
        method: a name of the table, "package.module:Class", or a class.
    """
    kind = find_method(method) if isinstance(method, str) else check_method(method)
    if not isinstance(config, kind.Config):
        raise ConfigError(
            f"config is {type(config).__qualname__}; expected {kind.Config.__qualname__}, that of {name_of(kind)}"
        )
    return kind.build(config, load_backbone(config.model.backbone)).eval()


def save_checkpoint(
    path: Path | str,
    model: AnyMethod,
    config: Recipe,
    weights: Mapping[str, Tensor] | None = None,
    half: bool = False,
    auxiliary: bool = True,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Writes everything trainable, and the config, in one step: a reader never sees half a file.

    Args:
        path: ends in .safetensors; what was there is replaced.
        model: the network.
        config: how it was made; `config.model` must be the network's own.
        weights: by name, to write in place of the network's own: their moving average, say.
        half: write float16, half as large; but for the few numbers of a tuned backbone, which are all near one.
        auxiliary: with the parts that only training uses.
        data: what it learned from, for `describe_checkpoint`.
    """
    content = checkpoint_bytes(model, config, weights, half, auxiliary, data)
    try:
        write_atomically(Path(path), content)
        sweep(Path(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def checkpoint_bytes(
    model: AnyMethod,
    config: Recipe,
    weights: Mapping[str, Tensor] | None = None,
    half: bool = False,
    auxiliary: bool = True,
    data: Mapping[str, Any] | None = None,
) -> bytes:
    """What `save_checkpoint` writes: the same bytes for the same network."""
    if config.model != model.config:
        raise CheckpointError("config.model is not the configuration this network was built from; save the right one")
    if model.accelerated:
        raise CheckpointError("this network was accelerated for inference; save it before accelerate()")
    require_named_weights(config.model.backbone)
    state, given = model.state_dict(), weights or {}
    unknown = sorted(given.keys() - state.keys())
    if unknown:
        raise CheckpointError(f"weights has {unknown[0]!r}, which this network lacks; give weights of this network")
    inside = config.model.backbone.weights == INSIDE
    state = {name: value for name, value in {**state, **given}.items() if inside or not _frozen(name, model)}
    if not auxiliary:
        state = {name: value for name, value in state.items() if not name.startswith(model.training_only)}
    if half:
        state = {
            name: value if name.endswith(SPECTRUM) or _frozen(name, model) else value.half() for name, value in state.items()
        }
    method = name_of(type(model))
    about = {"format": _FORMAT, "method": method, "config": to_dict(config), "backbone": weights_digest(model.backbone)}
    return pack(state, about if data is None else {**about, "data": dict(data)})


def require_named_weights(backbone: BackboneConfig) -> None:
    """Raises CheckpointError for a backbone of random weights, which nobody could load again."""
    if backbone.weights is None and backbone.name != "tiny":
        raise CheckpointError(
            "backbone.weights is None, so nobody could load this backbone again, and it is not part of a checkpoint; "
            "set it to a name of `cyctr weights list`, 'timm:TAG' or a file, and build the network with cyctr.load_model"
        )


def load_checkpoint(path: Path | str) -> tuple[AnyMethod, Any]:
    """The network of a checkpoint, in evaluation mode, and its config."""
    path = Path(path)
    state, kind, config, about = _read(path)
    inside = config.model.backbone.weights == INSIDE
    _check_size(path, kind, config, state)
    model = kind.build(config, Backbone(config.model.backbone)).eval() if inside else load_model(config, kind)
    if not inside and weights_digest(model.backbone) != about["backbone"]:
        raise CheckpointError(
            f"{path}: was trained on other backbone weights than {config.model.backbone.weights!r} gives here; restore those"
        )
    expected = {name: value for name, value in model.state_dict().items() if inside or not _frozen(name, model)}
    if not any(name.startswith(kind.training_only) for name in state):  # left out: they have no part in an answer
        expected = {name: value for name, value in expected.items() if not name.startswith(kind.training_only)}
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
    if inside and weights_digest(model.backbone) != about["backbone"]:
        raise CheckpointError(f"{path}: its backbone weights are not those that were saved; copy or convert it again")
    return model.eval(), config


def describe_checkpoint(path: Path | str) -> tuple[Any, dict[str, Any]]:
    """The config of a checkpoint, and what it learned from, as the one who saved it said: nothing where nobody did."""
    _, _, config, about = _read(Path(path))
    return config, about.get("data", {})


def _read(path: Path) -> tuple[dict[str, Tensor], type[AnyMethod], Any, dict[str, Any]]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; expected a checkpoint that save_checkpoint wrote")
    try:
        state, about = unpack(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); copy or train it again") from error
    if about.get("format") != _FORMAT:
        raise CheckpointError(f"{path}: has format {about.get('format')!r}, expected {_FORMAT!r}; it is no checkpoint of ours")
    try:
        kind = find_method(str(about.get("method", USUAL)))
    except ConfigError as error:
        raise CheckpointError(f"{path}: is of a method that is not here ({error})") from error
    try:
        config, _ = from_dict(kind.Config, about["config"]), about["backbone"]
    except (ConfigError, KeyError) as error:
        raise CheckpointError(f"{path}: its config cannot be read ({error}); use the version of cyctr that wrote it") from error
    return state, kind, config, about


def _check_size(path: Path, kind: type[AnyMethod], config: Recipe, state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError for a config of a larger network than the tensors are of, before that is built."""
    fewest, held = kind.least_size(config), sum(value.numel() for value in state.values())
    if fewest > held:
        raise CheckpointError(
            f"{path}: does not fit its own config (it holds {held:,} numbers, and such a network has more than {fewest:,}); "
            "save it again"
        )


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Tensors and what is to be known of them as the content of a .safetensors file: the same bytes for the same values."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    told = {**about, _CHECKSUM: _checksum(plain, about)}
    return serialize(plain, {_ABOUT: json.dumps(told, sort_keys=True)})  # several entries would come in any order


def unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` was given; of a file of somebody else, nothing is known of its tensors.

    Raises:
        ValueError: it is not as `pack` wrote it. Files of earlier versions have no checksum.
    """
    if path.is_fifo():  # opening it would wait for its writer
        raise ValueError("it is a pipe")
    with safe_open(path, "pt") as file:
        about = json_files.parse_object((file.metadata() or {}).get(_ABOUT, "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    checksum = about.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum(tensors, about):
        raise ValueError("its checksum is not of what it holds: bytes of it have changed")
    return tensors, about


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Of the names, kinds, shapes and bytes of tensors, and of what is to be known of them."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _frozen(name: str, model: AnyMethod) -> bool:
    """Whether a tensor of a network is the same for everyone."""
    return name.startswith(_BACKBONE) and name.removeprefix(_BACKBONE) not in model.backbone.learned


def weights_digest(backbone: Backbone) -> str:
    """A checksum of the frozen weights, by which a checkpoint knows its backbone."""
    total = hashlib.sha256()
    for name, value in sorted(backbone.state_dict().items()):
        if name not in backbone.learned and value.is_floating_point():
            total.update(name.encode())
            total.update(value.detach().cpu().float().contiguous().numpy().tobytes())
    return total.hexdigest()
