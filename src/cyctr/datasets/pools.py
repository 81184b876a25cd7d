"""Pools of files: images with one mask of class values each, or with a mask for each class that is in them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from cyctr.datasets.dataset import OnProblem, OnProgress, refuse
from cyctr.datasets.index import Index, Survey, cached, fingerprint, survey_all
from cyctr.errors import DataError
from cyctr.images.counting import count_values
from cyctr.images.imaging import image_size, read_image, read_values
from cyctr.types import IGNORE, Pixels


@dataclass(frozen=True, eq=False)
class FilePool(ABC):
    """What pools of files have in common: their images, and an index that is kept until a file changes.

    Attributes:
        root: the folder, for the cache.
        keys: the name of each image.
        images: their files.
        known: the index, where opening the dataset has made it already.
    """

    root: Path
    keys: tuple[str, ...]
    images: tuple[Path, ...]
    known: Index | None = field(default=None, kw_only=True)

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        return read_image(self.images[i])

    @abstractmethod
    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where nobody decided, 0 elsewhere."""

    def index(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Index:
        """Which class covers how many pixels of which image; quick where a cache knows."""
        if self.known is not None:
            return self.known
        if complain is not refuse:  # a scan looks at the files themselves
            return self._build(progress, complain)
        settings, masks = self._origin()
        try:
            key = fingerprint(type(self).__name__, self.keys, *settings, files=(*self.images, *masks))
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror}); restore the file, or remove it") from error
        name = f"{self.root.resolve()}:{type(self).__name__}:{settings}:{self.keys[:1]}:{len(self.keys)}"
        return cached(name, key, lambda: self._build(progress, complain))

    @abstractmethod
    def _origin(self) -> tuple[tuple[object, ...], tuple[Path, ...]]:
        """What the index depends on beside keys and images: settings, and the files of masks."""

    @abstractmethod
    def _build(self, progress: OnProgress | None, complain: OnProblem) -> Index:
        """Reads every mask."""

    def _size(self, i: int, mask: Path, values: Pixels) -> tuple[int, int]:
        """(height, width) of image i, if its mask has it too."""
        size = (values.shape[0], values.shape[1])
        expected = image_size(self.images[i])
        if size != expected:
            raise DataError(
                f"{mask}: mask is {size[0]} x {size[1]}, image {self.images[i].name} is "
                f"{expected[0]} x {expected[1]} (height x width); resize one to match the other"
            )
        return size


@dataclass(frozen=True, eq=False)
class LabelledPool(FilePool):
    """Images with one mask each whose values are classes: value `values[c]` is class c, 255 is ignored, the rest background.

    Attributes:
        masks: the file of each image's mask.
        values: the value of each class in the masks.
    """

    masks: tuple[Path, ...]
    values: tuple[int, ...]

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where nobody decided, 0 elsewhere."""
        values = read_values(self.masks[i])
        return np.where(values == IGNORE, IGNORE, values == self.values[number]).astype(np.uint8)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {value: number for number, value in enumerate(self.values)}

    def _origin(self) -> tuple[tuple[object, ...], tuple[Path, ...]]:
        return (self.values,), self.masks

    def _build(self, progress: OnProgress | None, complain: OnProblem) -> Index:
        return survey_all(len(self.keys), self._survey, progress, complain)

    def _survey(self, i: int) -> Survey:
        values = read_values(self.masks[i])
        size = self._size(i, self.masks[i], values)
        counts = count_values(values)
        present = np.flatnonzero(counts).tolist()
        strange = [v for v in present if v not in self._numbers and v not in (0, IGNORE)]
        if strange:
            raise DataError(
                f"{self.masks[i]}: holds the value {strange[0]}; expected {_ranges(self.values)} for the classes, "
                "0 for background and 255 for ignored pixels: correct the mask or the list of classes"
            )
        return Survey(size, {self._numbers[v]: int(counts[v]) for v in present if v in self._numbers})


@dataclass(frozen=True, eq=False)
class ClassMaskPool(FilePool):
    """Images with a mask file of its own for each class that is in them.

    Attributes:
        masks: for each image, the file of each class it has one for.
        read: turns such a file into (H, W): 1 where the class is, 255 where nobody decided, 0 elsewhere.
    """

    masks: tuple[Mapping[int, Path], ...]
    read: Callable[[Path], Pixels]

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where nobody decided, 0 elsewhere."""
        if number not in self.masks[i]:
            return np.zeros(image_size(self.images[i]), np.uint8)
        return self.read(self.masks[i][number])

    @cached_property
    def _files(self) -> tuple[tuple[int, int, Path], ...]:
        """Image, class and file of each mask, in the order of an index."""
        return tuple((i, number, masks[number]) for i, masks in enumerate(self.masks) for number in sorted(masks))

    def _origin(self) -> tuple[tuple[object, ...], tuple[Path, ...]]:
        return (self._files, self.read.__qualname__), tuple(path for _, _, path in self._files)

    def _build(self, progress: OnProgress | None, complain: OnProblem) -> Index:
        def survey(file: int) -> Survey:
            i, number, path = self._files[file]
            label = self.read(path)
            return Survey(self._size(i, path, label), {number: int(np.count_nonzero(label == 1))})

        found = survey_all(len(self._files), survey, progress, complain)
        image = np.array([i for i, _, _ in self._files], np.int64)
        sizes = np.zeros((len(self.keys), 2), np.int64)
        np.maximum.at(sizes, image, found.sizes)  # a mask that was left out says (0, 0), the others all the same
        return Index(sizes, image[found.image], found.number, found.pixels)


def _ranges(values: tuple[int, ...]) -> str:
    """Numbers as text, a gapless run as `first to last`."""
    gapless = len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1))
    return f"{values[0]} to {values[-1]}" if gapless else ", ".join(map(str, values))
