"""Weight files, read without running anything in them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cyctr.errors import WeightsError


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a PyTorch .pth, .pt or .bin file, by name.

    Raises:
        WeightsError: the file is missing, damaged, or holds anything but tensors.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; expected weights as .safetensors, .pth, .pt or .bin")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: not a whole safetensors file ({error}); fetch or copy it again") from error
    return read_torch(path, str(path))


def read_torch(source: Path | IO[bytes], name: str) -> dict[str, Tensor]:
    """The tensors of a file that torch.save wrote, nothing in it executed."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torch asks for an issue where a file was pickled by other means
            content: Any = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader meets damage with whatever its parser trips over
        speaks = isinstance(error, RuntimeError | OSError)  # the others say pages, or a number
        words = str(error).strip().partition(". ")[0].splitlines() if speaks else []
        reason = words[0][:120] if words else type(error).__name__
        raise WeightsError(
            f"{name}: cannot be read as plain tensors ({reason}); the file is damaged or holds code, which is never run: "
            "fetch it again, or save its state_dict"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{name}: holds {type(content).__name__}, not tensors by name; expected a state_dict")
    for key, value in content.items():
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise WeightsError(f"{name}: {key!r} is sparse, quantized or empty; expected a dense tensor: save it as one")
    return unwrapped(content, name)


def unwrapped(state: Mapping[Any, Tensor], name: str) -> dict[str, Tensor]:
    """Tensors by their names without the `module.` that training on several GPUs puts before them.

    Raises:
        WeightsError: two names become one.
    """
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        plain = str(key).removeprefix("module.")
        if plain in found:
            raise WeightsError(
                f"{name}: holds {plain!r} twice, with and without 'module.' or as a number; expected it once: "
                "save the state_dict of one network"
            )
        found[plain] = value
    return found
