"""Tidy masks, against slow twins."""

import numpy as np
import pytest

from cyctr.inference.cleaning import clean, components


def flooded(mask):
    """Connected parts by hand, as sets of places."""
    left = {tuple(place) for place in np.argwhere(mask).tolist()}
    parts = []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            part.add((y, x))
            near = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= near
            edge += near
        parts.append(part)
    return parts


@pytest.mark.parametrize("seed", range(5))
def test_components_are_the_connected_parts_the_largest_first(seed):
    mask = np.random.default_rng(seed).random((20, 30)) < 0.35
    found = components(mask)
    parts = flooded(mask)
    assert found.max() == len(parts) and np.array_equal(found > 0, mask)
    sizes = np.bincount(found.ravel())[1:]
    assert list(sizes) == sorted(map(len, parts), reverse=True)
    assert all(len({found[place] for place in part}) == 1 for part in parts)


@pytest.mark.parametrize("smallest", [0, 1, 4, 1000])
def test_only_regions_of_enough_pixels_stay(smallest):
    mask = np.random.default_rng(0).random((20, 30)) < 0.35
    expected = np.zeros_like(mask)
    for part in flooded(mask):
        if len(part) >= smallest:
            expected[tuple(np.array(list(part)).T)] = True
    assert np.array_equal(clean(mask, smallest), expected)


def test_holes_are_filled_and_bays_are_not():
    mask = np.zeros((9, 9), bool)
    mask[1:6, 1:6] = True
    mask[3, 3] = False  # a hole
    mask[1, 3] = False  # a bay
    filled = clean(mask, fill_holes=True)
    assert filled[3, 3] and not filled[1, 3]


@pytest.mark.parametrize("mask", [np.zeros((5, 5), bool), np.ones((5, 5), bool)])
def test_empty_and_full_masks_stay_as_they_are(mask):
    assert np.array_equal(clean(mask, 3, True), mask)
    assert components(mask).max() == int(mask.any())
