"""What all formats share: the values that are written, the names of files, and refusing what cannot be written."""

import hashlib
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cyctr.errors import ConfigError, DataError
from cyctr.images.imaging import image_size
from cyctr.storage import write_atomically
from cyctr.words import listed, one_line

_LONGEST = 80  # bytes of a class in a file's name, which may have 255 in all
_MARKED = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, eq=False)
class Found:
    """One class in one image.

    Attributes:
        name: of the class.
        mask: (H, W).
        probability: (H, W); None where it is not kept.
        confidence: 0 to 1, that the class is in the image at all.
    """

    name: str
    mask: NDArray[np.bool_]
    probability: NDArray[np.float32] | None
    confidence: float

    def __post_init__(self) -> None:
        title = f"what was found of {one_line(self.name)!r}"
        if self.mask.dtype != np.bool_ or self.mask.ndim != 2 or self.mask.size == 0:
            raise DataError(f"{title}: mask is {self.mask.dtype} of shape {self.mask.shape}; expected bool of shape (H, W)")
        if self.probability is not None and self.probability.shape != self.mask.shape:
            raise DataError(f"{title}: probability is {self.probability.shape}, mask is {self.mask.shape}; expected one size")
        if not (math.isfinite(self.confidence) and 0 <= self.confidence <= 1):
            raise DataError(f"{title}: confidence is {self.confidence}; expected 0 to 1")


class Writer(Protocol):
    """Writes the images of one run into one folder. One process at a time may write there; it may use many threads.

    Attributes:
        shared: files that belong to all images together, relative to the folder.
        writes_probabilities: whether it looks at what is found beyond the masks.
    """

    shared: tuple[str, ...]
    writes_probabilities: bool

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        """Writes what was found in one image; the files it wrote, relative to the folder.

        What an earlier run wrote for this image is replaced. Classes that are not among `found` are not in the image.

        Args:
            key: a relative name without ending, such as `room/table`.
            image: its file, if there is one.
            found: each class once, all masks of one size. If empty, the size is read from `image`.
        """
        ...

    def done(self, key: str) -> bool:
        """Whether an earlier run has written this image completely."""
        ...

    def finish(self) -> list[str]:
        """Writes what belongs to all images together; those files, relative to the folder."""
        ...


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """The classes, each a name of its own."""
    if not classes:
        raise ConfigError("there are no classes; expected one name or more")
    for name, count in Counter(classes).items():
        if not name or "\0" in name:
            raise ConfigError(f"a class is called {name!r}; expected a text without zero bytes: rename it")
        if count > 1:
            raise ConfigError(f"the class {one_line(name)!r} is named {count} times; expected once: rename or leave out one")
    return tuple(classes)


def check_key(key: str) -> str:
    """The key, which leads to a place inside the folder."""
    parts = re.split(r"[/\\]" if os.name == "nt" else "/", key)
    outside = any(part in ("", ".", "..") for part in parts) or PurePath(key).is_absolute() or PurePath(key).drive
    if outside or "\0" in key:
        raise DataError(
            f"the image {one_line(key)!r} would be written outside the folder or nowhere; expected a relative name such as "
            "room/table: rename it"
        )
    return key


def by_class(key: str, found: Sequence[Found], classes: Sequence[str]) -> dict[str, Found]:
    """What was found, by class, in the order of the classes."""
    given = {one.name: one for one in found}
    title = f"image {one_line(key)!r}"
    if len(given) != len(found):
        twice = [one_line(name) for name, count in Counter(one.name for one in found).items() if count > 1]
        raise DataError(f"{title}: holds {listed(twice)} more than once; expected each class once")
    if strange := [one_line(name) for name in given if name not in classes]:
        raise DataError(
            f"{title}: holds {listed(strange)}; expected the classes {listed([one_line(name) for name in classes])}"
        )
    sizes = {one.mask.shape for one in found}
    if len(sizes) > 1:
        raise DataError(f"{title}: has masks of the sizes {' and '.join(map(str, sorted(sizes)))}; expected one size")
    return {name: given[name] for name in classes if name in given}


def size_of(key: str, image: Path | None, found: Mapping[str, Found]) -> tuple[int, int]:
    """(height, width) of the masks; without any, those of the image."""
    for one in found.values():
        height, width = one.mask.shape
        return height, width
    if image is None:
        raise DataError(f"image {one_line(key)!r}: nothing was found, and it has no file; expected one to read its size from")
    return image_size(image)


def save(folder: Path, name: str, content: bytes | memoryview) -> str:
    """Writes a file, whole or not at all; its name."""
    try:
        write_atomically(folder / name, content)
    except OSError as error:
        raise unwritable(folder / name, error) from error
    return name


def unwritable(path: Path, error: OSError) -> DataError:
    """The line for a file that cannot be written."""
    return DataError(f"{one_line(path)}: cannot be written ({error.strerror}); choose another place, or make room for it")


def is_there(folder: Path, name: str) -> bool:
    """Whether a file is there. One with a name that no file can have is not."""
    return os.path.isfile(folder / name)


@dataclass(frozen=True)
class Shared:
    """A text that belongs to all images; it is written with the first, which lets a later run with other classes be noticed.

    Attributes:
        folder: where.
        name: of the file.
        content: of it.
        expected: what a file already there must hold; a user may have written to it, too.
    """

    folder: Path
    name: str
    content: str
    expected: re.Pattern[str]

    def is_there(self) -> bool:
        """Whether it is there; a file of that name with another content is an error."""
        path = self.folder / self.name
        try:
            there = path.read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataError(f"{one_line(path)}: cannot be read ({error.strerror}); choose another place") from error
        if not self.expected.search(there.replace("\r\n", "\n")):
            raise DataError(
                f"{one_line(path)}: names other classes than these; expected those of the earlier run in the same order: "
                "choose another place, or move the earlier files away"
            )
        return True

    def write(self) -> None:
        """Writes it unless it is there."""
        if not self.is_there():
            save(self.folder, self.name, self.content.encode(errors="surrogateescape"))


def file_names(classes: Sequence[str]) -> dict[str, str]:
    """For each class a part of a file's name: without dots, and apart even where capitals or accents do not count.

    A name of letters, digits, spaces, `-` and `_` stands for itself. Others have odd characters replaced by `_`, and end in a
    mark of eight hexadecimal digits that is theirs whatever the other classes are.
    """
    alike = Counter(map(_folded, classes))
    return {name: name if alike[_folded(name)] == 1 and _plain(name) else _marked(name) for name in classes}


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _plain(name: str) -> bool:
    return name == _cleaned(name) and not _MARKED.search(name)


def _marked(name: str) -> str:
    return f"{_cleaned(name)}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def _cleaned(name: str) -> str:
    clean = re.sub(r"[^\w -]", "_", name).strip()
    return clean.encode()[:_LONGEST].decode(errors="ignore")
