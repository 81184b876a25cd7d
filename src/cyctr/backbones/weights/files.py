"""Weight files, read without running anything in them."""

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
        content: Any = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader meets damage with whatever its parser trips over
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"{name}: cannot be read as plain tensors ({reason}); the file is damaged or holds code, which is never run: "
            "fetch it again, or save its state_dict"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{name}: holds {type(content).__name__}, not tensors by name; expected a state_dict")
    return {str(key).removeprefix("module."): value for key, value in content.items()}
