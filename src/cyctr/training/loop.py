"""The loop of a training run: step after step, and what it writes on the way."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cyctr.episodes.sampler import Draw
from cyctr.errors import DataError, TrainingError
from cyctr.training.run_folder import BEST, CURVES, Standing, kept_for_good, random_state
from cyctr.training.trainer import Stopped, Trainer
from cyctr.transfer import Fetching
from cyctr.visual.curves import draw_curves
from cyctr.words import counted

_LOG_STEPS = 20
_ASKING = 1.0  # seconds after which several processes ask the first again whether to stop or save
Outcome = Literal["finished", "time", "stopped"]
OnRecord = Callable[[dict[str, Any]], None]
"""Told of each line of the metrics."""
OnStep = Callable[[int], None]
"""Told how many steps are done, after each."""


def run(
    trainer: Trainer,
    on_record: OnRecord | None = None,
    stop: Callable[[], bool] | None = None,
    on_step: OnStep | None = None,
) -> Outcome:
    """Trains to the end of the schedule, unless time runs out or someone asks it to stop.

    Args:
        trainer: begun.
        on_record: told of each line of the metrics, in the leading process.
        stop: asked after each step whether to end early, in good order.
        on_step: told how many steps are done.
    """
    if trainer.finished:
        return "finished"
    with (
        torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []),
        _deterministic(trainer.options.deterministic),
    ):
        return _Session(trainer, on_record, stop, on_step).run()


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Kernels that add up in a fixed order, where that is wanted."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Done(NamedTuple):
    """A step, or a part of one, that was computed: what it saw, and what it lost, still on the device.

    Attributes:
        step: its number, from 0 on.
        draws: its groups.
        means: (3,) total, main and auxiliary loss.
        each: (E,) loss of each episode.
    """

    step: int
    draws: tuple[Draw, ...]
    means: Tensor
    each: Tensor


class _Interval(NamedTuple):
    """Steps of which a line of the metrics will tell.

    Attributes:
        parts: of the steps, in this process.
        losses: (processes, parts, 3 + E) their `means` and `each`, on their way to the host.
        seconds: that training took.
    """

    parts: list[_Done]
    losses: Fetching
    seconds: float


class _Session:
    """The loop of one process, from the trainer's step to the end."""

    def __init__(
        self, trainer: Trainer, on_record: OnRecord | None, stop: Callable[[], bool] | None, on_step: OnStep | None
    ) -> None:
        self.trainer, self.on_record, self.stop, self.on_step = trainer, on_record, stop, on_step
        self.leads = trainer.world.leads
        self.began = time.perf_counter()
        self.saved = self.began
        self.recent: list[_Done] = []  # of this interval
        self.pending: _Interval | None = None  # the one before
        self.interval = self.began
        self.idle = 0.0  # seconds of this interval that were not training
        self.asked, self.ask_at = (trainer.step, self.began), trainer.step + 1  # when that was last done, and when it is again
        self.validate_at = self._every(trainer.options.validate_every or 0)
        self.keep_at = self._every(trainer.options.keep_every)
        self.board = _board(trainer) if self.leads else None

    def run(self) -> Outcome:
        """Trains; where the data fail in the middle of a step, the steps before it are kept."""
        trainer = self.trainer
        try:
            return self._train()
        except DataError as error:
            if not trainer.step or trainer.world.size > 1:  # the other processes know nothing of it
                raise
            self.recent = [done for done in self.recent if done.step < trainer.step]  # of the step it failed in are parts
            self._save()
            done = counted(trainer.step * trainer.config.training.batch, "episode")
            raise DataError(f"{error} (the state after {done} is saved: mend this, and go on with --resume)") from error

    def _train(self) -> Outcome:
        self.trainer.model.train()
        try:
            outcome = self._learn()
            self._save()
            if outcome != "stopped":
                self._validate()
                self._save(last=True)  # knows the best
        except Stopped:
            self._save()
            outcome = "stopped"
        if self.board is not None:
            self.board.close()
        return outcome

    def _learn(self) -> Outcome:
        """Does all steps that are left, or some of them."""
        trainer = self.trainer
        self._do_what_is_due()  # a run that was stopped after a step has left that undone
        for step in self._steps():
            trainer.step = step + 1
            if self.on_step is not None:
                self.on_step(trainer.step)
            if trainer.step == trainer.config.training.steps:
                break
            if trainer.step % _LOG_STEPS == 0:
                self._log()
            asked = self._ask()
            if asked in ("stopped", "time"):
                return asked
            self._do_what_is_due(save=asked == "save")
        return "finished"

    def _do_what_is_due(self, save: bool = False) -> None:
        """Validates, and keeps a checkpoint for good, after a step that asks for it."""
        step = self.trainer.step
        if step in self.validate_at:
            self._validate()
        if step in self.keep_at:
            self._save(kept_for_good(step * self.trainer.config.training.batch))
        elif save:
            self._save()

    def _ask(self) -> Literal["stopped", "time", "save", ""]:
        """What the leading process wants to happen now, in all of them."""
        trainer, world, now = self.trainer, self.trainer.world, time.perf_counter()
        if trainer.step < self.ask_at:
            return ""
        wanted = (
            self.stop is not None and self.stop(),
            now - self.began > 60 * trainer.options.max_minutes,
            now - self.saved > 60 * trainer.options.save_minutes,
        )
        first = wanted.index(True) if True in wanted else 3
        steps = 1
        if world.size > 1:  # asking costs a message: not after each step where they are short
            step, before = self.asked
            steps = int(world.agree(min(_LOG_STEPS, max(1, int(_ASKING * (trainer.step - step) / (now - before))))))
        self.asked, self.ask_at = (trainer.step, now), trainer.step + steps
        return ("stopped", "time", "save", "")[int(world.agree(first))]

    def _steps(self) -> Iterator[int]:
        """Does step after step, and gives the number of each that is done."""
        trainer, training = self.trainer, self.trainer.config.training
        pieces, world = trainer.options.accumulate, trainer.world
        todo = range(trainer.step, training.steps)
        feed = trainer.episodes.steps(todo, (world.rank, world.size), pieces)
        for step in todo:
            random_state(training.seed, step * world.size + world.rank, trainer.device)
            tokens = trainer.tokens(step)
            for _ in range(pieces):
                groups = next(feed)
                losses = trainer.losses(groups, tokens)
                (losses.total / pieces).backward()
                means = torch.stack([losses.total, losses.parts["main"], losses.parts["auxiliary"]])
                self.recent.append(_Done(step, groups.draws, means.detach(), losses.each.detach()))
            world.average(trainer.optimization.weights.values())
            trainer.optimization.step(step)
            yield step

    def _log(self) -> None:
        """Reports the interval before this one, whose numbers are ready without waiting."""
        if self.recent:
            losses = torch.stack([torch.cat([done.means, done.each]) for done in self.recent])  # (parts, 3 + E)
            fetching = Fetching(self.trainer.world.gather(losses))
            now = time.perf_counter()
            seconds, self.interval, self.idle = now - self.interval - self.idle, now, 0.0
            self._report()
            self.pending = _Interval(self.recent, fetching, seconds)
            self.recent = []

    def _settle(self) -> None:
        """Reports all steps so far. Whoever saves after this saves numbers."""
        self._log()
        self._report()
        if not self.trainer.optimization.finite:
            raise TrainingError(
                f"a gradient has spoiled the weights by step {self.trainer.step}, and they are no longer finite; "
                f"{self._remedy()}"
            )

    def _report(self) -> None:
        """Writes the line of the pending interval."""
        if self.pending is None:
            return
        parts, fetching, seconds = self.pending
        self.pending = None
        trainer, batch = self.trainer, self.trainer.config.training.batch
        losses = fetching.get()
        self._refuse_nonfinite(parts, losses[:, :, 3:])
        total, main, auxiliary = losses[:, :, :3].mean((0, 1)).tolist()
        step = parts[-1].step + 1
        count = len(parts) // trainer.options.accumulate
        rates = trainer.optimization.rates(step - 1)
        record = {
            "step": step,
            "episodes": step * batch,
            "loss": total,
            "main": main,
            "auxiliary": auxiliary,
            "convolution_rate": rates["convolutions"],
            "transformer_rate": rates["transformer"],
            **({"backbone_rate": rates["backbone"]} if self.trainer.config.model.backbone.tuned else {}),
            "episodes_per_second": round(count * batch / max(seconds, 1e-9), 2),
            "seconds": round(self._elapsed(), 2),
        }
        self._tell(record)

    def _refuse_nonfinite(self, parts: list[_Done], each: Tensor) -> None:
        """Stops all processes where the loss of an episode of any of them, (processes, parts, E), is no number."""
        bad = (~each.isfinite()).nonzero().tolist()
        if not bad:
            return
        process, part, place = min(bad, key=lambda found: found[1])  # the first step
        trainer, step, draws = self.trainer, parts[part].step, parts[part].draws
        parts_ahead = (process - trainer.world.rank) * trainer.options.accumulate  # of this process is the other
        number = draws[0].number + parts_ahead * len(draws) + place * len(draws) // each.shape[2]
        draw, dataset = trainer.episodes.sampler(number), trainer.dataset
        names = ", ".join(dataset.pool("train").keys[image] for image in (draw.query, *draw.supports))
        raise TrainingError(
            f"the loss is {float(each[process, part, place])} at step {step + 1}, in episode {number} "
            f"({dataset.classes[draw.category]}: {names}); {self._remedy()}"
        )

    def _remedy(self) -> str:
        """What to do about numbers that are none."""
        anew = "begin anew, with --force, with lower rates or --optimizer.clip 1"
        if not self.trainer.saved:
            return f"nothing was saved yet: {anew}{', or with --precision float32' * self.trainer.options.half}"
        onward = "go on from there with --resume --precision float32, or " * self.trainer.options.half
        return f"what was saved before is whole: {onward}{anew}"

    def _validate(self) -> None:
        """Scores the network, unless that was done after this step before the run was resumed.

        Raises:
            Stopped: someone has asked for that meanwhile, so that it is still to be done.
        """
        trainer = self.trainer
        if trainer.world.agree(trainer.validated) == trainer.step:
            return
        self._settle()
        before, found, stopped = time.perf_counter(), None, False
        if trainer.validation is not None:
            try:
                found = trainer.validate(self.stop)
            except Stopped:
                stopped = True
        if trainer.world.agree(stopped):  # the others wait here
            raise Stopped
        if found is not None:
            if found["split"] == "validation" and found["miou"] > trainer.best:
                trainer.best = found["miou"]
                trainer.save(BEST)
            self._tell(
                {
                    "step": trainer.step,
                    "episodes": trainer.step * trainer.config.training.batch,
                    "validation": found,
                    "seconds": round(self._elapsed(), 2),
                }
            )
        trainer.validated = trainer.step
        self.idle += time.perf_counter() - before

    def _save(self, extra: str | None = None, last: bool = False) -> None:
        """Keeps the state; and a checkpoint, of another name too, or the last one."""
        trainer = self.trainer
        self._settle()
        before = time.perf_counter()
        if self.leads:
            if not trainer.saved:
                self._save_state()  # first, once: a network without a state is one whose state was lost
            if extra is not None:
                trainer.save(extra)
            trainer.save(recognising=last)
            self._save_state()
            self._draw()
        trainer.world.agree(0.0)
        trainer.saved = True
        self.saved = time.perf_counter()
        self.idle += self.saved - before

    def _save_state(self) -> None:
        trainer = self.trainer
        standing = Standing(trainer.step, trainer.validated, trainer.best)
        trainer.record_session()
        trainer.folder.save_state(trainer.optimization.state(), standing)

    def _draw(self) -> None:
        drawn = draw_curves(self.trainer.folder.records())
        if drawn is not None:
            self.trainer.folder.write(CURVES, drawn)

    def _tell(self, record: dict[str, Any]) -> None:
        if not self.leads:
            return
        self.trainer.folder.log(record)
        if self.board is not None:
            _to_board(self.board, record)
        if self.on_record is not None:
            self.on_record(record)

    def _elapsed(self) -> float:
        return self.trainer.seconds + time.perf_counter() - self.began

    def _every(self, episodes: int) -> set[int]:
        """The steps after which so many more episodes are done; the last, after which everything is due, is not among them."""
        if not episodes:
            return set()
        training = self.trainer.config.training
        stride = max(1, round(episodes / training.batch))
        return set(range(stride, training.steps, stride))


def _board(trainer: Trainer) -> Any:
    """A writer for TensorBoard, or none where it is not wanted or not installed."""
    if not trainer.options.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    done = trainer.step * trainer.config.training.batch
    return SummaryWriter(os.fspath(trainer.folder.path / "tensorboard"), purge_step=done + 1)


def _to_board(board: Any, record: dict[str, Any]) -> None:
    episodes = record["episodes"]
    if "validation" in record:
        board.add_scalar("validation/miou", record["validation"]["miou"], episodes)
        board.add_scalar("validation/fb_iou", record["validation"]["fb_iou"], episodes)
        return
    for name, shown in {"loss": "total", "main": "Dice", "auxiliary": "auxiliary"}.items():
        board.add_scalar(f"loss/{shown}", record[name], episodes)
    for name in ("convolution_rate", "transformer_rate", "backbone_rate", "episodes_per_second"):
        if name in record:
            board.add_scalar(f"run/{name}", record[name], episodes)
