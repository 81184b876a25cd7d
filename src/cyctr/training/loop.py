"""The trainer: turns the parts of a run, step after step, and writes what comes of it."""

import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

from torch import Tensor

from cyctr.checkpoint import checkpoint_bytes
from cyctr.episodes.image_store import ResidentStore
from cyctr.episodes.training_batches import Groups
from cyctr.errors import DataError, TrainingError
from cyctr.evaluation.answering import NetworkMethod
from cyctr.methods.base import Losses
from cyctr.training.metrics import Board, Metrics, NotFinite
from cyctr.training.network import Network, network_to_test, recognised, recognises
from cyctr.training.plan import advising_on_memory
from cyctr.training.run import Parts
from cyctr.training.run_folder import BEST, CURVES, LAST, kept_for_good
from cyctr.training.state import Standing, changes, describe_session, random_state, torch_as_it_was
from cyctr.training.validation import Stopped, score
from cyctr.visual.curves import draw_curves
from cyctr.words import counted

_LOG_STEPS = 20
_ASKING = 1.0  # seconds after which several processes ask the first again whether to stop or save
Outcome = Literal["finished", "time", "stopped"]
OnRecord = Callable[[dict[str, Any]], None]  # told of each line of the metrics
OnStep = Callable[[int], None]  # told how many steps are done, after each
Stop = Callable[[], bool]  # asked after each step whether to end early, in good order


