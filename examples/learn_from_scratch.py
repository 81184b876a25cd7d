"""Trains a small network on synthetic classes in a minute, without a download, and segments classes it has never seen.

    python examples/learn_from_scratch.py --output DIR

Writes DIR/episodes.png: support, query, prior map, cycle consistency and prediction of held-out classes.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cyctr import CyctrError, Episode
from cyctr.backbones.grid import Grid
from cyctr.config import BackboneConfig
from cyctr.datasets.synthetic import SyntheticEpisodes
from cyctr.evaluation.metrics import Counts
from cyctr.evaluation.metrics import count as count_pixels
from cyctr.methods.base import Losses, Step
from cyctr.methods.cyctr.config import EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import CyCTR, build
from cyctr.seeding import random_bits
from cyctr.types import Pixels, Prediction
from cyctr.visual.draw import BLUE, GREEN, cycle_map, enlarge, heat, majority_state, overlay, sheet, to_pixels

BASE = SyntheticEpisodes(range(400), size=129, seed=1)
NOVEL = SyntheticEpisodes(range(1000, 1100), size=129, seed=2)
STEPS = 240
EPISODES = 96  # of classes never seen, to score
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # where in their ranking the pictures are taken
LARGEST_SEED = 2**31
COLUMNS = ("support and label", "query and truth", "prior map", "cycle consistency", "prediction")
LEGEND = "Cycle consistency, on the support: red = consistent foreground, blue = consistent background, grey = filtered out."


def main(output: Path, steps: int, seed: int) -> None:
    path = picture_in(output)
    model = untrained(seed)
    before = score(model, NOVEL, count=EPISODES)

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
            progress.update(task, completed=step + 1, loss=f"Dice loss {losses.parts['main'].item():.3f}")

        fit(model, BASE, steps, rate=2e-3, seed=seed, on_step=on_step)
    found = overlaps(model, NOVEL, count=EPISODES)
    after = sum(found, start=Counts())

    ranked = sorted(range(EPISODES), key=lambda i: found[i].iou, reverse=True)
    shown = [ranked[int(place * EPISODES)] for place in SHOWN]
    episode = NOVEL.pick(shown)
    with torch.inference_mode():
        prediction = model(episode, explain=True)
    captions = [f"IoU {found[i].iou:.2f}, rank {ranked.index(i) + 1} of {EPISODES}" for i in shown]
    title = "Classes the network has never seen, one labelled image each, from good to bad"
    try:
        episode_sheet(episode, prediction, model.backbone.grid, title, captions).save(path)
    except OSError as error:
        raise CyctrError(f"{path}: cannot be written ({error.strerror}); choose another --output") from error
    print(f"IoU on {EPISODES} episodes of 100 held-out classes: {before.iou:.3f} untrained, {after.iou:.3f} trained")
    print(f"pictures: {path}")


def untrained(seed: int = 0) -> CyCTR:
    """A small network before it has seen anything."""
    config = ModelConfig(dim=64, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=4, points=4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config).eval()


def fit(
    model: CyCTR,
    episodes: SyntheticEpisodes,
    steps: int,
    batch: int = 8,
    rate: float = 1e-3,
    seed: int = 0,
    on_step: Callable[[int, Losses], None] | None = None,
) -> None:
    """Trains in place. Step i sees episodes i * batch and on; the same seed gives the same network."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_at(step, steps))
    model.train()
    with torch.random.fork_rng(devices=[]):  # dropout has no generator of its own
        torch.manual_seed(seed)
        for step in range(steps):
            episode = episodes.batch(step * batch, batch)
            seeds = torch.arange(step * batch, (step + 1) * batch)
            position = random_bits(seeds[:1], 1).item() / 2**32
            tokens = model.config.sampling.training_tokens(position, episode.shots)
            query, support = model.backbone(episode.query_images), model.backbone(episode.support_images.flatten(0, 1))
            losses = model.learn(episode, query, support, Step(seeds, tokens))
            optimizer.zero_grad()
            losses.total.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            if on_step is not None:
                on_step(step, losses)
    model.eval()


def _rate_at(step: int, steps: int) -> float:
    """The share of the full rate: up over the first tenth, then down along half a cosine."""
    warm_up = min(1.0, (step + 1) / max(1.0, 0.1 * steps))
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.inference_mode()
def overlaps(model: CyCTR, episodes: SyntheticEpisodes, count: int, batch: int = 8) -> list[Counts]:
    """How prediction and truth agree in each of the first `count` episodes."""
    found: list[Counts] = []
    for start in range(0, count, batch):
        episode = episodes.batch(start, min(batch, count - start))
        assert episode.query_labels is not None
        found += [count_pixels(mask, labels) for mask, labels in zip(model(episode).mask, episode.query_labels, strict=True)]
    return found


def score(model: CyCTR, episodes: SyntheticEpisodes, count: int) -> Counts:
    """The same over the first `count` episodes together."""
    return sum(overlaps(model, episodes, count), start=Counts())


def episode_sheet(
    episode: Episode, prediction: Prediction, grid: Grid, title: str, captions: Sequence[str], factor: int = 2
) -> Image.Image:
    """One row per episode, its first shot shown, each pixel as `factor` x `factor`.

    Args:
        episode: with query labels.
        prediction: made with `explain=True` by a network that attends to support tokens.
        grid: where the cells sit.
        title: above the sheet.
        captions: one line below each row.
        factor: how many times larger than life.
    """
    explanation = prediction.extras.explanation
    if explanation is None or explanation.state is None or episode.query_labels is None:
        raise CyctrError("the sheet needs query_labels and a prediction with explain=True of a network with cross-attention")
    rows = [_row(episode, prediction, grid, i, factor) for i in range(len(episode.query_images))]
    return sheet(rows, COLUMNS, captions, title, LEGEND)


def _row(episode: Episode, prediction: Prediction, grid: Grid, i: int, factor: int) -> list[Pixels]:
    explanation = prediction.extras.explanation
    assert episode.query_labels is not None
    support, query = (enlarge(to_pixels(image), factor) for image in (episode.support_images[i, 0], episode.query_images[i]))
    size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
    prior = enlarge(heat(grid.upsample(explanation.prior[i, None, None], size)[0, 0].cpu().numpy()), factor)
    height, width = explanation.support_grid
    first = explanation.index[i] < height * width  # tokens of the first shot
    state = majority_state(explanation.cross[-1].state[i])[first]
    centres = grid.centres(explanation.index[i][first], width).cpu().numpy() * factor + (factor - 1) / 2
    return [
        overlay(support, _enlarged(episode.support_labels[i, 0] == 1, factor)),
        overlay(query, _enlarged(episode.query_labels[i] == 1, factor), BLUE),
        prior,
        cycle_map(support, centres, state, radius=0.33 * grid.stride * factor),
        overlay(query, _enlarged(prediction.mask[i], factor), GREEN),
    ]


def _enlarged(mask: torch.Tensor, factor: int) -> NDArray[np.bool_]:
    return mask.cpu().numpy().repeat(factor, 0).repeat(factor, 1)


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
    parser.add_argument("--steps", type=number(1), default=STEPS, help="training steps of 8 episodes")
    parser.add_argument("--seed", type=number(0, LARGEST_SEED), default=0, help="another seed, another network")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    try:
        main(given.output, given.steps, given.seed)
    except CyctrError as error:
        sys.exit(f"learn_from_scratch.py: {error}")
