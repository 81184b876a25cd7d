"""Where to compute, and how much at a time."""

import os
from typing import Any

import torch

from cyctr.errors import ConfigError

_MOST_TOGETHER = 64  # episodes: more gain nothing
_WORKING = 0.25  # of the free memory that episodes may take while they are answered
_TAKES = 300 * 2**20  # bytes of one with one shot: similarities of 3600 x 3600 cells, several times
_MAPS = 5 * 2**20  # bytes of the answer for one class


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch sees no CUDA here; use 'cpu'", "device")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"device is {name!r}; expected cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N")
    return device


def half_pays(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32 there: on a GPU, and on a CPU that multiplies it by itself."""
    if device.type == "cuda":
        return True
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def free_memory(device: torch.device) -> int:
    """Bytes that nobody uses on the device; what torch has there in reserve is free to us."""
    if device.type == "cuda":
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserve
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 4 * 2**30


def episodes_together(device: torch.device, shots: int, classes: int = 1, area: float = 1.0) -> int:
    """How many episodes to answer at a time: on a GPU as many as keep it busy, fewer where its memory is small.

    Args:
        device: where.
        shots: K.
        classes: that are answered for together.
        area: of an input, in those of 473 pixels.
    """
    if device.type == "cpu":
        return 1
    takes = _TAKES * shots * max(1.0, area) ** 2 + _MAPS * classes * area
    return max(1, min(_MOST_TOGETHER, int(_WORKING * free_memory(device) / takes)))
