"""A dataset on disk: pools of labelled images, and folds that say which classes are met where."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, Protocol

from cyctr.config import ProtocolConfig, protocol
from cyctr.datasets.index import Index
from cyctr.errors import DataError
from cyctr.types import Pixels

Split = Literal["train", "validation", "test"]
OnProblem = Callable[[str], None]
"""Told of each problem. Returning means: leave the thing out and go on."""
OnProgress = Callable[[int, int], None]
"""Told how many of how many are done."""


def refuse(problem: str) -> NoReturn:
    """Stops at the first problem."""
    raise DataError(problem)


class Pool(Protocol):
    """An ordered list of images in which some classes are marked. Safe to read from many threads."""

    @property
    def keys(self) -> Sequence[str]:
        """A name for each image, in list order."""
        ...

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        ...

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where nobody decided, 0 elsewhere."""
        ...

    def index(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Index:
        """Which class covers how many pixels of which image; quick where a cache knows."""
        ...


@dataclass(frozen=True)
class Fold:
    """Which classes are learned from, and which are only met in the test. Numbers count from 0 in `Dataset.classes`."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    validation: tuple[int, ...] = ()

    def classes(self, split: Split) -> tuple[int, ...]:
        """The classes of one side."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, classes and folds.

    Attributes:
        name: which dataset this is; part of what decides an episode.
        classes: their names; a class's number is its place here.
        pools: the images of each split; without "validation", that split takes those of "train".
        folds: the class splits.
        smallest: an image counts for a class from this many of its pixels on.
        customs: by the name of a protocol, the fields of it that have other values on this dataset.
    """

    name: str
    classes: tuple[str, ...]
    pools: Mapping[Split, Pool]
    folds: tuple[Fold, ...]
    smallest: int = 1
    customs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def pool(self, split: Split) -> Pool:
        """The images of one split."""
        found = self.pools.get(split) or (self.pools.get("train") if split == "validation" else None)
        if found is None:
            raise DataError(
                f"{self.name} has no {split} images here; its list of them is missing: add it, or choose another split"
            )
        return found

    def protocol(self, name: str = "cyctr") -> ProtocolConfig:
        """The protocol of that name, with the number of episodes and the order that are usual on this dataset."""
        return replace(protocol(name), **self.customs.get(name, {}))

    def fold(self, number: int) -> Fold:
        """The class split of that number."""
        if not 0 <= number < len(self.folds):
            there = "fold 0 only" if len(self.folds) == 1 else f"folds 0 to {len(self.folds) - 1}: choose one of those"
            raise DataError(f"fold is {number}; {self.name} has {there}")
        return self.folds[number]
