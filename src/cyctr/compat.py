"""The one door to torchvision, and to timm, which imports it.

A torchvision built for another torch cannot load its compiled operators, and then fails while it registers the
shapes of `nms`, which nothing here uses. Declaring the two schemas first lets its Python parts work.
"""

import importlib
import sys
import threading
from functools import cache
from types import ModuleType

import torch

_SCHEMAS = ("nms", "qnms")
_door = threading.RLock()  # reader threads may all be the first
_declared: torch.library.Library | None = None  # operators live as long as their Library object


@cache
def torchvision() -> ModuleType:
    """The torchvision package, whether or not its compiled operators load."""
    with _door:
        return _import_torchvision()


def _import_torchvision() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    global _declared
    _declared = torch.library.Library("torchvision", "DEF")
    for name in _SCHEMAS:
        _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision")


@cache
def timm() -> ModuleType:
    """The timm package, imported behind a torchvision that works."""
    with _door:
        torchvision()
        return importlib.import_module("timm")


@cache
def transforms() -> ModuleType:
    """Torchvision's functions on images."""
    with _door:
        torchvision()
        return importlib.import_module("torchvision.transforms.v2.functional")
