"""Windows cover an image, and maps laid over it leave no trace of them."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from making import most_memory

from cyctr.inference.tiles import Canvas, Window, around, closer, windows


@pytest.mark.parametrize("size", [(100, 100), (257, 1000), (64, 3000), (999, 70)])
@pytest.mark.parametrize("side", [64, 100, 333])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5])
def test_windows_cover_every_pixel_within_the_image_and_overlap_enough(size, side, overlap):
    covered = np.zeros(size, int)
    found = windows(size, side, overlap)
    for window in found:
        assert window.top >= 0 and window.left >= 0
        assert window.top + window.height <= size[0] and window.left + window.width <= size[1]
        covered[window.slices] += 1
    assert covered.min() >= 1
    for axis, length in enumerate(size):
        starts = sorted({window[axis] for window in found})
        own = min(side, length) if max(size) > side else length
        assert all(after - before <= own * (1 - overlap) + 1 for before, after in pairwise(starts))


def test_no_tile_is_one_window():
    assert windows((30, 40), None, 0.25) == windows((30, 40), 40, 0.25) == [Window(0, 0, 30, 40)]


@pytest.mark.parametrize("side", [64, None])
def test_equal_maps_of_each_class_give_those_maps_back(side):
    canvas = Canvas((120, 90), 3, torch.device("cpu"))
    truth = torch.rand(3, 120, 90)
    for window in 2 * windows((120, 90), side, 0.25):
        canvas.add(window, (one[window.slices] for one in truth))
    torch.testing.assert_close(torch.stack(canvas.means()), truth)


def test_the_middle_of_a_window_counts_more_than_its_border():
    canvas = Canvas((64, 96), 1, torch.device("cpu"))
    left, right = windows((64, 96), 64, 0.4)
    canvas.add(left, [torch.zeros(64, 64)])
    canvas.add(right, [torch.ones(64, 64)])
    row = canvas.means()[0][32]
    assert row[0] == 0 and row[-1] == 1 and (row.diff() >= -1e-6).all()


@pytest.mark.parametrize(("place", "side"), [((5, 5), 64), ((190, 280), 64), ((90, 140), 100)])
def test_a_window_around_an_object_holds_it(place, side):
    label = np.zeros((200, 300), np.uint8)
    label[place[0] : place[0] + 8, place[1] : place[1] + 12] = 1
    window = around(label, side)
    assert label[window.slices].sum() == label.sum()
    assert (window.height, window.width) == (side, side)
    assert window.top >= 0 and window.left >= 0 and window.top + side <= 200 and window.left + side <= 300


@pytest.mark.parametrize("seed", range(12))
def test_no_window_holds_more_of_what_is_marked_than_the_one_around_it(seed):
    random = np.random.default_rng(seed)
    label, side = np.zeros(random.integers(20, 40, 2), np.uint8), int(random.integers(8, 25))
    for _ in range(random.integers(1, 5)):
        top, left = (int(random.integers(0, length)) for length in label.shape)
        label[top : top + 6, left : left + 6] = random.choice([1, 1, 1, 255])
    height, width = (min(side, length) for length in label.shape)
    held = [
        int((label[top : top + height, left : left + width] == 1).sum())
        for top in range(label.shape[0] - height + 1)
        for left in range(label.shape[1] - width + 1)
    ]
    assert (label[around(label, side).slices] == 1).sum() == max(held)


def test_finding_the_window_around_an_object_takes_little_memory_beside_the_label():
    label = np.zeros((3000, 2000), np.uint8)
    label[700:900, 300:500] = 1
    assert most_memory(lambda: around(label, 600)) < 1.5 * label.size


def test_of_two_equal_objects_a_window_shows_one_and_not_what_lies_between():
    label = np.zeros((300, 450), np.uint8)
    label[20:60, 380:420] = label[230:270, 30:70] = 1
    assert around(label, 100) in ((0, 350, 100, 100), (200, 0, 100, 100))


def test_the_window_around_an_object_has_it_in_the_middle():
    label = np.zeros((200, 300), np.uint8)
    label[100:110, 150:160] = 1
    assert around(label, 70) == pytest.approx((70, 120, 70, 70), abs=1)
    assert around(label, None) == (0, 0, 200, 300)


@pytest.mark.parametrize("place", [(0, 0), (192, 288), (90, 140), (0, 150)])
def test_a_closer_window_holds_what_is_marked_and_what_surrounds_it(place):
    marked = np.zeros((200, 300), bool)
    marked[place[0] : place[0] + 8, place[1] : place[1] + 70] = True
    window = closer(marked, 0.8)
    assert window is not None and marked[window.slices].sum() == marked.sum()
    assert window.height == window.width == 112 or place[1] == 288  # 1.6 times its longer side
    assert window.top >= 0 and window.left >= 0 and window.top + window.height <= 200 and window.left + window.width <= 300


def test_there_is_no_closer_window_around_what_fills_the_image_or_around_nothing():
    marked = np.zeros((200, 300), bool)
    assert closer(marked, 0.8) is None
    marked[20:180, 50:210] = True  # 1.6 times 160 pixels are 256 of 300
    assert closer(marked, 0.8) is None and closer(marked, 0.9) is not None
    assert closer(marked, 0.9).height == 200  # no more than there is


def test_a_closer_window_around_a_speck_shows_enough_to_recognise_it():
    marked = np.zeros((200, 300), bool)
    marked[100, 150] = True
    assert closer(marked, 0.8)[2:] == (64, 64)
