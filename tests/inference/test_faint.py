"""Regions that are faint beside the surest one are dropped."""

import numpy as np
import pytest
from scipy import ndimage

from cyctr.inference.cleaning import without_faint


def slow(probability, threshold, share):
    numbers, count = ndimage.label(probability > threshold, np.ones((3, 3)))
    kept = probability > threshold
    for number in range(1, count + 1):
        if probability[numbers == number].max() < share * probability.max():
            kept[numbers == number] = False
    return kept


@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_asking_each_region_by_itself(seed):
    values = ndimage.gaussian_filter(np.random.default_rng(seed).random((60, 80)), 2).astype(np.float32)
    values = (values - values.min()) / (values.max() - values.min())
    for share in (0.7, 0.9, 1.0):
        assert np.array_equal(without_faint(values, 0.55, share), slow(values, 0.55, share))


def test_the_surest_region_stays_and_so_do_those_as_sure():
    values = np.zeros((40, 40), np.float32)
    values[2:6, 2:6], values[20:24, 20:24], values[30:34, 2:6] = 0.95, 0.9, 0.6
    found = without_faint(values, 0.5, 0.8)
    assert found[3, 3] and found[21, 21] and not found[31, 3]
    assert without_faint(values, 0.5, 0.0)[31, 3]


def test_in_a_large_image_whole_regions_go_and_stay():
    values = np.zeros((3000, 2500), np.float32)
    values[100:400, 100:400], values[1000:1301, 1000:1301] = 0.9, 0.6
    found = without_faint(values, 0.5, 0.8)
    assert found[100:400, 100:400].all() and found[1000:1301, 1000:1301].mean() < 0.02
