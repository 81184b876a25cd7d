"""Counts -> IoU. Integers are added up over episodes; ratios are taken once, at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr.seeding import Stream
from cyctr.types import IGNORE

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Pixels by answer and truth; sums with `+`."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.true_positive + other.true_positive,
            self.false_positive + other.false_positive,
            self.false_negative + other.false_negative,
            self.true_negative + other.true_negative,
        )

    @property
    def iou(self) -> float:
        """Intersection over union of the foreground; 0 where both are empty."""
        return _ratio(self.true_positive, self.false_positive + self.false_negative)

    @property
    def background_iou(self) -> float:
        """Intersection over union of the background; 0 where both are empty."""
        return _ratio(self.true_negative, self.false_positive + self.false_negative)


def _ratio(shared: int, wrong: int) -> float:
    return shared / (shared + wrong) if shared + wrong else 0.0


def count_pixels(masks: Tensor, labels: Tensor) -> Tensor:
    """(..., 4) int64: the fields of `Counts` for (..., H, W) bool predictions against uint8 labels; 255 does not count."""
    counted, truth = labels != IGNORE, labels == 1
    sums = [pixels.flatten(-2).sum(-1) for pixels in (masks & truth, masks & counted, truth, counted)]
    hit, marked, true, every = sums
    return torch.stack([hit, marked - hit, true - hit, every - marked - true + hit], -1)


def count(mask: Tensor, labels: Tensor) -> Counts:
    """As `count_pixels`, as whole numbers."""
    return Counts(*count_pixels(mask, labels).tolist())


@dataclass(frozen=True)
class Result:
    """The numbers of one run over episodes of one fold.

    Attributes:
        classes: IoU of each class that was met.
        miou: their mean.
        fb_iou: the mean of foreground and background IoU, whatever the class.
        interval: 95 % bootstrap interval of `miou`.
    """

    classes: Mapping[int, float]
    miou: float
    fb_iou: float
    interval: tuple[float, float]


def summarise(
    categories: Sequence[int], counts: Integers, replicates: int = 1000, queries: Sequence[str] | None = None, seed: int = 0
) -> Result:
    """IoUs of episodes.

    Args:
        categories: (E,) the class of each episode.
        counts: (E, 4) the fields of `Counts` of each.
        replicates: how often they are drawn again for the interval.
        queries: (E,) the query of each, as for `replicate_miou`.
        seed: of the drawing.
    """
    belongs = np.asarray(categories)
    met = sorted(set(belongs.tolist()))
    total = {c: Counts(*counts[belongs == c].sum(0).tolist()) for c in met}
    classes = {c: total[c].iou for c in met}
    together = sum(total.values(), start=Counts())
    return Result(
        classes,
        float(np.mean(list(classes.values()))),
        (together.iou + together.background_iou) / 2,
        interval(replicate_miou(belongs, counts, replicates, seed, queries)),
    )


def replicate_miou(
    categories: NDArray[np.integer],
    counts: Integers,
    replicates: int = 1000,
    seed: int = 0,
    queries: Sequence[str] | None = None,
) -> NDArray[np.float64]:
    """(replicates,) mIoU with the query images drawn again (a Poisson bootstrap).

    An image is in a replicate 0, 1, 2, ... times, with all its episodes: they are not independent. How often depends on
    its name and the seed alone, so that the replicates of runs over the same images can be averaged one by one.

    Args:
        categories: (E,) the class of each episode.
        counts: (E, 4) the fields of `Counts` of each.
        replicates: how often.
        seed: of the drawing.
        queries: (E,) the query of each; by default each episode has its own.
    """
    names = [str(number) for number in range(len(counts))] if queries is None else queries
    times = np.stack([_times_drawn(seed, name, replicates) for name in names], 1).astype(float)  # (replicates, E)
    per_class = []
    for c in sorted(set(np.asarray(categories).tolist())):
        own = np.asarray(categories) == c
        tp, fp, fn, _ = (times[:, own] @ counts[own].astype(float)).T  # whole numbers, far below 2^53
        found = Counts(*counts[own].sum(0).tolist()).iou  # stands for a replicate without any image of the class
        union = tp + fp + fn
        per_class.append(np.where(union > 0, tp / np.maximum(union, 1), found))
    return np.mean(per_class, axis=0)


@lru_cache(maxsize=2**16)
def _times_drawn(seed: int, name: str, replicates: int) -> NDArray[np.uint8]:
    """(replicates,) how often an image is in each replicate: Poisson numbers of mean 1."""
    random = np.random.default_rng(Stream("bootstrap", seed, name).word())
    return random.poisson(1, replicates).astype(np.uint8)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of replicates."""
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return low, high
