"""A name or a checkpoint -> something that answers episodes on a device."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from cyctr.checkpoint import load_checkpoint
from cyctr.config import BackboneConfig, to_dict
from cyctr.errors import ConfigError
from cyctr.methods import REFERENCES, check_reference, reference
from cyctr.types import Episode, Prediction
from cyctr.weights import CATALOGUE

Precision = Literal["auto", "float32", "bfloat16"]


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch sees no CUDA here; use --device cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"device is {name!r}; expected cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N")
    return device


def check_method(name: str, weights: str, device: str, precision: str) -> None:
    """Raises what `open_method` would, as far as that can be known without loading anything."""
    choose_device(device)
    if precision not in get_args(Precision):
        raise ConfigError(f"precision is {precision!r}; expected auto, float32 or bfloat16")
    if name.partition(":")[0] in REFERENCES:
        check_reference(name)
        _backbone(weights)
    elif not Path(name).is_file():
        raise ConfigError(f"method is {name!r}; expected {', '.join(REFERENCES)}, or the path of a checkpoint")


def open_method(
    name: str, weights: str, device: torch.device, precision: Precision = "auto"
) -> tuple[Callable[[Episode], Prediction], dict[str, Any]]:
    """A method ready to answer, and what decides its answers.

    Args:
        name: one of the training-free references, or the path of a checkpoint.
        weights: of the references' backbone: a name of the catalogue.
        device: where it runs.
        precision: "auto" is bfloat16 on a GPU and float32 elsewhere.
    """
    half = device.type == "cuda" if precision == "auto" else precision == "bfloat16"
    about: dict[str, Any] = {"name": name, "precision": "bfloat16" if half else "float32"}
    if name.partition(":")[0] in REFERENCES:
        config = _backbone(weights)
        network = reference(name, config)
        if any(True for _ in network.parameters()):
            about["backbone"] = to_dict(config)
        about |= {part: getattr(network, part) for part in ("threshold", "level") if hasattr(network, part)}
    else:
        network, about["checkpoint"] = _from_checkpoint(name)
        about["name"] = Path(name).stem
    network = network.to(device).eval()

    def answer(episode: Episode) -> Prediction:
        # float32 means it: torch would round the inputs of convolutions on a GPU to TF32
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.autocast(device.type, torch.bfloat16) if half else exact:
            return network(episode)

    return answer, about


def _backbone(weights: str) -> BackboneConfig:
    if weights in CATALOGUE:
        return BackboneConfig(CATALOGUE[weights].architecture, weights)
    if weights == "tiny":
        return BackboneConfig("tiny")
    raise ConfigError(f"weights is {weights!r}; expected a name of `cyctr weights list`: {', '.join(CATALOGUE)}")


def _from_checkpoint(name: str) -> tuple[nn.Module, dict[str, Any]]:
    network, config = load_checkpoint(name)
    digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    return network.accelerate(), {"sha256": digest, "model": to_dict(config.model)}
