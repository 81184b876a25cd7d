"""Boxes and outlines in pixels of an image -> the label of what they hold."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.errors import DataError
from cyctr.limits import check_outline

_FARTHEST = 1e6  # pixels; beyond it lie mistakes, and numbers that divide badly


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of the image: a pixel is inside where its centre is, so 2 to 7 are the pixels 2, 3, 4, 5, 6.

    Attributes:
        left: x where it begins.
        top: y where it begins.
        right: x where it ends, exclusive.
        bottom: y where it ends, exclusive.
    """

    left: float
    top: float
    right: float
    bottom: float

    def __post_init__(self) -> None:
        for side in ("left", "top", "right", "bottom"):
            object.__setattr__(self, side, _coordinate(getattr(self, side), f"box: {side}"))
        if self.left >= self.right or self.top >= self.bottom:
            corners = f"left {self.left:g}, top {self.top:g}, right {self.right:g}, bottom {self.bottom:g}"
            raise DataError(f"box: holds nothing ({corners}); expected left below right and top below bottom: swap the corners")


@dataclass(frozen=True)
class Polygons:
    """Outlines in pixels of the image; a pixel inside any of them is marked. Lists and arrays of points are taken too.

    A pixel is inside where its centre is; where an outline crosses itself, what it goes round twice is outside.

    Attributes:
        contours: the outlines, each of 3 points (x, y) or more.
    """

    contours: tuple[tuple[tuple[float, float], ...], ...]

    def __post_init__(self) -> None:
        remedy = "expected outlines, each a list of 3 points (x, y) or more: Polygons([[(2, 1), (7, 1), (7, 5)]])"
        try:
            contours = [[tuple(point) for point in contour] for contour in self.contours]
        except TypeError as error:
            raise DataError(f"polygons: hold something else than points; {remedy}") from error
        if not contours:
            raise DataError(f"polygons: hold no outline; {remedy}")
        for number, contour in enumerate(contours):
            if len(contour) < 3:
                raise DataError(f"polygons: outline {number} has {len(contour)} points; {remedy}")
            if any(len(point) != 2 for point in contour):
                raise DataError(f"polygons: outline {number} has a point that is not two numbers; {remedy}")
        checked = tuple(
            tuple(
                (_coordinate(x, f"polygons: x of outline {i}"), _coordinate(y, f"polygons: y of outline {i}")) for x, y in each
            )
            for i, each in enumerate(contours)
        )
        for number, each in enumerate(checked):
            try:
                check_outline(np.array(each))
            except DataError as error:
                raise DataError(f"polygons: outline {number} {error}") from None
        object.__setattr__(self, "contours", checked)


def _coordinate(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{name} is {value!r:.40}; expected a number of pixels") from None
    if not abs(number) <= _FARTHEST:  # NaN too
        raise DataError(f"{name} is {number:g}; expected pixels, from {-_FARTHEST:g} to {_FARTHEST:g}")
    return number


def box_label(box: Box, size: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """(H, W) of 1 inside a box and 0 elsewhere; an error calls it `name`."""
    label = np.zeros(size, np.uint8)
    columns, rows = ((max(0, math.ceil(a - 0.5)), max(0, math.ceil(b - 0.5))) for a, b in _spans(box))
    label[slice(*rows), slice(*columns)] = 1
    if not label.any():
        corners = f"left {box.left:g}, top {box.top:g}, right {box.right:g}, bottom {box.bottom:g}"
        raise DataError(f"{name}: the box marks nothing ({corners}); {_within(size)}")
    return label


def _spans(box: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    return (box.left, box.right), (box.top, box.bottom)


def _within(size: tuple[int, int]) -> str:
    return f"the image has x from 0 to {size[1]} and y from 0 to {size[0]}: give pixels of it, not fractions"


def polygons_label(polygons: Polygons, size: tuple[int, int], name: str) -> NDArray[np.uint8]:
    """(H, W) of 1 inside any outline and 0 elsewhere; an error calls it `name`."""
    label = np.zeros(size, np.uint8)
    for number, contour in enumerate(polygons.contours):
        points = np.array(contour)  # (n, 2)
        low, high = points.min(0), points.max(0)
        if (high <= 0).any() or low[0] >= size[1] or low[1] >= size[0]:
            reach = f"x from {low[0]:g} to {high[0]:g} and y from {low[1]:g} to {high[1]:g}"
            raise DataError(f"{name}: outline {number} lies outside the image, with {reach}; {_within(size)}")
        _fill(label, points)
    if not label.any():
        raise DataError(f"{name}: the outlines mark nothing, for no pixel's centre is inside; {_within(size)}")
    return label


def _fill(label: NDArray[np.uint8], points: NDArray[np.float64]) -> None:
    """Sets to 1 the pixels whose centres an outline holds: those with an odd number of its edges to their left."""
    height, width = label.shape
    x, y = points.T
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    first, end = (np.ceil(bound(y, next_y) - 0.5).clip(0, height).astype(np.int64) for bound in (np.minimum, np.maximum))
    crossed = end - first  # rows whose centres lie between the ends of each edge; a level edge has no row
    edge = np.repeat(np.arange(len(x)), crossed)
    row = np.arange(len(edge)) - np.repeat(crossed.cumsum() - crossed - first, crossed)
    slope = (next_x - x)[edge] / (next_y - y)[edge]
    column = np.ceil(x[edge] + (row + 0.5 - y[edge]) * slope - 0.5).clip(0, width).astype(np.int64)
    if len(edge) == 0:
        return
    top, bottom, left, right = row.min(), row.max() + 1, column.min(), column.max()  # nothing is inside to the right of these
    odd = np.zeros((bottom - top, right - left + 1), np.uint8)
    np.bitwise_xor.at(odd, (row - top, column - left), 1)
    label[top:bottom, left:right] |= np.bitwise_xor.accumulate(odd[:, :-1], axis=1)
