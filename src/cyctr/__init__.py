"""cyctr: label a few images of anything, and segment that thing in every other image.

Importing this is cheap: what needs torch is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cyctr.checkpoint import load_checkpoint, load_model, save_checkpoint
    from cyctr.errors import CyctrError
    from cyctr.evaluation.entry import evaluate
    from cyctr.inference import Box, Clicker, EncodedSupport, ImageResult, Polygons, Segmentation, Segmenter, read_supports
    from cyctr.methods.base import Method
    from cyctr.methods.cyctr.config import Config, ModelConfig, preset
    from cyctr.methods.cyctr.network import CyCTR, build
    from cyctr.training.entry import train
    from cyctr.types import Episode, Features, Prediction

_HOME = {
    "Box": "inference",
    "Clicker": "inference",
    "Config": "methods.cyctr.config",
    "CyCTR": "methods.cyctr.network",
    "CyctrError": "errors",
    "EncodedSupport": "inference",
    "Episode": "types",
    "Features": "types",
    "ImageResult": "inference",
    "Method": "methods.base",
    "ModelConfig": "methods.cyctr.config",
    "Polygons": "inference",
    "Prediction": "types",
    "Segmentation": "inference",
    "Segmenter": "inference",
    "build": "methods.cyctr.network",
    "evaluate": "evaluation.entry",
    "load_checkpoint": "checkpoint",
    "load_model": "checkpoint",
    "preset": "methods.cyctr.config",
    "read_supports": "inference",
    "save_checkpoint": "checkpoint",
    "train": "training.entry",
}

__all__ = [
    "Box",
    "Clicker",
    "Config",
    "CyCTR",
    "CyctrError",
    "EncodedSupport",
    "Episode",
    "Features",
    "ImageResult",
    "Method",
    "ModelConfig",
    "Polygons",
    "Prediction",
    "Segmentation",
    "Segmenter",
    "build",
    "evaluate",
    "load_checkpoint",
    "load_model",
    "preset",
    "read_supports",
    "save_checkpoint",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cyctr' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cyctr.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
