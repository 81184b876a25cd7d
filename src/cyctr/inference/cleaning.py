"""Masks made tidy: small regions dropped, holes filled, parts counted."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from cyctr.images.counting import count_values

_NEIGHBOURS = np.ones((3, 3))  # parts may touch at corners


def clean(mask: NDArray[np.bool_], smallest: int = 0, fill_holes: bool = False) -> NDArray[np.bool_]:
    """The mask without regions and, where holes are filled, without holes.

    Args:
        mask: (H, W).
        smallest: pixels of the smallest connected region that stays.
        fill_holes: what a region encloses belongs to it.
    """
    if fill_holes and mask.any():
        mask = ndimage.binary_fill_holes(mask)
    if smallest > 1 and mask.any():
        numbers, count = ndimage.label(mask, _NEIGHBOURS)
        stays = count_values(numbers, count + 1) >= smallest
        stays[0] = False
        mask = stays[numbers]
    return mask


def components(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """(H, W): 0 outside the mask, 1, 2, ... in its parts that touch at sides or corners, the largest first."""
    numbers, count = ndimage.label(mask, _NEIGHBOURS)
    sizes = count_values(numbers, count + 1)[1:]
    rank = np.zeros(count + 1, np.int32)
    rank[1 + np.argsort(-sizes, kind="stable")] = np.arange(1, count + 1)
    return rank[numbers]
