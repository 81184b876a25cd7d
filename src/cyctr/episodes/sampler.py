"""Which class, which query, which supports: episode i is a function of the dataset, the fold, the split, the seed and i."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cyctr.config import Order
from cyctr.datasets.dataset import Dataset, Split
from cyctr.datasets.index import Index, Integers
from cyctr.errors import DataError
from cyctr.seeding import Stream


@dataclass(frozen=True)
class Draw:
    """One episode before any pixel is read.

    Attributes:
        number: i.
        category: the class, as its place in `Dataset.classes`.
        query: the image to segment, as its place in the pool.
        supports: K other images of the class.
    """

    number: int
    category: int
    query: int
    supports: tuple[int, ...]


class Sampler:
    """Draws episodes, in any order and from any process, always the same ones.

    The supports of K shots begin with those of fewer shots, which lets numbers for different K be compared on the same
    queries and nested supports.
    """

    def __init__(
        self,
        dataset: Dataset,
        index: Index,
        fold: int = 0,
        split: Split = "test",
        shots: int = 1,
        seed: int = 0,
        order: Order = "images",
        smallest: int | None = None,
        drop_novel: bool = False,
    ) -> None:
        """Checks that every class can give an episode.

        Args:
            dataset: classes and folds.
            index: of the split's pool.
            fold: which class split.
            split: which side of it.
            shots: K.
            seed: another seed, other episodes.
            order: how the query is found; see `ProtocolConfig.order`.
            smallest: an image counts for a class from this many pixels on; default: the dataset's.
            drop_novel: leave out images in which any test class occurs, in training and validation.
        """
        if shots < 1:
            raise DataError(f"shots is {shots}; expected at least 1")
        self.classes = dataset.fold(fold).classes(split)
        if not self.classes:
            remedy = "choose another split"
            if split == "train":
                remedy = "name only some classes for the test, and leave the others to learn from"
            raise DataError(f"fold {fold} of {dataset.name} has no {split} classes; {remedy}")
        self.shots, self.order = shots, order
        self.key = (dataset.name, fold, split, seed)
        images, numbers = eligible(dataset, index, fold, split, smallest, drop_novel)
        self.pairs = list(zip(images.tolist(), numbers.tolist(), strict=True))
        self.images = list(dict.fromkeys(images.tolist()))
        self.holders = {c: images[numbers == c].tolist() for c in self.classes}
        self._place = {c: {image: place for place, image in enumerate(held)} for c, held in self.holders.items()}
        self._within: dict[int, list[int]] = {}
        for image, number in self.pairs:
            self._within.setdefault(image, []).append(number)
        for c, held in self.holders.items():
            if len(held) < shots + 1:
                smallest = dataset.smallest if smallest is None else smallest
                found = f"{len(held)} image{'s' if len(held) != 1 else ''}"
                size = f" with at least {smallest} pixels of it" if smallest > 1 else ""
                raise DataError(
                    f"class {dataset.classes[c]!r} has {found}{size} in the {split} split of {dataset.name}; "
                    f"a {shots}-shot episode needs {shots + 1}: add images, or ask for less; "
                    "`cyctr data check` says what each class has"
                )

    def __call__(self, number: int) -> Draw:
        """Episode `number`, from 0 on, without end."""
        stream = Stream("episode", *self.key, number)
        query, category = self._query(number, stream)
        held, place = self.holders[category], self._place[category][query]
        picks = stream.choose(len(held) - 1, self.shots)
        return Draw(number, category, query, tuple(held[pick + (pick >= place)] for pick in picks))

    def _query(self, number: int, stream: Stream) -> tuple[int, int]:
        if self.order == "pairs":
            return self.pairs[number % len(self.pairs)]
        if self.order == "classes":
            lap, place = divmod(number, len(self.classes))
            category = self.classes[_shuffled(self.key, lap, len(self.classes))[place]]
            held = self.holders[category]
            return held[stream.below(len(held))], category
        lap, place = divmod(number, len(self.images))
        query = self.images[_shuffled(self.key, lap, len(self.images))[place] if self.order == "shuffled" else place]
        within = self._within[query]
        return query, within[stream.below(len(within))]


def eligible(
    dataset: Dataset, index: Index, fold: int, split: Split, smallest: int | None = None, drop_novel: bool = False
) -> tuple[Integers, Integers]:
    """The images and classes of all (image, class) pairs that episodes may use, in list order; arguments as for `Sampler`."""
    sides = dataset.fold(fold)
    images, numbers = index.pairs(sides.classes(split), dataset.smallest if smallest is None else smallest)
    if drop_novel and split != "test":
        novel, _ = index.pairs(sides.test)
        kept = ~np.isin(images, novel)
        images, numbers = images[kept], numbers[kept]
    return images, numbers


@lru_cache(maxsize=16)
def _shuffled(key: tuple[str | int, ...], lap: int, count: int) -> list[int]:
    """The order of one time round."""
    return Stream("order", *key, lap).choose(count, count)
