"""Masks as polygons in the format that YOLO learns segmentation from."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cyctr.formats.contours import Ring, contours
from cyctr.formats.writing import Found, Shared, by_class, check_key, is_there, save

_DATA = "data.yaml"
_NOTE = "# To learn from it, add: path, train and val, the folders of the images."


class YoloWriter:
    """labels/KEY.txt: a line `CLASS x1 y1 x2 y2 ...` for each connected region, its outer boundary; empty for nothing found.

    CLASS counts from 0, x is in widths and y in heights of the image. It cannot express holes: they are filled. data.yaml
    names the classes.
    """

    shared: tuple[str, ...] = (_DATA,)
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes
        names = "".join(f"  {number}: {_quoted(name)}\n" for number, name in enumerate(classes))
        self._names = Shared(folder, _DATA, f"{_NOTE}\nnames:\n{names}", re.compile(rf"(?m)^names:\n{re.escape(names)}(?!  )"))
        self._names.is_there()

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        lines = [
            _line(self._classes.index(name), ring, one.mask.shape)
            for name, one in chosen.items()
            for ring in contours(one.mask)
        ]
        name = _name(key)
        self._names.write()
        return [save(self._folder, name, "".join(lines).encode())]

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        self._names.write()
        return [self._names.name]


def _name(key: str) -> str:
    return f"labels/{check_key(key)}.txt"


def _line(number: int, ring: Ring, size: tuple[int, ...]) -> str:
    height, width = size
    return " ".join([str(number), *(f"{part:.6f}" for part in (ring / np.array([width, height])).ravel().tolist())]) + "\n"


def _quoted(name: str) -> str:
    """A text as YAML quotes it; what a reader might refuse is escaped."""
    return f'"{"".join(map(_escaped, name))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() and ord(char) < 0x10000 else f"\\U{ord(char):08X}"
