"""A mask -> polygons along the corners of its pixels. Pixel (row, column) is the square from (x, y) = (column, row) to +1."""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.75
"""Pixels by which a polygon may leave out a corner: enough to turn the steps of a slanted edge into a line."""

_AREA_CHANGED = 0.02  # of a polygon's area is the most that leaving out corners may change
_FEW = 8  # corners are not worth a thought, and specks have no more
_FUTILE = 0.3  # pixels: steps of a slanted edge lie farther from it, so nothing would be left out

_UPPER_LEFT, _UPPER_RIGHT, _LOWER_LEFT, _LOWER_RIGHT = 1, 2, 4, 8
_FALLING, _RISING = _UPPER_LEFT | _LOWER_RIGHT, _UPPER_RIGHT | _LOWER_LEFT  # two pixels that touch in a corner
_TURNS = np.array([bin(code).count("1") % 2 + 2 * (code in (_FALLING, _RISING)) for code in range(16)], np.uint8)

_STRIP = 2**22  # pixels whose corners are looked for at a time

Ring = NDArray[np.int64]


def contours(mask: NDArray[np.bool_], tolerance: float = TOLERANCE) -> list[Ring]:
    """The outer boundary of each connected region, simplified. What a region has holes in counts as filled.

    Pixels that touch in a corner are connected.

    Args:
        mask: (H, W).
        tolerance: see `simplify`; 0 gives polygons that fill to the region exactly.

    Returns:
        (P, 2) points (x, y), P at least 3, the last not a repetition of the first; from the top down, clockwise as seen.
    """
    return [simplify(ring, tolerance) for ring in rings(mask) if signed_area(ring) > 0]


def rings(mask: NDArray[np.bool_]) -> list[Ring]:
    """All boundaries of a mask, exactly: the corners where they turn.

    Filling them by the even-odd rule gives the mask back. Regions are connected across corners, holes are not.

    Returns:
        (P, 2) points (x, y) with the region on the right as seen: clockwise around a region, the other way around a hole.
        Each begins at the leftmost of its topmost corners, and they follow each other in that order.
    """
    places, codes = _corners(mask)
    if not len(places):
        return []
    y, x = np.divmod(places, mask.shape[1] + 1)

    # Along a row of corners the first and second end one stretch of boundary, the third and fourth another, and so on;
    # along a column as well. Where two regions meet, the first of the twins ends the stretch on the left.
    left, right = np.arange(0, len(places), 2), np.arange(1, len(places), 2)
    second = np.zeros(len(places), np.int64)
    second[1:] = places[1:] == places[:-1]
    # The boundary turns around the pixels outside. Outside of falling neighbours is upper right, so there the right one
    # goes up; outside of rising ones is upper left, so there the left one does.
    down = np.where(codes == _FALLING, 1 - second, second)
    by_column = np.lexsort((down, y, x))
    upper, lower = by_column[::2], by_column[1::2]

    following = np.empty(len(places), np.int64)
    rightward = codes[left] & _LOWER_RIGHT > 0
    following[np.where(rightward, left, right)] = np.where(rightward, right, left)
    upward = codes[upper] & _LOWER_RIGHT > 0
    following[np.where(upward, lower, upper)] = np.where(upward, upper, lower)
    points = np.column_stack((x, y))
    return [points[cycle] for cycle in _cycles(following)]


def _corners(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(M,) the corners where a boundary turns, by rows, and which of the four pixels around each are inside.

    Where two regions meet in a corner, it is there twice. Some rows at a time: all of a photograph takes much memory.
    """
    height, width = mask.shape
    step = max(1, _STRIP // width)
    places, codes = [], []
    for top in range(0, height + 1, step):
        bottom = min(top + step, height + 1)  # of the rows of corners
        rows = mask[max(0, top - 1) : bottom]
        inside = np.pad(rows, ((int(top == 0), int(bottom > height)), (1, 1))).view(np.uint8)
        around = (  # (bottom - top, W + 1)
            inside[:-1, :-1] | inside[:-1, 1:] << 1 | inside[1:, :-1] << 2 | inside[1:, 1:] << 3
        ).ravel()
        turns = _TURNS[around]
        found = np.flatnonzero(turns)
        found = np.repeat(found, turns[found])
        places.append(found + top * (width + 1))
        codes.append(around[found])
    return np.concatenate(places), np.concatenate(codes)


def simplify(ring: Ring, tolerance: float) -> Ring:
    """A ring with fewer of its corners (Douglas and Peucker): those left out are within `tolerance` pixels of its edges.

    Where the parts cut off and added come to more than 2 % of the area, as they would for a thin line or a speck,
    the tolerance is halved until they do not. Edges of very thin regions may come to cross.
    """
    if len(ring) <= _FEW:
        return ring
    most = _AREA_CHANGED * abs(signed_area(ring))
    while tolerance > _FUTILE:
        kept = _important(ring, tolerance)
        if len(kept) >= 3 and _changed_area(ring, kept) <= most:
            return ring[kept]
        tolerance /= 2
    return ring


def signed_area(ring: Ring) -> float:
    """The area inside a ring; negative for one that runs around a hole."""
    return float(_cross(ring, np.roll(ring, -1, axis=0)).sum()) / 2


def _cycles(following: NDArray[np.int64]) -> list[list[int]]:
    """The cycles of a permutation, each from its smallest member."""
    after = following.tolist()
    found = []
    for start in range(len(after)):
        if after[start] < 0:
            continue
        cycle, here = [], start
        while after[here] >= 0:
            cycle.append(here)
            after[here], here = -1, after[here]
        found.append(cycle)
    return found


def _changed_area(ring: Ring, kept: NDArray[np.int64]) -> float:
    """The area between a ring and its edges from each kept corner to the next, whether it is cut off or added."""
    following = np.roll(ring, -1, axis=0)
    crossed = np.concatenate(([0], np.cumsum(_cross(ring, following))))  # (P + 1,) twice the area as seen from (0, 0)
    ends = np.append(kept[1:], len(ring))  # the first corner is always kept
    along = crossed[ends] - crossed[kept]
    return float(np.abs(along - _cross(ring[kept], ring[ends % len(ring)])).sum()) / 2


def _cross(start: Ring, end: Ring) -> NDArray[np.int64]:
    return start[:, 0] * end[:, 1] - start[:, 1] * end[:, 0]


def _important(ring: Ring, tolerance: float) -> NDArray[np.int64]:
    """The indices of the corners to keep, the first of them 0."""
    closed = np.concatenate((ring, ring[:1])).astype(np.float64)
    kept = np.zeros(len(closed), np.bool_)
    farthest = int(((closed - closed[0]) ** 2).sum(1).argmax())
    kept[[0, farthest]] = True
    stretches = [(0, farthest), (farthest, len(ring))]
    while stretches:
        start, end = stretches.pop()
        if end - start < 2:
            continue
        distances = _squared_distances(closed[start + 1 : end], closed[start], closed[end])
        worst = int(distances.argmax())
        if distances[worst] > tolerance**2:
            middle = start + 1 + worst
            kept[middle] = True
            stretches += [(start, middle), (middle, end)]
    return np.flatnonzero(kept[:-1])


def _squared_distances(
    points: NDArray[np.float64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(P,) squared distances of (P, 2) points to the line from `start` to `end`, which may be one point."""
    direction = end - start
    length = direction @ direction
    away = points - start
    along = np.clip(away @ direction / length, 0, 1) if length else np.zeros(len(points))
    away -= along[:, None] * direction
    return np.einsum("ij,ij->i", away, away)
