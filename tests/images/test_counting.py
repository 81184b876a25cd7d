import numpy as np
import pytest

from cyctr.images import counting
from cyctr.images.counting import count_values


@pytest.mark.parametrize("part", [1, 7, 10**6])
@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_values_are_counted_as_by_a_loop_whatever_is_counted_at_a_time(kind, part, monkeypatch):
    monkeypatch.setattr(counting, "_PART", part)
    values = np.random.default_rng(0).integers(0, 9, (5, 11)).astype(kind)
    assert count_values(values[:, ::2], 4).tolist() == [int((values[:, ::2] == number).sum()) for number in range(9)]


def test_values_that_do_not_occur_count_as_none():
    assert count_values(np.zeros((0, 3), np.uint8)).tolist() == [0] * 256
