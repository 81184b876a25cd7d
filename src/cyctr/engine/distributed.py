"""Several processes that train one network: each computes its part of every step, all take the same mean gradient."""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cyctr.errors import ConfigError

_T = TypeVar("_T")
_PATIENCE = timedelta(hours=1)  # with each other: the others wait while the first validates, or looks through masks


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: which one this is; 0 writes and validates.
        size: how many there are.
        local: which one on this machine.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def average(self, weights: Iterable[Tensor]) -> None:
        """Replaces the gradients of the weights by their mean over the processes, in one message."""
        if self.size == 1:
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def agree(self, value: float) -> float:
        """The value of process 0, in all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=_device())
        dist.broadcast(shared, 0)
        return float(shared)

    def share(self, make: Callable[[], _T]) -> _T:
        """What process 0 makes, in all of them; it must be such that it can be pickled, and on the CPU."""
        made: list[Any] = [make() if self.leads else None]
        if self.size > 1:
            dist.broadcast_object_list(made, 0, device=_device())
        return made[0]

    def gather(self, values: Tensor) -> Tensor:
        """(processes, ...) the values of each process."""
        if self.size == 1:
            return values[None]
        found = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(found, values)
        return torch.stack(found)


@contextmanager
def join(kind: str) -> Iterator[World]:
    """Joins the processes that `torchrun` started; a world of one where nobody did.

    Args:
        kind: of the devices they compute on, "cpu" or "cuda".
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if started == "1":
        yield World()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        if local >= torch.cuda.device_count():
            raise ConfigError(
                f"torchrun started process {local + 1} on a machine with {torch.cuda.device_count()} GPUs; "
                "lower --nproc-per-node"
            )
        torch.cuda.set_device(local)
    # Its functions keep the group of the moment they are first imported as a default. Imported later, as by a compiler, they
    # would keep this group's threads alive until the interpreter ends, which now and then aborts the process.
    importlib.import_module("torch.distributed.nn")
    try:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=_PATIENCE)
    except (ValueError, dist.DistError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"WORLD_SIZE is {started!r}, but the processes do not find each other ({reason}); start them with torchrun, or "
            "unset WORLD_SIZE"
        ) from error
    try:
        yield World(dist.get_rank(), dist.get_world_size(), local)
    finally:
        dist.destroy_process_group()


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
