"""Trains a small network on synthetic classes in a minute, without a download, and segments classes it has never seen.

    python examples/learn_from_scratch.py --output DIR

Writes DIR/episodes.png: support, query, prior map, cycle consistency and prediction of held-out classes.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cyctr import CyctrError
from cyctr.evaluation.metrics import Counts
from cyctr.methods.cyctr.loss import Losses
from cyctr.training import demonstration
from cyctr.training.fit import overlaps, score
from cyctr.visual.episode import episode_sheet

EPISODES = 96  # of classes never seen, to score
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # where in their ranking the pictures are taken
LARGEST_SEED = 2**31


def main(output: Path, steps: int, seed: int) -> None:
    path = picture_in(output)
    model = demonstration.untrained(seed)
    before = score(model, demonstration.NOVEL, count=EPISODES)

    columns = (
        TextColumn("training on 400 classes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps, loss="")

        def on_step(step: int, losses: Losses) -> None:
            progress.update(task, completed=step + 1, loss=f"Dice loss {losses.main.item():.3f}")

        demonstration.train(model, steps, seed, on_step)
    found = overlaps(model, demonstration.NOVEL, count=EPISODES)
    after = sum(found, start=Counts())

    ranked = sorted(range(EPISODES), key=lambda i: found[i].iou, reverse=True)
    shown = [ranked[int(place * EPISODES)] for place in SHOWN]
    episode = demonstration.NOVEL.pick(shown)
    with torch.inference_mode():
        prediction = model(episode, explain=True)
    captions = [f"IoU {found[i].iou:.2f}, rank {ranked.index(i) + 1} of {EPISODES}" for i in shown]
    title = "Classes the network has never seen, one labelled image each, from good to bad"
    try:
        episode_sheet(episode, prediction, title, captions).save(path)
    except OSError as error:
        raise CyctrError(f"{path}: cannot be written ({error.strerror}); choose another --output") from error
    print(f"IoU on {EPISODES} episodes of 100 held-out classes: {before.iou:.3f} untrained, {after.iou:.3f} trained")
    print(f"pictures: {path}")


def picture_in(folder: Path) -> Path:
    """Where the picture goes, in a folder that can be written: better known before the training than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CyctrError(f"{folder}: cannot be made ({error.strerror}); choose another --output") from error
    path = folder / "episodes.png"
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise CyctrError(f"{path}: cannot be written; choose another --output")
    return path


def number(lowest: int, highest: int | None = None):
    """A reader of whole numbers in a range, for argparse."""

    def whole(text: str) -> int:
        value = int(text)
        if value < lowest or (highest is not None and value > highest):
            expected = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"is {value}; expected {expected}")
        return value

    return whole


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("scratch"), help="folder for the picture; made if it is not there")
    parser.add_argument("--steps", type=number(1), default=demonstration.STEPS, help="training steps of 8 episodes")
    parser.add_argument("--seed", type=number(0, LARGEST_SEED), default=0, help="another seed, another network")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    try:
        main(given.output, given.steps, given.seed)
    except CyctrError as error:
        sys.exit(f"learn_from_scratch.py: {error}")
