import numpy as np
import torch

from cyctr.methods.base import TokenState
from cyctr.visual.draw import BLUE, GREY, RED, cycle_map, heat, majority_state, outline, overlay, to_pixels


def test_an_overlay_keeps_the_marked_pixels_and_frames_them():
    image = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    mask = np.zeros((60, 60), bool)
    mask[20:40, 20:40] = True
    drawn = overlay(image, mask, RED)
    assert np.array_equal(drawn[25:35, 25:35], image[25:35, 25:35])
    assert tuple(drawn[20, 30]) == RED
    pale = image * 0.15 + image.mean(-1, keepdims=True) * 0.2 + 160
    assert np.abs(drawn[~mask] - pale[~mask]).max() <= 1


def test_an_outline_is_the_rim_of_a_mask():
    mask = np.zeros((9, 9), bool)
    mask[2:7, 2:7] = True
    rim = outline(mask)
    assert rim.sum() == 25 - 9
    assert not rim[3:6, 3:6].any()


def test_heat_grows_brighter_with_the_value():
    shades = heat(np.linspace(0, 1, 5)[None]).astype(int).sum(-1)[0]
    assert (np.diff(shades) > 0).all()


def test_a_cycle_map_colours_each_token_by_its_state():
    image = np.zeros((80, 80, 3), np.uint8)
    state = torch.tensor([TokenState.CONSISTENT_FOREGROUND, TokenState.CONSISTENT_BACKGROUND, TokenState.INCONSISTENT, 0])
    drawn = cycle_map(image, np.array([[5, 5], [75, 5], [5, 75], [75, 75]]), state, radius=3)
    assert [tuple(drawn[y, x]) for y, x in ((5, 5), (5, 75), (75, 5))] == [RED, BLUE, GREY]
    assert tuple(drawn[75, 75]) == tuple(drawn[40, 40])


def test_the_majority_of_heads_decides_a_token_s_colour():
    assert majority_state(torch.tensor([[1, 3], [3, 3], [3, 1]])).tolist() == [3, 3]


def test_float_and_byte_images_become_the_same_pixels():
    pixels = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    assert np.array_equal(to_pixels(pixels), to_pixels(pixels.float() / 255))
