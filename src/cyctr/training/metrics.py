"""Lines of the metrics: losses stay on the device until the next line, so that no step waits for them."""

import os
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cyctr.episodes.sampler import Draw
from cyctr.methods.base import Losses
from cyctr.training.run import Parts
from cyctr.transfer import Fetching


class NotFinite(Exception):  # noqa: N818 (the loop makes an error of it, with a remedy)
    """The loss of an episode is not finite."""


class _Done(NamedTuple):
    """A step, or a part of one, that was computed: what it saw, and what it lost, still on the device.

    Attributes:
        step: its number, from 0 on.
        draws: its groups.
        means: (1 + n,) total loss and its parts.
        names: of the parts.
        each: (E,) loss of each episode.
    """

    step: int
    draws: tuple[Draw, ...]
    means: Tensor
    names: tuple[str, ...]
    each: Tensor


class _Interval(NamedTuple):
    """Steps that one line of the metrics tells of.

    Attributes:
        parts: of the steps, in this process.
        losses: (processes, parts, 1 + n + E) their `means` and `each`, on their way to the host.
        seconds: that training took.
    """

    parts: list[_Done]
    losses: Fetching
    seconds: float


class Metrics:
    """Collects what steps lose, and makes a line of it now and then."""

    def __init__(self, parts: Parts, began: float) -> None:
        self._parts = parts
        self._recent: list[_Done] = []  # of this interval
        self._pending: _Interval | None = None  # the one before
        self._began, self._idle = began, 0.0  # of this interval: when, and seconds that were not training

    def add(self, step: int, draws: tuple[Draw, ...], losses: Losses) -> None:
        """Keeps what a step, or a part of it, has lost."""
        means = torch.stack([losses.total, *losses.parts.values()])
        self._recent.append(_Done(step, draws, means.detach(), tuple(losses.parts), losses.each.detach()))

    def forget_from(self, step: int) -> None:
        """Forgets the parts of a step that failed before it was done."""
        self._recent = [done for done in self._recent if done.step < step]

    def pause(self, seconds: float) -> None:
        """Leaves out time that was not training."""
        self._idle += seconds

    def lines(self, settle: bool = False) -> list[dict[str, Any]]:
        """The line of the interval before this one, whose numbers are ready without waiting.

        Args:
            settle: also the line of this one.

        Raises:
            NotFinite: the loss of an episode; it says which.
        """
        found = []
        if self._recent:
            losses = torch.stack([torch.cat([done.means, done.each]) for done in self._recent])  # (parts, 1 + n + E)
            fetching = Fetching(self._parts.plan.world.gather(losses))
            now = time.perf_counter()
            seconds, self._began, self._idle = now - self._began - self._idle, now, 0.0
            found += self._ready()
            self._pending = _Interval(self._recent, fetching, seconds)
            self._recent = []
        return [*found, *self._ready()] if settle else found

    def _ready(self) -> list[dict[str, Any]]:
        """The line of the pending interval, if there is one."""
        if self._pending is None:
            return []
        parts, fetching, seconds = self._pending
        self._pending = None
        plan = self._parts.plan
        batch = plan.config.training.batch
        losses = fetching.get()
        names = ("loss", *parts[0].names)
        self._refuse_nonfinite(parts, losses[:, :, len(names) :])
        means = dict(zip(names, losses[:, :, : len(names)].mean((0, 1)).tolist(), strict=True))
        step = parts[-1].step + 1
        count = len(parts) // plan.options.accumulate
        line = {"step": step, "episodes": step * batch, **means}
        rates = self._parts.optimization.shown_rates(step - 1)
        return [{**line, **rates, "episodes_per_second": round(count * batch / max(seconds, 1e-9), 2)}]

    def _refuse_nonfinite(self, parts: list[_Done], each: Tensor) -> None:
        """Stops all processes where the loss of an episode of any of them, (processes, parts, E), is not finite."""
        bad = (~each.isfinite()).nonzero().tolist()
        if not bad:
            return
        plan = self._parts.plan
        process, part, place = min(bad, key=lambda found: found[1])  # the first step
        step, draws = parts[part].step, parts[part].draws
        parts_ahead = (process - plan.world.rank) * plan.options.accumulate  # of this process is the other
        number = draws[0].number + parts_ahead * len(draws) + place * len(draws) // each.shape[2]
        draw, dataset = self._parts.episodes.sampler(number), self._parts.dataset
        names = ", ".join(dataset.pool("train").keys[image] for image in (draw.query, *draw.supports))
        raise NotFinite(
            f"the loss is {float(each[process, part, place])} at step {step + 1}, in episode {number} "
            f"({dataset.classes[draw.category]}: {names})"
        )


class Board:
    """Events for TensorBoard; nothing where they are not wanted, or it is not installed."""

    def __init__(self, parts: Parts) -> None:
        self._plan = parts.plan
        self._writer: Any = None
        self._first = parts.start.standing.step * parts.plan.config.training.batch + 1
        self._wanted = parts.plan.options.tensorboard

    def add(self, line: dict[str, Any]) -> None:
        """Shows a line of the metrics; the first one makes the file."""
        if self._wanted and self._writer is None:
            self._writer = self._open()
            self._wanted = self._writer is not None
        if self._writer is not None:
            for name, value in _shown(line).items():
                self._writer.add_scalar(name, value, line["episodes"])

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(os.fspath(self._plan.folder.path / "tensorboard"), purge_step=self._first)


def _shown(line: dict[str, Any]) -> dict[str, float]:
    """The curves of a line, by the name of their picture."""
    if "validation" in line:
        return {f"validation/{name}": line["validation"][name] for name in ("miou", "fb_iou")}
    of_run = [name for name in line if name.endswith("_rate") or name == "episodes_per_second"]
    losses = [name for name in line if name not in (*of_run, "step", "episodes", "seconds")]
    called = {"loss": "total", "main": "Dice"}
    shown = {f"loss/{called.get(name, name)}": line[name] for name in losses}
    return {**shown, **{f"run/{name}": line[name] for name in of_run}}
