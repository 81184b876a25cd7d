"""Tidy masks, against slow twins."""

import numpy as np
import pytest
from making import most_memory
from scipy import ndimage

from cyctr.inference import cleaning
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


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.9])
def test_a_mask_is_the_same_whether_it_is_cleaned_whole_or_in_strips(share, rows, monkeypatch):
    masks = [np.random.default_rng(seed).random((23, 31)) < share for seed in range(10)]
    whole = [clean(mask, 5, True) for mask in masks]
    for mask, one in zip(masks, whole, strict=True):
        assert np.array_equal(clean(mask, fill_holes=True), ndimage.binary_fill_holes(mask))
        monkeypatch.setattr(cleaning, "_STRIP", rows * 31)
        assert np.array_equal(clean(mask, 5, True), one)
        monkeypatch.undo()


def test_a_large_mask_is_cleaned_in_three_bytes_a_pixel():
    mask = np.zeros((8000, 8000), bool)
    mask[100:7000, 100:7000] = True
    mask[200:300, 200:300] = False
    assert most_memory(lambda: clean(mask, 500, True)) < 3 * mask.size
