"""How a run executes: the options that do not decide what it learns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cyctr.errors import ConfigError

_LEAST = {
    "workers": 1,
    "accumulate": 1,
    "save_minutes": 0,
    "keep_every": 0,
    "validate_every": 0,
    "validation_episodes": 0,
    "max_minutes": 0,
}
KEPT = ("accumulate", "deterministic", "keep_every", "validate_every", "validation_episodes")
"""The fields that a session writes down and a resumed run keeps."""


@dataclass(frozen=True)
class Options:
    """How a run executes.

    Apart from rounding (and dropout, when a step is split) these options do not change the result.

    Attributes:
        half: bfloat16 where it is safe.
        compile: whether to compile the network; by default on a GPU, where the run is long enough to gain.
        resident: whether all images lie on the device; by default where they fit.
        workers: threads that read images.
        accumulate: parts of a step that are computed one after the other, to take less memory.
        deterministic: the same bits each time on a GPU too, more slowly.
        save_minutes: how often the state is kept.
        keep_every: episodes after which a checkpoint is kept for good; 0 keeps none.
        validate_every: episodes between validations; 0 validates only at the end, and None after each tenth of the schedule.
        validation_episodes: of each validation; 0 validates never.
        max_minutes: ends the run in good order.
        tensorboard: write events for TensorBoard, where it is installed.
    """

    half: bool = False
    compile: bool | None = None
    resident: bool | None = None
    workers: int | None = None
    accumulate: int = 1
    deterministic: bool = False
    save_minutes: float = 2.0
    keep_every: int = 0
    validate_every: int | None = 0
    validation_episodes: int = 200
    max_minutes: float = math.inf
    tensorboard: bool = True

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value, kind = getattr(self, name), int | float if name.endswith("minutes") else int
            if value is None and name in ("workers", "validate_every"):
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= least:
                expected = "a number" if name.endswith("minutes") else "a whole number"
                raise ConfigError(f"{name} is {value!r}; expected {expected}, at least {least}")
        for name in ("half", "deterministic", "tensorboard", "compile", "resident"):
            value, may_be_none = getattr(self, name), name in ("compile", "resident")
            if not isinstance(value, bool) and not (value is None and may_be_none):
                raise ConfigError(f"{name} is {value!r}; expected True or False{', or None' * may_be_none}")


def kept_options(session: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The fields of `Options` that a resumed run takes over from its last session, unless others are given.

    The other fields belong to one session only. An older run did not write all of them.
    """
    found = {name: session[name] for name in KEPT if name in session}
    if "precision" in session and str(session.get("device")).startswith(device.type):  # what suits one may not suit another
        found["half"] = session["precision"] == "bfloat16"
    return found
