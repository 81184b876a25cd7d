"""Masks to write, and slow, obvious ways to read polygons back."""

import numpy as np
from scipy import ndimage

from cyctr.formats import Found


def blobs(seed, size=(90, 120), smoothness=7.0):
    """Smooth regions of all forms, some cut by the border; some seeds have holes."""
    noise = np.random.default_rng(seed).standard_normal(size)
    return ndimage.gaussian_filter(noise, smoothness) > 0.3 / smoothness


def speckle(seed, largest=12):
    """Anything at all: any size, any density."""
    random = np.random.default_rng(seed)
    return random.random(random.integers(1, largest, 2)) < random.random()


def filled(mask):
    return ndimage.binary_fill_holes(mask)


def regions(mask):
    return ndimage.label(mask, np.ones((3, 3)))[1]


def disc(radius=20, size=(60, 80), centre=(30, 35)):
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 <= radius**2


def ring(size=(60, 80)):
    return disc(size=size) & ~disc(radius=10, size=size)


def nothing(size=(6, 8)):
    return np.zeros(size, bool)


def full(size=(6, 8)):
    return np.ones(size, bool)


def one_pixel(size=(6, 8), at=(2, 5)):
    mask = nothing(size)
    mask[at] = True
    return mask


def wide_diagonal(size=30):
    """Pixels that touch in corners only."""
    return np.eye(size, dtype=bool)


EDGE_CASES = {
    "nothing": nothing(),
    "full": full(),
    "one pixel": one_pixel(),
    "first pixel": one_pixel(at=(0, 0)),
    "last pixel": one_pixel(at=(5, 7)),
    "one row": full((1, 9)),
    "one column": full((9, 1)),
    "a single pixel in all": full((1, 1)),
    "hole": ring(),
    "diagonal": wide_diagonal(),
    "whole columns": np.repeat(np.array([[0, 1, 1, 0, 1]], bool), 4, axis=0),
    "checkers": np.indices((7, 9)).sum(0) % 2 == 0,
}


def inside(polygons, size):
    """(H, W) bool: the pixels whose centre is inside an odd number of times, a line of pixels at a time."""
    crossings = np.zeros(size, int)
    for polygon in polygons:
        for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
            for row in range(size[0]):
                if min(y1, y2) <= row + 0.5 < max(y1, y2):
                    crossing = x1 + (row + 0.5 - y1) * (x2 - x1) / (y2 - y1)
                    crossings[row] += np.arange(size[1]) + 0.5 > crossing
    return crossings % 2 == 1


def union(polygons, size):
    return np.logical_or.reduce([inside([polygon], size) for polygon in polygons]) if len(polygons) else np.zeros(size, bool)


def iou(one, other):
    return (one & other).sum() / (one | other).sum()


def found(mask, name="cup", confidence=0.75, probability=None):
    return Found(name, mask, probability, confidence)
