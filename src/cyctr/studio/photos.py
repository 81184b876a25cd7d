"""Photos as the page shows them: upright, small or in tiles, always packed again, never as their files."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cyctr.errors import DataError
from cyctr.images.imaging import read_reduced
from cyctr.inference.inputs import to_image
from cyctr.storage import write_atomically
from cyctr.studio.listing import looked_at, path_of
from cyctr.studio.project import CACHE, Project
from cyctr.studio.records import Photo
from cyctr.studio.refusals import RefusedError
from cyctr.types import Pixels
from cyctr.words import one_line

SIDES = (160, 320, 640, 1280, 2560, 4096)
TILE = 512
TILED = 4000
"""Pixels of the longer side of a photo from which the page asks for tiles."""
_KEPT_ON_DISK = 640  # pixels of the longer side of a picture: larger ones are made when they are asked for
_REMEMBERED = 3 * 2**27  # bytes of photos that are kept unpacked
_COARSEST = 8
_QUALITY = 88


class Photos:
    """Reads the photos of a project. Threads may share it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, tuple[int, int] | None, int], Pixels] = OrderedDict()
        self._reading: dict[tuple[str, int], threading.Lock] = {}

    def pixels(self, photo: Photo) -> Pixels:
        """(H, W, 3) of a photo, upright, not to be changed.

        Raises:
            GoneError: it is no longer there, or another.
            RefusedError: it cannot be read.
        """
        return self._level(looked_at(self._project, photo), 0)

    def picture(self, photo: Photo, side: int) -> bytes:
        """A JPEG of a photo whose longer side has at most so many pixels."""
        if side not in SIDES:
            raise RefusedError(f"side is {side}; expected {', '.join(map(str, SIDES))}")
        photo = looked_at(self._project, photo)
        if side > _KEPT_ON_DISK:
            return _jpeg(_smaller(self._level(photo, 0), side))
        stamp = photo.stamp or (0, 0)
        path = self._project.folder / CACHE / "pictures" / photo.id[:2] / f"{photo.id}-{stamp[1]:x}-{stamp[0]:x}-{side}.jpg"
        try:
            return path.read_bytes()
        except OSError:
            content = _jpeg(_smaller(self._read(photo, lambda file: read_reduced(file, side)), side))
        try:
            write_atomically(path, content)
        except OSError:  # a full disk is no reason to show nothing
            return content
        return content

    def tile(self, photo: Photo, level: int, column: int, row: int) -> bytes:
        """A JPEG of a tile of a level, of which each has half the pixels a side of the one before."""
        photo = looked_at(self._project, photo)
        height, width = (-(-side // 2 ** max(0, min(level, _COARSEST))) for side in photo.size)
        if not (0 <= level <= _COARSEST and 0 <= column * TILE < width and 0 <= row * TILE < height):
            raise RefusedError(f"there is no tile {column},{row} of level {level}; the level has {width} x {height} pixels")
        pixels = self._level(photo, level)
        return _jpeg(pixels[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE])

    def _level(self, photo: Photo, level: int) -> Pixels:
        key = (photo.id, photo.stamp, level)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            reading = self._reading.setdefault((photo.id, level), threading.Lock())
        with reading:  # those who ask for the same at once wait for the first
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            pixels = self._read(photo, to_image) if level == 0 else _halved(self._level(photo, level - 1))
            with self._lock:
                self._reading.pop((photo.id, level), None)
                self._kept[key] = pixels
                while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _REMEMBERED:
                    self._kept.popitem(last=False)
            return pixels

    def _read(self, photo: Photo, read: Callable[[Path], Pixels]) -> Pixels:
        if photo.problem is not None:
            raise RefusedError(photo.problem)
        try:
            return read(path_of(self._project, photo))
        except DataError as error:
            self._project.store.update(photo.id, problem=one_line(error))
            raise RefusedError(one_line(error)) from error


def _halved(pixels: Pixels) -> Pixels:
    """Half the pixels a side, rounded up."""
    height, width = ((side + 1) // 2 for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))


def _smaller(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    longest = max(pixels.shape[:2])
    if longest <= side:
        return pixels
    height, width = (max(1, round(one * side / longest)) for one in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0))


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=_QUALITY)
    return content.getvalue()
