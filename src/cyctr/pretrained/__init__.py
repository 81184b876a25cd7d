"""The networks that come with the package: heads trained on PASCAL VOC, each with a card that says how good it is."""

import importlib.resources
from pathlib import Path

from cyctr.errors import CheckpointError

DEFAULT = "lite0"
NAMES = ("lite0", "resnet50")


def find(name: str) -> Path:
    """The checkpoint of one of our networks, or the one that a path names."""
    if name in NAMES:
        return Path(str(importlib.resources.files("cyctr.pretrained") / f"{name}.safetensors"))
    path = Path(name)
    if not path.is_file():
        raise CheckpointError(f"model is {name!r}; expected {' or '.join(NAMES)}, or the path of a checkpoint")
    return path
