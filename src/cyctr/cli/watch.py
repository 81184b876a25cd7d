"""How a training run goes, on the screen: a bar, or a line now and then where there is no terminal to draw one on."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from cyctr.words import counted

if TYPE_CHECKING:
    from cyctr.training.loop import Trainer

_TELL_STEPS, _TELL_SECONDS = 3, 10  # before the first line, and between lines, where there is no terminal for a bar
_RECENT_STEPS = 100  # that say how long the others will take
_LONG = 12 * 3600  # seconds from which on a run is called long


class Watch:
    """Tells how a run goes, in the leading process."""

    def __init__(self, trainer: "Trainer") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        training = trainer.config.training
        self.training, self.device = training, trainer.device
        self.leads, self.batch, self.steps = trainer.world.leads, training.batch, training.steps
        self.console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        quiet = trainer.finished or not (self.console.is_terminal and self.leads)
        self.bar = Progress(*columns, console=self.console, disable=quiet)
        total, done = training.steps * training.batch, trainer.step * training.batch
        self.task = self.bar.add_task("", total=total, completed=done, text="starting")
        self.loss = ""
        self.recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS)  # steps, and when they were done
        self.told: float | None = None

    def on_step(self, step: int) -> None:
        """Told how many steps are done."""
        now = time.perf_counter()
        self.recent.append((step, now))
        first, began = self.recent[0]
        if step == first:
            return  # what takes long once, such as compiling, is over now
        each = (now - began) / (step - first)
        left = each * (self.steps - step)
        text = f"{self.loss}{self.batch / each:.1f} episodes/s  {_duration(left)} left"
        self.bar.update(self.task, completed=step * self.batch, text=text)
        if len(self.recent) >= _TELL_STEPS and self.leads:
            self._tell(step, text, left, now)

    def _tell(self, step: int, text: str, left: float, now: float) -> None:
        """A line when it is first known how long the run will take, then now and then where there is no terminal."""
        begins = self.told is None
        if self.told is not None and (self.console.is_terminal or now - self.told <= _TELL_SECONDS):
            return
        self.told = now
        self._print(f"{step * self.batch:>9,} of {counted(self.steps * self.batch, 'episode')}  {text}")
        if begins and left > _LONG:
            faster = "" if self.device.type == "cuda" else ", or use a GPU"
            self._print(
                f"note: at this speed it takes {_duration(left)} more; lower --training.episodes (now "
                f"{self.training.length:,}) or --training.augmentation.size (now {self.training.augmentation.size}){faster}"
            )

    def on_record(self, record: dict[str, Any]) -> None:
        """Told of each line of the metrics."""
        if "validation" in record:
            found = record["validation"]
            scores = f"mIoU {100 * found['miou']:.1f}  FB-IoU {100 * found['fb_iou']:.1f}"
            self._print(f"{counted(record['episodes'], 'episode'):>18}  {scores}  ({found['split']} classes)")
        else:
            auxiliary = f", of supports {record['auxiliary']:.3f}" if record.get("auxiliary") else ""
            self.loss = f"Dice {record['main']:.3f}{auxiliary}  " if "main" in record else f"loss {record['loss']:.3f}  "

    def _print(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
