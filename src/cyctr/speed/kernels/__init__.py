"""Operators of the network as single GPU kernels. Each has a twin in plain torch beside it, which says what it computes.

Triton starts a kernel on the current GPU, so each makes that of its tensors the current one.
"""

import importlib.util

import torch
from torch import Tensor

AVAILABLE = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None

if AVAILABLE:
    from cyctr.speed.kernels.depthwise import depthwise
    from cyctr.speed.kernels.nearest import nearest
    from cyctr.speed.kernels.points import mix_points

__all__ = ["AVAILABLE", "depthwise", "mix_points", "nearest", "usable"]


def usable(tensor: Tensor) -> bool:
    """Whether kernels can run where this tensor is."""
    return AVAILABLE and tensor.device.type == "cuda"
