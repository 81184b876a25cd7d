"""Counts -> IoU. Integers are added up over episodes; ratios are taken once, at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr.types import IGNORE

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Pixels by what was answered and what is true; sums with `+`."""

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


def count_pixels(mask: Tensor, labels: Tensor) -> Tensor:
    """(4,) int64: the fields of `Counts` for a bool prediction against uint8 labels of the same shape; 255 does not count."""
    counted, truth = labels != IGNORE, labels == 1
    hit, marked, true, every = ((mask & truth).sum(), (mask & counted).sum(), truth.sum(), counted.sum())
    return torch.stack([hit, marked - hit, true - hit, every - marked - true + hit])


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
        replicates: how often they are drawn anew for the interval.
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
    """(replicates,) mIoU with the queries of each class drawn anew, with repetition.

    Args:
        categories: (E,) the class of each episode.
        counts: (E, 4) the fields of `Counts` of each.
        replicates: how often.
        seed: of the drawing.
        queries: (E,) the query of each. Episodes of one query stay together: they are not independent. By default each
            episode has its own.
    """
    image = np.arange(len(counts)) if queries is None else np.unique(np.asarray(queries), return_inverse=True)[1]
    pairs, place = np.unique(np.column_stack([categories, image]), axis=0, return_inverse=True)
    together = np.zeros((len(pairs), 4), np.int64)
    np.add.at(together, place.ravel(), counts)
    return _drawn_anew(np.column_stack([pairs[:, 0], together]).astype(np.int64).tobytes(), replicates, seed)


@lru_cache(maxsize=64)  # every save and every table asks, and it takes a second for ten thousand queries
def _drawn_anew(queries: bytes, replicates: int, seed: int) -> NDArray[np.float64]:
    table = np.frombuffer(queries, np.int64).reshape(-1, 5)  # (Q, 5) the class and the counts
    random = np.random.default_rng(seed)
    per_class = []
    for c in np.unique(table[:, 0]):
        own = table[table[:, 0] == c, 1:]  # (n, 4)
        times = random.multinomial(len(own), np.full(len(own), 1 / len(own)), size=replicates)  # (replicates, n)
        tp, fp, fn, _ = (times @ own).T
        per_class.append(tp / np.maximum(tp + fp + fn, 1))
    return np.mean(per_class, axis=0)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of replicates."""
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return low, high
