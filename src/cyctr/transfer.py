"""Numbers to a device and back while the host goes on: a plain copy waits until a GPU has done all work before it."""

from functools import lru_cache

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor there; a GPU takes it from pinned memory, for which nobody waits."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


class Fetching:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._arrived = tensor.to("cpu", non_blocking=True), None  # of a GPU: into pinned memory
        if tensor.device.type == "cuda":
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def get(self) -> Tensor:
        """The tensor on the host; waits for it, and not for work that the device was given later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


@lru_cache(maxsize=16)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """(n,) float32 numbers that never change, taken to each device once."""
    return to_device(torch.tensor(values, dtype=torch.float32), device)
