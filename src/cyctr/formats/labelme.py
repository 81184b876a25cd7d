"""Masks as polygons in the format of LabelMe, to be corrected by hand there."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyctr.formats.contours import contours
from cyctr.formats.writing import Found, by_class, check_key, is_there, save, size_of

_VERSION = "5.5.0"  # of LabelMe, whose fields these are


class LabelmeWriter:
    """labels/KEY.json: a polygon for each connected region, its outer boundary. It cannot express holes: they are filled."""

    shared: tuple[str, ...] = ()
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        name = _name(key)
        height, width = size_of(key, image, chosen)
        document: dict[str, Any] = {
            "version": _VERSION,
            "flags": {},
            "shapes": [
                _shape(label, ring.astype(float).tolist()) for label, one in chosen.items() for ring in contours(one.mask)
            ],
            "imagePath": key.rpartition("/")[2] if image is None else _from(self._folder / name, image),
            "imageData": None,
            "imageHeight": height,
            "imageWidth": width,
        }
        return [save(self._folder, name, f"{json.dumps(document)}\n".encode())]

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        return []


def _name(key: str) -> str:
    return f"labels/{check_key(key)}.json"


def _shape(label: str, points: list[list[float]]) -> dict[str, Any]:
    return {"label": label, "points": points, "group_id": None, "shape_type": "polygon", "flags": {}}


def _from(file: Path, image: Path) -> str:
    """The path to the image, as seen from the folder of a file; links are followed, since `..` leads to their targets."""
    image = image.parent.resolve() / image.name
    try:
        return Path(os.path.relpath(image, file.parent.resolve())).as_posix()
    except ValueError:  # on another drive
        return image.as_posix()