class Trainer:
    """A run that turns. Attributes that a caller may read: `step`, `validated` and `best` say how far it is."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.plan = plan = parts.plan
        self.config, self.options, self.world = plan.config, plan.options, plan.world
        self.folder, self.device, self.fold = plan.folder, plan.device, plan.fold
        self.model, self.encoder, self.episodes = parts.network, parts.encoder, parts.episodes
        self.optimization, self.validation, self.dataset = parts.optimization, parts.validation, parts.dataset
        self.step, self.validated, self.best = parts.start.standing
        self.seconds, self.saved = parts.start.seconds, parts.start.saved
        self._recorded = False
        self._recognised: tuple[int, dict[str, Tensor]] | None = None  # with the step that it was made after
        self._set_off(None, None, None)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, not even the last validation."""
        return self.step == self.validated == self.config.training.steps

    @property
    def resident(self) -> bool:
        """Whether all images lie on the device."""
        return isinstance(self.parts.store, ResidentStore)

    @property
    def changed(self) -> list[str]:
        """What differs from the last session of a resumed run, and so changes the bits of the network."""
        return changes(self.parts.start.sessions, self._session())

    def begin(self) -> None:
        """Says in the folder how the run is made, and makes it ready to go on; a finished run is left as it is."""
        if self.world.leads and not self.finished:
            if self.plan.replace:
                self.folder.clear()
            self.folder.tidy()
            if not self.parts.start.sessions:
                self._record_session()  # first: it makes the folder that of a run
            self.folder.forget_after(self.step, self.validated)
            if self.parts.latent is not None:
                self.folder.save_regions(self.parts.latent.regions, self.parts.latent.digest)

    def run(self, on_record: OnRecord | None = None, stop: Stop | None = None, on_step: OnStep | None = None) -> Outcome:
        """Trains to the end of the schedule, unless time runs out or someone asks it to stop.

        Where the data fail in the middle of a step, the steps before it are kept.

        Args:
            on_record: told of each line of the metrics, in the leading process.
            stop: asked after each step.
            on_step: told how many steps are done.
        """
        if self.finished:
            return "finished"
        with advising_on_memory(self.plan), torch_as_it_was(self.device, self.options.deterministic):
            self._set_off(on_record, stop, on_step)
            try:
                return self._train()
            except DataError as error:
                if not self.step or self.world.size > 1:  # the other processes know nothing of it
                    raise
                self._metrics.forget_from(self.step)
                self._save()
                done = counted(self.step * self.config.training.batch, "episode")
                remedy = f"(the state after {done} is saved: mend this, and resume the run)"
                raise DataError(f"{error} {remedy}", *error.options, "resume") from error

    def losses(self, groups: Groups, drawn: Hashable) -> Losses:
        """What the network loses on groups of images; backward is the caller's."""
        with self.plan.precision():
            features = self.parts.encode(groups.images)
            tensors = (groups.images, groups.labels, groups.padding, groups.roles, groups.seeds)
            return self.parts.learn(self.model, features, *tensors, groups.rotated, drawn)

    def drawn(self, step: int) -> Hashable:
        """What is drawn for a whole step, as a function of the seed and the step."""
        return self.model.draw(self.config.training.seed, step, self.config.training.shots)

    def method(self, on_batch: Callable[[], None] | None = None) -> NetworkMethod:
        """The weights to test, ready to answer; training goes on beside them. Arguments as in `recognised`."""
        network = self._network_to_test()
        network.load_state_dict(self.recognised(network, on_batch), strict=False)
        return NetworkMethod(network, self.device, self.options.half)

    def recognised(self, tested: Network | None = None, on_batch: Callable[[], None] | None = None) -> dict[str, Tensor]:
        """What recognises the training classes, fitted to the weights to test, by its name in the network.

        Args:
            tested: the network with the weights to test, where it is at hand; made here otherwise.
            on_batch: called before each batch of the images that it is fitted to.
        """
        if not recognises(self.model):
            return {}
        if self._recognised is None or self._recognised[0] != self.step:
            backbone = (tested or self._network_to_test()).backbone
            size = self.config.training.augmentation.size
            with self.plan.precision():
                found = recognised(self.model, self.parts.store, self.parts.labelled, backbone, size, on_batch)
            self._recognised = (self.step, found)
        return self._recognised[1]

    def validate(self, stop: Stop | None = None) -> dict[str, Any]:
        """MIoU and FB-IoU of the weights to test, on classes that are not learned from.

        Args:
            stop: asked on the way whether to break it off.

        Raises:
            Stopped: it was.
        """
        assert self.validation is not None

        def go_on() -> None:
            if stop is not None and stop():
                raise Stopped

        return score(self.plan, self.validation, self.method(go_on), go_on)

    def save(self, name: str = LAST, recognising: bool = True) -> None:
        """Writes the network, ready for use.

        Args:
            name: of the file.
            recognising: with what `recognised` gives; without, it is written sooner, and takes training classes for others.
        """
        weights = {**self.optimization.tested, **(self.recognised() if recognising else {})}
        self.folder.write(name, checkpoint_bytes(self.model, self.config, weights, data=self.parts.data))

    def _network_to_test(self) -> Network:
        return network_to_test(self.model, self.config, self.encoder, self.optimization.tested)

    def _session(self) -> dict[str, Any]:
        return describe_session(self.device, self.options, self.world.size, self.plan.compiles)

    def _record_session(self) -> None:
        """Writes this session into the folder. A session that saves nothing is not recorded."""
        if not self._recorded:
            sessions = [*self.parts.start.sessions, self._session()]
            self.folder.write_config({**self.plan.about, "sessions": sessions})
            self._recorded = True

    def _set_off(self, on_record: OnRecord | None, stop: Stop | None, on_step: OnStep | None) -> None:
        """Starts the clocks, and the file of events at the first line."""
        self._on_record, self._stop, self._on_step = on_record, stop, on_step
        self._began = self._saved_at = time.perf_counter()
        self._metrics = Metrics(self.parts, self._began)
        self._board = Board(self.parts)
        self._asked, self._ask_at = (self.step, self._began), self.step + 1  # when that was last done, and when it is again
        self._validate_at = self._every(self.options.validate_every or 0)
        self._keep_at = self._every(self.options.keep_every)

    def _train(self) -> Outcome:
        self.model.train()
        try:
            outcome = self._learn()
            self._save()
            if outcome != "stopped":
                self._validate()
                self._save(last=True)  # knows the best
        except Stopped:
            self._save()
            outcome = "stopped"
        self._board.close()
        return outcome

    def _learn(self) -> Outcome:
        """Does all steps that are left, or some of them."""
        self._do_what_is_due()  # a run that was stopped after a step has left that undone
        for step in self._steps():
            self.step = step + 1
            if self._on_step is not None:
                self._on_step(self.step)
            if self.step == self.config.training.steps:
                break
            if self.step % _LOG_STEPS == 0:
                self._log()
            asked = self._ask()
            if asked in ("stopped", "time"):
                return asked
            self._do_what_is_due(save=asked == "save")
        return "finished"

    def _do_what_is_due(self, save: bool = False) -> None:
        """Validates, and keeps a checkpoint for good, after a step that asks for it."""
        if self.step in self._validate_at:
            self._validate()
        if self.step in self._keep_at:
            self._save(kept_for_good(self.step * self.config.training.batch))
        elif save:
            self._save()

    def _ask(self) -> Literal["stopped", "time", "save", ""]:
        """What the leading process wants to happen now, in all of them."""
        world, now = self.world, time.perf_counter()
        if self.step < self._ask_at:
            return ""
        wanted = (
            self._stop is not None and self._stop(),
            now - self._began > 60 * self.options.max_minutes,
            now - self._saved_at > 60 * self.options.save_minutes,
        )
        first = wanted.index(True) if True in wanted else 3
        steps = 1
        if world.size > 1:  # asking costs a message: not after each step where they are short
            step, before = self._asked
            steps = int(world.agree(min(_LOG_STEPS, max(1, int(_ASKING * (self.step - step) / (now - before))))))
        self._asked, self._ask_at = (self.step, now), self.step + steps
        return ("stopped", "time", "save", "")[int(world.agree(first))]

    def _steps(self) -> Iterator[int]:
        """Does step after step, and gives the number of each that is done."""
        training, pieces, world = self.config.training, self.options.accumulate, self.world
        todo = range(self.step, training.steps)
        feed = self.episodes.steps(todo, (world.rank, world.size), pieces)
        for step in todo:
            random_state(training.seed, step * world.size + world.rank, self.device)
            drawn = self.drawn(step)
            for _ in range(pieces):
                groups = next(feed)
                losses = self.losses(groups, drawn)
                (losses.total / pieces).backward()
                self._metrics.add(step, groups.draws, losses)
            world.average(self.optimization.weights.values())
            self.optimization.step(step)
            yield step

    def _log(self, settle: bool = False) -> None:
        """Writes lines of the metrics: of the interval before this one, or to settle of all steps so far."""
        try:
            lines = self._metrics.lines(settle)
        except NotFinite as error:
            raise self._spoiled(str(error)) from error
        for line in lines:
            self._tell(line)

    def _settle(self) -> None:
        """Reports all steps so far. Whoever saves after this saves numbers."""
        self._log(settle=True)
        if not self.optimization.finite:
            raise self._spoiled(f"a gradient has spoiled the weights by step {self.step}, and they are no longer finite")

    def _spoiled(self, fact: str) -> TrainingError:
        """The error for numbers that are not finite, with what to do."""
        half = self.options.half
        again = f"begin again, replacing this run, with lower rates or optimizer.clip=1{', or in float32' * half}"
        names = ("force", "optimizer.clip", *(["half"] if half else []))
        if not self.saved:
            return TrainingError(f"{fact}; nothing was saved yet: {again}", *names)
        onward = "resume the run in float32, or " * half
        return TrainingError(f"{fact}; what was saved before is whole: {onward}{again}", *(["resume"] if half else []), *names)

    def _validate(self) -> None:
        """Scores the network, unless that was done after this step before the run was resumed.

        Raises:
            Stopped: someone has asked for that meanwhile; the validation is still to be done.
        """
        if self.world.agree(self.validated) == self.step:
            return
        self._settle()
        before, found, stopped = time.perf_counter(), None, False
        if self.validation is not None:
            try:
                found = self.validate(self._stop)
            except Stopped:
                stopped = True
        if self.world.agree(stopped):  # the others wait here
            raise Stopped
        if found is not None:
            if found["split"] == "validation" and found["miou"] > self.best:
                self.best = found["miou"]
                self.save(BEST)
            self._tell({"step": self.step, "episodes": self.step * self.config.training.batch, "validation": found})
        self.validated = self.step
        self._metrics.pause(time.perf_counter() - before)

    def _save(self, extra: str | None = None, last: bool = False) -> None:
        """Keeps the state; and a checkpoint, of another name too, or the last one."""
        self._settle()
        before = time.perf_counter()
        if self.world.leads:
            if not self.saved:
                self._save_state()  # first, once: a network without a state is one whose state was lost
            if extra is not None:
                self.save(extra)
            self.save(recognising=last)
            self._save_state()
            drawn = draw_curves(self.folder.records())
            if drawn is not None:
                self.folder.write(CURVES, drawn)
        self.world.agree(0.0)
        self.saved = True
        self._saved_at = time.perf_counter()
        self._metrics.pause(self._saved_at - before)

    def _save_state(self) -> None:
        self._record_session()
        self.folder.save_state(self.optimization.state(), Standing(self.step, self.validated, self.best))

    def _tell(self, line: dict[str, Any]) -> None:
        """Writes a line of the metrics, in the leading process."""
        if not self.world.leads:
            return
        line = {**line, "seconds": round(self.seconds + time.perf_counter() - self._began, 2)}
        self.folder.log(line)
        self._board.add(line)
        if self._on_record is not None:
            self._on_record(line)

    def _every(self, episodes: int) -> set[int]:
        """The steps after which so many more episodes are done, without the last, after which everything is due."""
        if not episodes:
            return set()
        stride = max(1, round(episodes / self.config.training.batch))
        return set(range(stride, self.config.training.steps, stride))
