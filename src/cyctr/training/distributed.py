"""Several processes that train one network: each computes its part of every step, all take the same mean gradient."""

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from cyctr.errors import ConfigError, CyctrError, PeerError
from cyctr.words import counted

_T = TypeVar("_T")
_MEETING = timedelta(minutes=10)  # to find each other: whoever fails before cannot tell the others
_PATIENCE = timedelta(hours=1)  # with each other: the others wait while the first validates, or looks through masks
_GRACE = timedelta(seconds=10)  # for the first process on a machine to meet the same error, or to notice that another ended
_PLACE = re.compile(r"^\[\S+\] ")  # in the source of a library, before what its error says


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
        with _together():
            dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def agree(self, value: float) -> float:
        """The value of process 0, in all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=_device())
        with _together():
            dist.broadcast(shared, 0)
            return float(shared)

    def share(self, make: Callable[[], _T]) -> _T:
        """What process 0 makes, in all of them; it must be such that it can be pickled, and on the CPU.

        Raises:
            CyctrError: that of process 0, in all of them.
        """
        if self.size == 1:
            return make()
        made: list[Any] = [None]
        if self.leads:
            try:
                made = [make()]
            except CyctrError as error:
                made = [error]
        with _together():
            dist.broadcast_object_list(made, 0, device=_device())
        if isinstance(made[0], CyctrError):
            raise made[0]
        return made[0]

    def gather(self, values: Tensor) -> Tensor:
        """(processes, ...) the values of each process."""
        if self.size == 1:
            return values[None]
        found = [torch.empty_like(values) for _ in range(self.size)]
        with _together():
            dist.all_gather(found, values)
        return torch.stack(found)


@contextmanager
def _together() -> Iterator[None]:
    """What the processes do together; it fails in each of them where one is gone."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # its own, which it meets only now
        raise
    except RuntimeError as error:
        reason = _PLACE.sub("", _first_line(error)).split(". ")[0]
        raise PeerError(
            f"another process of this run has ended, or cannot be reached ({reason}); its own message says why"
        ) from error


@contextmanager
def join(kind: str) -> Iterator[World]:
    """Joins the processes that `torchrun` started; a world of one where nobody did.

    An error that leaves it ends the others too: on CPUs they meet a PeerError in what they do together next; on GPUs, where
    nobody waits for that, torchrun ends them. Of the processes on one machine the first speaks for all. An error that it does
    not share has a note with the rank.

    Args:
        kind: of the devices they compute on, "cpu" or "cuda".
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if started == "1":
        yield World()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
        if beside > torch.cuda.device_count():
            raise ConfigError(
                f"torchrun started {beside} processes on a machine with {counted(torch.cuda.device_count(), 'GPU')}; "
                "lower nproc-per-node of torchrun"
            )
        torch.cuda.set_device(local)
    # Its functions keep the group of the moment they are first imported as a default. Imported later, as by a compiler, they
    # would keep this group's threads alive until the interpreter ends, which now and then aborts the process.
    importlib.import_module("torch.distributed.nn")
    try:
        store, rank, size = next(rendezvous("env://", timeout=_MEETING))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)  # it outlives the processes that torchrun starts again
        store.set(f"here/{rank}", "")
        store.wait([f"here/{other}" for other in range(size)], _MEETING)
        store.set_timeout(_PATIENCE)  # through it NCCL connects the processes, when they first do something together
        group = PrefixStore("group", store)
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=_PATIENCE)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {started!r}, but the processes do not find each other ({_first_line(error)}); start them with "
            "torchrun, or unset WORLD_SIZE"
        ) from error
    try:
        yield World(rank, size, local)
    except BaseException as error:
        _part(store, rank, local, error)
        raise
    dist.destroy_process_group()


_open: list[Store] = []  # until the process ends: the others may still ask the store of the first why it did


def _part(store: Store, rank: int, local: int, error: BaseException) -> None:
    """Leaves the others; an error that the first process on this machine does not tell gets a note with the rank."""
    _open.append(store)
    with suppress(RuntimeError):  # the store is gone with the process that kept it
        store.set(f"ended/{rank}", repr(error))
    with suppress(RuntimeError):  # whatever goes wrong here, the error that led here is the one to tell
        if dist.get_backend() == "nccl" and dist.group.WORLD is not None:
            dist.group.WORLD.abort()  # destroying it would wait for the others, who wait for this one
        else:
            dist.destroy_process_group()
    if not local or not isinstance(error, Exception):
        return
    first, told = f"ended/{rank - local}", None
    with suppress(RuntimeError):
        store.wait([first], _GRACE)
        told = store.get(first).decode()
    if told is None or (told != repr(error) and not isinstance(error, PeerError)):
        error.add_note(f"rank {rank}")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
