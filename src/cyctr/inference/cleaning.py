"""Masks made tidy: small regions dropped, holes filled, parts counted."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

_LOOKED_AT = 2**20  # pixels of an image in which regions are told apart
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
        sizes = np.bincount(numbers.ravel(), minlength=count + 1)
        sizes[0] = 0
        mask = sizes[numbers] >= smallest
    return mask


def without_faint(probability: NDArray[np.float32], threshold: float, share: float) -> NDArray[np.bool_]:
    """(H, W): what is above a threshold, but for regions whose peak is faint beside the highest of all.

    Args:
        probability: (H, W).
        threshold: what is above it is marked.
        share: of the highest probability: the least that the peak of a region must reach. 0 keeps all.
    """
    mask = probability > threshold
    step = max(1, math.isqrt(probability.size // _LOOKED_AT))  # of a large image every few pixels tell the regions apart
    numbers, count = ndimage.label(mask[::step, ::step], _NEIGHBOURS)
    if count < 2 or not share:
        return mask
    peaks = np.concatenate([[np.inf], ndimage.maximum(probability[::step, ::step], numbers, np.arange(1, count + 1))])
    faint = (peaks < share * peaks[1:].max())[numbers]
    columns = np.arange(mask.shape[1]) // step
    for row in np.flatnonzero(faint.any(1)):
        mask[row * step : (row + 1) * step] &= ~faint[row][columns]
    return mask


def components(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """(H, W): 0 outside the mask, 1, 2, ... in its parts that touch at sides or corners, the largest first."""
    numbers, count = ndimage.label(mask, _NEIGHBOURS)
    sizes = np.bincount(numbers.ravel(), minlength=count + 1)[1:]
    rank = np.zeros(count + 1, np.int32)
    rank[1 + np.argsort(-sizes, kind="stable")] = np.arange(1, count + 1)
    return rank[numbers]
