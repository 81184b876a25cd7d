"""Answers that follow edges: a guided filter by the book, and what it must never do."""

import numpy as np
import pytest
import torch

from cyctr.images import edges
from cyctr.images.edges import edge_maps, enlarge, follow, follow_edges


def noise(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def everywhere(images):
    return torch.ones(len(images), *images.shape[-2:], dtype=torch.bool)


def by_the_book(image, answer, radius, noise):
    """The guided filter of He et al., place by place: ridge regression in each window, then the mean of all windows."""
    side = answer.shape[0]

    def window(row, column):
        return slice(max(0, row - radius), row + radius + 1), slice(max(0, column - radius), column + radius + 1)

    fits = np.empty((side, side, 4))
    for row in range(side):
        for column in range(side):
            there = window(row, column)
            colours = image[:, *there].reshape(3, -1)
            values = answer[there].ravel()
            spread = np.cov(colours, bias=True) + noise * np.eye(3)
            joint = ((colours - colours.mean(1, keepdims=True)) * (values - values.mean())).mean(1)
            factors = np.linalg.solve(spread, joint)
            fits[row, column] = [*factors, values.mean() - factors @ colours.mean(1)]
    return np.stack([[fits[window(r, c)].mean((0, 1)) for c in range(side)] for r in range(side)]).transpose(2, 0, 1)


def test_the_linear_maps_are_those_of_the_guided_filter_place_by_place(monkeypatch):
    monkeypatch.setattr(edges, "_STEP", 1)
    image, answer = noise(1, 3, 15, 15), noise(1, 1, 15, 15, seed=1)
    found = edge_maps(image, answer, everywhere(image), radius=0.2)[0, 0]
    expected = by_the_book(image[0].double().numpy(), answer[0, 0].double().numpy(), 3, edges._NOISE)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_an_answer_that_is_the_same_everywhere_stays_so(value):
    image = noise(2, 3, 33, 33)
    torch.testing.assert_close(follow_edges(image, torch.full((2, 33, 33), value)), torch.full((2, 33, 33), value))


def test_an_answer_that_is_a_colour_of_the_image_stays_so(monkeypatch):
    monkeypatch.setattr(edges, "_STEP", 1)
    image = noise(1, 3, 33, 33)
    torch.testing.assert_close(follow_edges(image, image[:, 0]), image[:, 0], atol=0.01, rtol=0)


def test_a_blurred_answer_becomes_as_sharp_as_the_object():
    columns = torch.arange(129).expand(129, 129)
    truth = columns >= 64
    image = torch.where(truth, 200, 60).to(torch.uint8).expand(1, 3, 129, 129).clone()
    blurred = torch.sigmoid((columns - 62.0) / 4)[None]  # and two pixels aside
    found = follow_edges(image, blurred)[0]
    wrong = ((found > 0.5) != truth).float().mean()
    assert wrong < 0.002 < ((blurred[0] > 0.5) != truth).float().mean()
    assert found[:, :62].max() < 0.35 and found[:, 67:].min() > 0.65  # far more certain at the edge


def test_in_an_image_without_edges_the_answer_is_smoothed_and_nothing_else():
    image, answer = torch.full((1, 3, 65, 65), 90, dtype=torch.uint8), noise(1, 65, 65)
    found = follow_edges(image, answer)
    assert found.std() < 0.2 * answer.std() and (found.mean() - answer.mean()).abs() < 0.02


def test_padding_has_no_say():
    image, answer = noise(1, 3, 65, 65), noise(1, 65, 65, seed=1)
    inside = torch.zeros(1, 65, 65, dtype=torch.bool)
    inside[:, :40, :52] = True
    other_image, other_answer = image.clone(), answer.clone()
    other_image[:, :, 40:], other_answer[:, 40:] = 0.7, 1.0
    other_image[..., 52:], other_answer[..., 52:] = 0.2, 0.0
    one, other = follow_edges(image, answer, inside), follow_edges(other_image, other_answer, inside)
    torch.testing.assert_close(one[:, :40, :52], other[:, :40, :52])


def test_images_and_classes_do_not_hear_each_other_and_bytes_are_as_good_as_numbers():
    images, answers = noise(3, 3, 33, 33), noise(3, 2, 33, 33, seed=1)
    together = edge_maps(images, answers, everywhere(images))
    assert together.shape == (3, 2, 4, 11, 11) and together.dtype == torch.float32
    for place in range(3):
        for number in range(2):
            alone = edge_maps(images[place, None], answers[place, number][None, None], everywhere(images[:1]))
            torch.testing.assert_close(together[place, number], alone[0, 0], atol=1e-5, rtol=1e-5)
    pixels = (images * 255).round().to(torch.uint8)
    torch.testing.assert_close(follow_edges(pixels, answers[:, 0]), follow_edges(pixels / 255, answers[:, 0]))


def test_linear_maps_of_a_small_input_serve_an_image_of_any_size():
    image = noise(3, 300, 200)
    maps = torch.tensor([0.2, 0.3, 0.1, 0.05])[:, None, None].expand(4, 9, 9)
    whole = torch.nn.functional.interpolate(enlarge(maps[None], 17), (300, 200))[0]
    torch.testing.assert_close(follow(whole, image), 0.2 * image[0] + 0.3 * image[1] + 0.1 * image[2] + 0.05)
    assert follow(whole + 5, image).max() == 1  # a probability
