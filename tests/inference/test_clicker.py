"""SAM behind prompts: what is asked of it, what is kept, and what is said where it cannot be."""

import sys

import numpy as np
import pytest
from segmenting import scene

from cyctr.backbones.weights import REFINERS, cache
from cyctr.errors import ConfigError, DataError, WeightsError
from cyctr.inference import Clicker
from cyctr.inference.clicker import EncodedImage

SIZE = (120, 160)


class Drawn(Clicker):
    """A decoder that always draws the same masks, and remembers what it was asked."""

    def __init__(self, masks):
        self.drawn, self.asked = np.stack([np.where(mask, 8, -8).astype(np.float32) for mask in masks]), []

    def _decoded(self, image, places, kinds, odds):
        self.asked.append((np.asarray(places), list(kinds), odds))
        return self.drawn, np.linspace(0.1, 0.9, len(self.drawn), dtype=np.float32)


def square(top, left, side, whole=(256, 256)):
    mask = np.zeros(whole, bool)
    mask[top : top + side, left : left + side] = True
    return mask


def blurred(top, left, side):
    """A probability with a square, at the size of the image."""
    return np.where(square(top, left, side, SIZE), np.float32(0.8), np.float32(0.1))


IMAGE = EncodedImage(SIZE, {})


def test_the_mask_of_the_highest_score_takes_the_place_of_a_part_that_it_agrees_with():
    near = np.zeros((256, 256), bool)
    near[80:150, 70:135] = True  # 37 to 70 of 120 rows, 44 to 84 of 160 columns
    found = Drawn([square(0, 0, 256), square(200, 200, 9), near]).refine(IMAGE, blurred(38, 45, 36))
    assert found.shape == SIZE and found.dtype == np.float32
    mask = found > 0.5
    assert mask[40:68, 46:82].all() and mask.sum() == pytest.approx(33 * 41, rel=0.1)


def test_a_part_that_no_mask_agrees_with_stays_as_it_was():
    given = blurred(38, 45, 36)
    np.testing.assert_array_equal(Drawn([square(0, 0, 256), square(200, 200, 9)]).refine(IMAGE, given), given)


def test_what_is_nothing_is_not_asked_for():
    clicker, given = Drawn([square(0, 0, 9)]), np.full(SIZE, 0.2, np.float32)
    np.testing.assert_array_equal(clicker.refine(IMAGE, given), given)
    assert not clicker.asked


def test_each_part_is_asked_for_by_its_box_and_by_itself():
    clicker = Drawn([square(0, 0, 256)])
    clicker.refine(IMAGE, np.maximum(blurred(10, 20, 30), blurred(80, 100, 36)))
    assert len(clicker.asked) == 2
    for (places, kinds, odds), (top, left, side) in zip(clicker.asked, ((80, 100, 36), (10, 20, 30)), strict=True):
        assert kinds == [2, 3]
        expected = np.array([[left, top], [left + side, top + side]]) * (1024 / 160, 1024 / 120)
        np.testing.assert_allclose(places, expected, atol=16)
        row, column = int((top + side / 2) * 256 / 120), int((left + side / 2) * 256 / 160)
        assert odds[row, column] > 1 and (odds > 0).sum() < 1.2 * side * side * 256 * 256 / (120 * 160)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.7])
def test_a_refined_mask_is_marked_whatever_the_threshold(threshold):
    exact = np.zeros((256, 256), bool)
    exact[82:158, 72:130] = True
    found = Drawn([exact]).refine(IMAGE, blurred(38, 45, 36), threshold)
    assert ((found > threshold) == (found > 0.5)).mean() > 0.99 and (found > threshold).sum() > 1000


def test_masks_come_with_the_best_first_at_the_size_of_the_image():
    found = Drawn([square(0, 0, 10), square(0, 0, 20), square(0, 0, 256)]).masks(IMAGE, points=[(3, 4)], outside=[(150, 100)])
    assert [one.mask.shape for one in found] == [SIZE] * 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert found[0].mask.all()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({}, "no prompt; expected points"),
        ({"points": [(200, 5)]}, "the place is 200,5; expected x up to 160 and y up to 120"),
        ({"box": (0, 0, 10, 130)}, "the place is 10,130"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(prompt, words):
    with pytest.raises(ConfigError, match=words):
        Drawn([square(0, 0, 9)]).masks(IMAGE, **prompt)


def test_maps_of_another_size_are_refused():
    with pytest.raises(DataError, match=r"mask is \(5, 5\), image is \(120, 160\)"):
        Drawn([square(0, 0, 9)]).masks(IMAGE, mask=np.zeros((5, 5)))
    with pytest.raises(DataError, match="resize one"):
        Drawn([square(0, 0, 9)]).refine(IMAGE, np.zeros((5, 5), np.float32))


def test_missing_weights_name_the_command_that_fetches_them(segmenter, disc, tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="run: cyctr weights get sam2-tiny"):
        segmenter.segment(scene(SIZE, 1)[0], disc, refine="sam")


def test_a_refiner_that_is_not_there_is_refused(segmenter, disc):
    with pytest.raises(ConfigError, match="refine is 'sum'; expected 'sam' or None"):
        segmenter.segment(scene(SIZE, 1)[0], disc, refine="sum")
    with pytest.raises(ConfigError, match="name is 'sam3'; expected sam2-tiny"):
        Clicker.from_pretrained("sam3")


def test_a_missing_runtime_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"run: pip install 'cyctr\[sam\]'"):
        Clicker(b"", b"")


@pytest.mark.skipif(cache.cached(REFINERS["sam2-tiny"]) is None, reason="needs cyctr weights get sam2-tiny")
def test_the_real_network_finds_a_disc_from_a_click_a_box_and_a_rough_mask():
    pytest.importorskip("onnxruntime")
    clicker = Clicker.from_pretrained(threads=1)
    y, x = np.mgrid[:200, :300]
    disc = (y - 90) ** 2 + (x - 130) ** 2 < 50**2
    image = clicker.encode(np.where(disc[..., None], np.uint8([220, 60, 40]), np.uint8([40, 90, 60])))

    def agrees(mask):
        return (mask & disc).sum() / (mask | disc).sum()

    prompts = ({"points": [(130, 90)]}, {"box": (80, 40, 180, 140)}, {"points": [(130, 90)], "mask": disc})
    assert all(max(agrees(one.mask) for one in clicker.masks(image, **prompt)) > 0.9 for prompt in prompts)
    rough = np.where((y - 95) ** 2 + (x - 120) ** 2 < 50**2, np.float32(0.8), np.float32(0.1))
    assert agrees(clicker.refine(image, rough) > 0.5) > 0.95 > agrees(rough > 0.5)
