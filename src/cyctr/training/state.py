"""What a run goes on from: how far it is, and the sessions that led there."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from cyctr.config import from_dict, to_dict
from cyctr.datasets.dataset import Dataset
from cyctr.errors import ConfigError
from cyctr.evaluation.results import differences
from cyctr.evaluation.run import environment
from cyctr.methods.table import USUAL, find_method
from cyctr.seeding import Stream
from cyctr.training.options import KEPT, Options

_CHANGES_BITS = ("precision", "accumulate", "processes")


class Standing(NamedTuple):
    """How far a run is: what of its state is no tensor.

    Attributes:
        step: how many are done.
        validated: the step after which that was last due and done.
        best: mIoU of the best validation, or -1.
    """

    step: int = 0
    validated: int = 0
    best: float = -1.0


@dataclass(frozen=True)
class Start:
    """Where a session begins.

    Attributes:
        standing: how far the run is.
        sessions: the earlier ones, as the folder tells of them.
        seconds: that they took.
        saved: whether there is a state to go on from.
    """

    standing: Standing = Standing()
    sessions: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    saved: bool = False


def describe_data(dataset: Dataset, fold: int) -> dict[str, Any]:
    """Which classes of which dataset are learned from, and which are kept for validation and test."""
    sides, pool, names = dataset.fold(fold), dataset.pool("train"), dataset.classes
    return {
        "name": dataset.name,
        "fold": fold,
        "images": len(pool.keys),
        "index_sha256": pool.index().digest,
        "train": [names[number] for number in sides.train],
        "validation": [names[number] for number in sides.validation],
        "test": [names[number] for number in sides.test],
    }


def describe_session(device: torch.device, options: Options, processes: int, compiled: bool) -> dict[str, Any]:
    """What may change from session to session; it changes results by rounding at most."""
    return {
        **environment(device),
        "precision": "bfloat16" if options.half else "float32",
        "compile": compiled,
        "processes": processes,
        **{name: getattr(options, name) for name in KEPT},
    }


def changes(sessions: list[Any], now: Mapping[str, Any]) -> list[str]:
    """What differs from the last session, and so changes the bits of the network."""
    if not sessions:
        return []
    before = {name: sessions[-1].get(name, now[name]) for name in _CHANGES_BITS}
    return [f"{name} {before[name]}, now {now[name]}" for name in _CHANGES_BITS if before[name] != now[name]]


def require_same(found: Mapping[str, Any], about: dict[str, Any], folder: object) -> None:
    """Raises ConfigError where the run in a folder learns otherwise than this one.

    Args:
        found: what the folder says of its run.
        about: the config and the data of this one.
        folder: for the message.
    """
    method = str(found.get("method", USUAL))
    there = {"method": method, "config": _with_defaults(method, found.get("config")), "data": found.get("data")}
    differing = differences(there, _plain(about))
    differing = ["images or masks have changed" if text.startswith("data.index_sha256") else text for text in differing]
    if differing:
        raise ConfigError(
            f"the run in {folder} was made with other settings (there / here: {'; '.join(differing)}); "
            "give the same options, or choose another output",
            "output",
        )


def _with_defaults(method: str, config: Any) -> Any:
    """The settings of an earlier run, with defaults for those that it did not know; unchanged where they cannot be read."""
    try:
        return _plain(to_dict(from_dict(find_method(method).Config, config)))
    except ConfigError:
        return config


def _plain(about: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(about))


def random_state(seed: int, step: int, device: torch.device) -> None:
    """Sets torch's generators for a step: what dropout drops is a function of the run's seed and the step only.

    As `torch.manual_seed`, which asks for devices of every kind as well: a tenth of a millisecond in each step.
    """
    number = Stream("dropout", seed, step).below(2**63)  # whose low 32 bits are all that a CPU takes
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(number)


@contextmanager
def torch_as_it_was(device: torch.device, deterministic: bool) -> Iterator[None]:
    """Gives random numbers and kernels back as they were; kernels add up in a fixed order meanwhile, where that is wanted."""
    before = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.use_deterministic_algorithms(deterministic or before)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)
