"""Which windows of an image are looked at, and how their maps become one without seams."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr.images.geometry import Size

_LARGE, _STRIP = 2**24, 2**20  # pixels of a window that is worked on in parts, and of each part
_ALL = slice(None)
_AROUND = 1.6  # side of a closer look, in that of the thing's box
_SMALLEST = 64  # pixels of its side


class Window(NamedTuple):
    """A part of an image, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns of it."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def windows(size: Size, side: int | None, overlap: float) -> list[Window]:
    """Squares of `side` pixels that cover an image evenly, neighbours sharing at least `overlap` of their side.

    Args:
        size: height and width of the image.
        side: of a window; the whole image is one where it is None, or where nothing is larger than a window.
        overlap: at least 0, less than 1.
    """
    if side is None or max(size) <= side:
        return [Window(0, 0, *size)]
    rows, columns = (_starts(length, min(side, length), overlap) for length in size)
    return [Window(top, left, min(side, size[0]), min(side, size[1])) for top in rows for left in columns]


def _starts(length: int, side: int, overlap: float) -> list[int]:
    """Where windows of a side begin along a length, the first at 0, the last ending with it."""
    step = max(1, int(side * (1 - overlap)))
    count = 1 + -(-(length - side) // step)
    return [round(i * (length - side) / max(1, count - 1)) for i in range(count)]


def around(label: NDArray[np.uint8], side: int | None) -> Window:
    """The window of a side that holds most of what a label marks, with that in its middle as far as the image allows.

    Args:
        label: (H, W) 1 where the object is.
        side: the whole image where it is None, or where the image is no larger.
    """
    size = (label.shape[0], label.shape[1])
    if side is None or max(size) <= side:
        return Window(0, 0, *size)
    height, width = min(side, size[0]), min(side, size[1])
    top, left = _fullest(label == 1, height, width)
    inside = label[top : top + height, left : left + width] == 1
    shifts = (_to_the_middle(inside.any(axis=1 - axis)) for axis in (0, 1))
    limits = (size[0] - height, size[1] - width)
    pairs = zip((top, left), shifts, limits, strict=True)
    top, left = (min(max(start + shift, 0), most) for start, shift, most in pairs)
    return Window(top, left, height, width)


def middle(size: Size, side: int | None) -> Window:
    """The window of a side in the middle of an image; all of it where the side is None, or the image no larger."""
    height, width = (length if side is None else min(side, length) for length in size)
    return Window((size[0] - height) // 2, (size[1] - width) // 2, height, width)


def closer(marked: NDArray[np.bool_], most: float) -> Window | None:
    """A window around the marked object and as much of its surroundings; None where it would hardly be smaller.

    Args:
        marked: (H, W).
        most: side of a window that is worth a closer look, in that of the image.
    """
    rows, columns = (np.flatnonzero(marked.any(axis=1 - axis)) for axis in (0, 1))
    if not len(rows):
        return None
    size = (marked.shape[0], marked.shape[1])
    extent = max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1
    side = max(_SMALLEST, round(_AROUND * extent))
    if side >= most * max(size):
        return None
    lengths = [min(side, length) for length in size]
    middles = [int(places[0] + places[-1] + 1) // 2 for places in (rows, columns)]
    starts = [
        min(max(middle - length // 2, 0), whole - length) for middle, length, whole in zip(middles, lengths, size, strict=True)
    ]
    return Window(starts[0], starts[1], lengths[0], lengths[1])


def _fullest(marked: NDArray[np.bool_], height: int, width: int) -> tuple[int, int]:
    """The top and left of the window that holds most of what is marked; of several the first. Row by row: images are large."""
    columns = marked[:height].sum(0, dtype=np.int64)  # what is marked in each, from `top` to `top + height`
    best, place = -1, (0, 0)
    for top in range(len(marked) - height + 1):
        if top:
            columns += marked[top + height - 1]
            columns -= marked[top - 1]
        total = np.concatenate([[0], np.cumsum(columns)])
        held = total[width:] - total[:-width]  # (W - width + 1,)
        left = int(held.argmax())
        if held[left] > best:
            best, place = int(held[left]), (top, left)
    return place


def _to_the_middle(marked: NDArray[np.bool_]) -> int:
    """How far a stretch must move to have the marked object in its middle, but no further than the image allows."""
    places = np.flatnonzero(marked)
    return int(places[0] + places[-1] + 1 - len(marked)) // 2 if len(places) else 0


class Canvas:
    """The weighted mean of maps laid over an image; a window counts less towards its border, which hides the seams.

    Args:
        size: height and width of the image.
        count: how many maps there are, one for each class.
        device: where they are.
    """

    def __init__(self, size: Size, count: int, device: torch.device) -> None:
        self._whole, self._count, self._device = Window(0, 0, *size), count, device
        self._totals: list[Tensor] = []  # of a large image these are large: there when the network has done its work
        self._windows: list[Window] = []

    def add(self, window: Window, maps: Iterable[Tensor], rows: slice = _ALL) -> None:
        """Lays (height, width) of each map over a window; or some of its rows, and the others later."""
        if not self._windows:
            self._totals = [torch.zeros(self._whole[2:], device=self._device) for _ in range(self._count)]
        first, end, _ = rows.indices(window.height)
        if first == 0:
            self._windows.append(window)
        place = slice(window.top + first, window.top + end), window.slices[1]
        weight = self._weight(window, rows)
        for total, values in zip(self._totals, maps, strict=True):
            total[place] += values if window == self._whole else weight * values

    def means(self) -> list[Tensor]:
        """(H, W) each; every pixel must have been covered. Made in place: nothing can be added any more."""
        for rows in strips(self._whole):
            top, bottom, _ = rows.indices(self._whole.height)
            weight = torch.zeros(bottom - top, self._whole.width, device=self._device)
            for window in self._windows:
                first, end = max(top, window.top), min(bottom, window.top + window.height)
                if first < end:
                    own = self._weight(window, slice(first - window.top, end - window.top))
                    weight[first - top : end - top, window.slices[1]] += own
            for total in self._totals:
                total[rows].div_(weight)
        return self._totals

    def _weight(self, window: Window, rows: slice) -> Tensor:
        """How much some rows of a window count."""
        if window == self._whole:
            return torch.ones((), device=self._device)
        return _ramp(window.height, self._device)[rows, None] * _ramp(window.width, self._device)


def strips(window: Window) -> list[slice]:
    """The rows of a window in parts whose maps take little memory; all at once where the window is not large."""
    if window.height * window.width <= _LARGE:
        return [_ALL]
    rows = max(1, _STRIP // window.width)
    return [slice(top, min(top + rows, window.height)) for top in range(0, window.height, rows)]


def _ramp(length: int, device: torch.device) -> Tensor:
    """(length,) above 0, largest in the middle."""
    return torch.hann_window(length + 2, periodic=False, device=device)[1:-1] + 1e-3
