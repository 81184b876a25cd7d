"""Masks made tidy: small regions dropped, holes filled, parts counted."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cyctr.images.counting import count_values

Bools = NDArray[np.bool_]
_NEIGHBOURS = np.ones((3, 3))  # parts may touch at corners
_SIDES = ndimage.generate_binary_structure(2, 1)  # but what is outside of them may not
_STRIP = 2**22  # pixels that are numbered at a time: numbers of all of a photograph would take four bytes a pixel


def clean(mask: Bools, smallest: int = 0, fill_holes: bool = False) -> Bools:
    """The mask without regions and, where holes are filled, without holes.

    Args:
        mask: (H, W).
        smallest: pixels of the smallest connected region that stays.
        fill_holes: what a region encloses belongs to it.
    """
    if fill_holes and mask.any():
        outside = _Parts(~mask, _SIDES)
        mask = outside.chosen(outside.at_border)
        np.logical_not(mask, out=mask)
        del outside
    if smallest > 1 and mask.any():
        parts = _Parts(mask, _NEIGHBOURS)
        mask = parts.chosen(parts.pixels >= smallest)
    return mask


def components(mask: Bools) -> NDArray[np.int32]:
    """(H, W): 0 outside the mask, 1, 2, ... in its parts that touch at sides or corners, the largest first."""
    numbers, count = ndimage.label(mask, _NEIGHBOURS)
    sizes = count_values(numbers, count + 1)[1:]
    rank = np.zeros(count + 1, np.int32)
    rank[1 + np.argsort(-sizes, kind="stable")] = np.arange(1, count + 1)
    return rank[numbers]


class _Parts:
    """The connected parts of a mask, which is numbered strip by strip, and again when they are asked for.

    Args:
        mask: (H, W).
        neighbours: (3, 3) which places touch.
    """

    def __init__(self, mask: Bools, neighbours: NDArray[np.generic]) -> None:
        self._mask, self._neighbours = mask, neighbours
        pixels, pairs, count = [np.zeros(1, np.int64)], [], 0
        above: NDArray[np.int64] | None = None
        for _, numbers in self._strips():
            found = count_values(numbers, 1)[1:]
            if above is not None:
                pairs.append(self._touching(above, np.where(numbers[0] > 0, numbers[0] + count, 0)))
            pixels.append(found)
            above = np.where(numbers[-1] > 0, numbers[-1].astype(np.int64) + count, 0)
            count += len(found)
        joined = np.concatenate([np.zeros((0, 2), np.int64), *pairs])
        graph = coo_array((np.ones(len(joined), np.bool_), (joined[:, 0], joined[:, 1])), shape=(count + 1, count + 1))
        self._whole = connected_components(graph, directed=False)[1]  # (count + 1,) the part that each piece is of
        self.pixels = np.bincount(self._whole, np.concatenate(pixels)).astype(np.int64)
        """(parts,) of each."""

    @cached_property
    def at_border(self) -> Bools:
        """(parts,) which of them reach the border of the image."""
        found, start = np.zeros(len(self.pixels), np.bool_), 0
        for rows, numbers in self._strips():
            ends = [numbers[:, 0], numbers[:, -1]]
            ends += [numbers[0]] * (rows.start == 0) + [numbers[-1]] * (rows.stop == len(self._mask))
            for edge in ends:
                found[self._whole[edge[edge > 0] + start]] = True
            start += int(numbers.max())
        return found

    def chosen(self, which: Bools) -> Bools:
        """(H, W) the mask of (parts,) chosen ones."""
        mask, start = np.empty_like(self._mask), 0
        for rows, numbers in self._strips():
            count = int(numbers.max())
            stays = np.concatenate([[False], which[self._whole[start + 1 : start + count + 1]]])
            mask[rows] = stays[numbers]
            start += count
        return mask

    def _strips(self) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """Rows of the mask and the numbers of their pieces, which count from 1 in each strip."""
        height, width = self._mask.shape
        step = max(1, _STRIP // width)
        for top in range(0, height, step):
            rows = slice(top, min(top + step, height))
            yield rows, ndimage.label(self._mask[rows], self._neighbours)[0]

    def _touching(self, above: NDArray[np.int64], below: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, 2) pieces of two rows that touch."""
        shifts = (-1, 0, 1) if self._neighbours[0, 0] else (0,)
        pairs = []
        for shift in shifts:
            upper = above[max(0, shift) : len(above) + min(0, shift)]
            lower = below[max(0, -shift) : len(below) + min(0, -shift)]
            both = (upper > 0) & (lower > 0)
            pairs.append(np.unique(np.column_stack([upper[both], lower[both]]), axis=0))
        return np.concatenate(pairs)
