"""Masks as PNG: black and white for one class, class numbers for several, or a file for each class."""

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cyctr.errors import ConfigError, DataError
from cyctr.formats.writing import Found, Shared, by_class, check_key, file_names, is_there, save, size_of
from cyctr.images.imaging import write_values
from cyctr.limits import CLASSES
from cyctr.words import one_line

_NAMES, _PARTS = "classes.txt", "classes.json"


class MaskWriter:
    """masks/KEY.png: 255 where the class is, 0 elsewhere. For one class."""

    shared: tuple[str, ...] = ()
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        size = size_of(key, image, chosen)
        return [save(self._folder, _name(key), _black_and_white(chosen.get(self._classes[0]), size))]

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        return []


class NumberWriter:
    """masks/KEY.png: 0 is background, 1 the first class, 2 the second, ...; of masks that overlap the later class is seen.

    classes.txt names class 1 on its first line, and so on; a name that cannot be a line there (see `_line`) stands as in
    a file's name.
    """

    shared: tuple[str, ...] = (_NAMES,)
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        if len(classes) > CLASSES:
            raise ConfigError(
                f"there are {len(classes)} classes; a PNG of class numbers holds {CLASSES}: "
                "write a mask for each class (overlapping), or choose another format"
            )
        self._folder, self._classes = folder, classes
        parts = file_names(classes)
        names = "".join(f"{_line(name, parts[name])}\n" for name in classes)
        self._names = Shared(folder, _NAMES, names, _only(names))
        self._names.is_there()

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        values = np.zeros(size_of(key, image, chosen), np.uint8)
        for number, name in enumerate(self._classes, 1):
            if name in chosen:
                values[chosen[name].mask] = number
        name = _name(key)
        self._names.write()
        try:
            write_values(self._folder / name, values)
        except DataError as error:  # a key may have line breaks
            raise DataError(one_line(error)) from error
        return [name]

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        self._names.write()
        return [self._names.name]


class OverlapWriter:
    """masks/KEY.CLASS.png, 255 and 0, for each class, found or not; classes.json says which class each CLASS is."""

    shared: tuple[str, ...] = (_PARTS,)
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes
        self._parts = file_names(classes)
        names = json.dumps({part: name for name, part in self._parts.items()}, indent=1) + "\n"
        self._names = Shared(folder, _PARTS, names, _only(names))
        self._names.is_there()

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        size = size_of(key, image, chosen)
        names = self._files(key)
        self._names.write()
        return [
            save(self._folder, file, _black_and_white(chosen.get(name), size))
            for name, file in zip(self._classes, names, strict=True)
        ]

    def done(self, key: str) -> bool:
        return all(is_there(self._folder, name) for name in self._files(key))

    def finish(self) -> list[str]:
        self._names.write()
        return [self._names.name]

    def _files(self, key: str) -> list[str]:
        check_key(key)
        return [_name(f"{key}.{self._parts[name]}") for name in self._classes]


def _name(key: str) -> str:
    return f"masks/{check_key(key)}.png"


def _only(text: str) -> re.Pattern[str]:
    return re.compile(rf"\A\ufeff?{re.escape(text.strip())}\s*\Z")


def _black_and_white(found: Found | None, size: tuple[int, int]) -> bytes:
    values: NDArray[np.uint8] = np.zeros(size, np.uint8) if found is None else found.mask.view(np.uint8) * np.uint8(255)
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG")
    return content.getvalue()


def _line(name: str, part: str) -> str:
    """The name where a list of names gives it back; there a `#` begins a comment and spaces around a name do not count."""
    whole = name.splitlines() == [name] and "#" not in name and name.strip() == name
    return name if whole and name.isprintable() else part
