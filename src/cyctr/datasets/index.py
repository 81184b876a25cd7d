"""Which class covers how many pixels of which image: read from the masks once, then kept in the user's cache."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cyctr.datasets.derived import cache_file, cached_arrays
from cyctr.datasets.parallel import in_threads
from cyctr.errors import DataError

_FORMAT = 1
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Survey:
    """What one image holds: its (height, width), and the pixels of each class that occurs in it."""

    size: tuple[int, int]
    pixels: dict[int, int]


@dataclass(frozen=True, eq=False)
class Index:
    """Class pixels of every image of a pool.

    Attributes:
        sizes: (n, 2) height and width of each image; (0, 0) for one that was left out.
        image: (P,) the image of each (image, class) pair, increasing.
        number: (P,) its class, increasing within an image.
        pixels: (P,) how many pixels of the class the image has.
    """

    sizes: Integers
    image: Integers
    number: Integers
    pixels: Integers

    @classmethod
    def of(cls, surveys: Iterable[Survey]) -> "Index":
        """The index of images in order."""
        sizes, pairs = [], []
        for i, survey in enumerate(surveys):
            sizes.append(survey.size)
            pairs += [(i, number, count) for number, count in sorted(survey.pixels.items()) if count > 0]
        table = np.array(pairs, np.int64).reshape(-1, 3)
        return cls(np.array(sizes, np.int64).reshape(-1, 2), table[:, 0], table[:, 1], table[:, 2])

    def __len__(self) -> int:
        return len(self.sizes)

    def pairs(self, classes: Sequence[int], smallest: int = 1) -> tuple[Integers, Integers]:
        """The images and classes of all pairs of these classes with at least `smallest` pixels, in list order."""
        kept = np.isin(self.number, classes) & (self.pixels >= smallest)
        return self.image[kept], self.number[kept]

    @cached_property
    def digest(self) -> str:
        """A checksum of all of it."""
        total = hashlib.sha256()
        for part in (self.sizes, self.image, self.number, self.pixels):
            total.update(np.ascontiguousarray(part, "<i8").tobytes())
        return total.hexdigest()


def survey_all(
    count: int,
    survey: Callable[[int], Survey],
    progress: Callable[[int, int], None] | None,
    complain: Callable[[str], None],
) -> Index:
    """Surveys images 0 to count - 1 in parallel threads; one that cannot be read is complained of and counts as empty."""

    def attempt(i: int) -> Survey | DataError:
        try:
            return survey(i)
        except DataError as error:
            return error

    found = []
    for result in in_threads(attempt, count, progress):
        if isinstance(result, DataError):
            complain(str(result))
            result = Survey((0, 0), {})
        found.append(result)
    return Index.of(found)


def fingerprint(*parts: object, files: Iterable[Path] = ()) -> str:
    """A key that changes when a value does, or the size or the time of a file."""
    stats = [(file.name, (state := file.stat()).st_size, state.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([_FORMAT, *parts, stats], default=str).encode()).hexdigest()


def cached(name: str, key: str, build: Callable[[], Index]) -> Index:
    """The index kept under a name if it has this key, otherwise what `build` gives, kept for the next time.

    Args:
        name: of the file in the cache; the place of the data, say.
        key: a `fingerprint` of all that the index depends on.
        build: makes it.
    """
    parts = [part.name for part in fields(Index)]
    return Index(**cached_arrays(cache_file("index", name), key, parts, lambda: asdict(build())))
