"""The synthetic classes as a dataset like any other: a fixed set of drawn images, in four folds."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from cyctr.datasets import folds, synthetic
from cyctr.datasets.dataset import Dataset, OnProblem, OnProgress, refuse
from cyctr.datasets.index import Index, Survey, cached, fingerprint, survey_all
from cyctr.types import Pixels


@dataclass(frozen=True)
class SyntheticPool:
    """`each` images of each class, drawn when they are asked for.

    Attributes:
        classes: how many.
        each: images of one class.
        size: height and width in pixels.
        seed: another seed, other images of the same classes.
    """

    classes: int = 40
    each: int = 10
    size: int = 257
    seed: int = 0

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name for each image, in list order."""
        return tuple(f"{number:03d}/{copy}" for number in range(self.classes) for copy in range(self.each))

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        return _drawn(self.seed, i // self.each, i % self.each, self.size)[0]

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 0 elsewhere."""
        own, copy = divmod(i, self.each)
        label = _drawn(self.seed, own, copy, self.size)[1]
        return label if own == number else np.zeros_like(label)

    def index(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Index:
        """Which class covers how many pixels of which image; quick where a cache knows."""
        key = fingerprint(self.classes, self.each, self.size, self.seed, files=[Path(synthetic.__file__)])
        return cached(f"{self}", key, lambda: survey_all(len(self.keys), self._survey, progress, complain))

    def _survey(self, i: int) -> Survey:
        own = i // self.each
        return Survey((self.size, self.size), {own: int(self.label(i, own).sum())})


def open_synthetic(pool: SyntheticPool | None = None) -> Dataset:
    """Synthetic classes in four folds; training and test show different images of different classes."""
    pool = pool or SyntheticPool()
    names = tuple(f"texture-{number:03d}" for number in range(pool.classes))
    return Dataset("synthetic", names, {"train": pool, "test": pool}, folds.contiguous(pool.classes))


@lru_cache(maxsize=256)
def _drawn(seed: int, number: int, copy: int, size: int) -> tuple[Pixels, Pixels]:
    return synthetic.draw_image(number, size, np.random.default_rng((seed, number, copy, 0x5E7)))
