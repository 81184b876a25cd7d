"""All images and classes of a dataset to learn from: for networks that meet their test on somebody's own photographs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from cyctr.datasets.dataset import Dataset, Fold, OnProblem, OnProgress, Pool, refuse
from cyctr.datasets.index import Index
from cyctr.errors import ConfigError
from cyctr.types import Pixels

ALL = "all"


class JoinedPool:
    """Several pools one after the other."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = tuple(pools)
        self._starts = np.cumsum([0, *(len(pool.keys) for pool in pools)]).tolist()

    @cached_property
    def keys(self) -> Sequence[str]:
        """A name for each image, in list order."""
        return tuple(key for pool in self._pools for key in pool.keys)

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        pool, place = self._find(i)
        return pool.image(place)

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where nobody decided, 0 elsewhere."""
        pool, place = self._find(i)
        return pool.label(place, number)

    def index(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Index:
        """Which class covers how many pixels of which image."""
        parts = [pool.index(progress, complain) for pool in self._pools]
        image = [part.image + start for part, start in zip(parts, self._starts, strict=False)]
        return Index(
            np.concatenate([part.sizes for part in parts]),
            np.concatenate(image),
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.pixels for part in parts]),
        )

    def _find(self, i: int) -> tuple[Pool, int]:
        which = int(np.searchsorted(self._starts, i, side="right")) - 1
        return self._pools[which], i - self._starts[which]


def fold_to_learn(dataset: Dataset, fold: int | str | None = None, kept: bool = False) -> tuple[Dataset, int]:
    """The dataset to learn from, and which of its folds.

    Args:
        dataset: images, classes and folds.
        fold: a number, or "all" for every class and image; by default 0 where it leaves classes to learn from, else all.
        kept: whether somebody keeps classes for the test, which "all" would learn from: it is no default then.
    """
    if fold is None:
        fold = 0 if dataset.folds[0].train or kept else ALL
    if fold == ALL:
        return learn_from_everything(dataset), 0
    if not str(fold).isdecimal():
        raise ConfigError(f"fold is {fold!r}; expected a number from 0 to {len(dataset.folds) - 1}, or {ALL}")
    dataset.fold(int(fold))
    return dataset, int(fold)


def learn_from_everything(dataset: Dataset) -> Dataset:
    """The dataset with one fold that learns from every class in every image, and tests none."""
    pools = list({id(pool): pool for pool in dataset.pools.values()}.values())
    joined = pools[0] if len(pools) == 1 else JoinedPool(pools)
    every = Fold(tuple(range(len(dataset.classes))), ())
    return replace(dataset, name=f"{dataset.name}-all", pools={"train": joined}, folds=(every,))
