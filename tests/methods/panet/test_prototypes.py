"""The pure functions of PANet, against slow twins."""

import pytest
import torch
import torch.nn.functional as F

from cyctr.backbones.grid import Grid
from cyctr.methods.panet.prototypes import query_prototypes, scores, support_prototypes
from cyctr.methods.parts.pooling import masked_average, pixel_average

GRIDS = [
    *(
        Grid(stride, alignment, offset)
        for stride, offset in ((8, 0), (8, 3), (4, -2), (1, 0))
        for alignment in ("corner", "center")
    ),
    Grid(8, "corner", -9),
]


def maps(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labelled(*shape, seed=0):
    """Labels of all three kinds."""
    kinds = torch.tensor([0, 0, 1, 255], dtype=torch.uint8)
    return kinds[torch.randint(4, shape, generator=torch.Generator().manual_seed(seed))]


def cells_of(grid, size):
    """How many cells an image of a size has."""
    return tuple((side - 1) // grid.stride + 1 if grid.alignment == "corner" else side // grid.stride for side in size)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_weighted_sum_of_pixels_is_one_of_cells(grid):
    size = (17, 25)
    cells, weights = maps(2, 3, *cells_of(grid, size)), maps(2, *size, seed=1)
    slowly = torch.einsum("bchw,bhw->bc", grid.upsample(cells, size), weights)
    spread = grid.spread(weights, cells.shape[-2:])
    torch.testing.assert_close(torch.einsum("bchw,bhw->bc", cells, spread), slowly)
    torch.testing.assert_close(spread.sum((-2, -1)), weights.sum((-2, -1)))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_prototypes_are_means_over_the_pixels_of_the_upsampled_map(grid):
    size, shots = (17, 25), 3
    features, labels = maps(2, shots, 4, *cells_of(grid, size)).float(), labelled(2, shots, *size)
    found = support_prototypes(features, labels, grid)
    for b in range(2):
        for kind in (0, 1):
            means = []
            for k in range(shots):
                pixels = grid.upsample(features[b, k][None], size)[0]  # (C, H, W)
                chosen = [pixels[:, y, x] for y in range(size[0]) for x in range(size[1]) if labels[b, k, y, x] == kind]
                means.append(torch.stack(chosen).mean(0))
            torch.testing.assert_close(found[b, kind], torch.stack(means).mean(0), rtol=1e-4, atol=1e-5)


def test_on_a_grid_of_pixels_prototypes_are_those_of_plain_masked_averages():
    features, labels = maps(2, 3, 5, 9, 9).float(), labelled(2, 3, 9, 9)
    found = support_prototypes(features, labels, Grid(1))
    for kind in (0, 1):
        torch.testing.assert_close(found[:, kind], masked_average(features, labels == kind), rtol=1e-4, atol=1e-5)


def test_pixels_that_nobody_decided_count_for_nothing():
    features, labels = maps(1, 1, 4, 3, 3).float(), labelled(1, 1, 17, 17)
    labels[..., 12:] = 255
    other = features.clone()
    other[..., 2] += 100  # read by pixels 9 to 16, of which those before 12 weigh it little
    labels[..., 8:12] = 255
    torch.testing.assert_close(support_prototypes(other, labels, Grid(8)), support_prototypes(features, labels, Grid(8)))


def test_an_average_over_nothing_is_zero_and_so_is_a_cosine_to_it():
    features = maps(2, 4, 3, 3).float()
    nothing = pixel_average(features, torch.zeros(2, 17, 17), Grid(8))
    assert not nothing.any()
    prototypes = torch.stack([torch.ones(2, 4), nothing], 1)
    assert not scores(features, prototypes, 20.0)[:, 1].any()


@pytest.mark.parametrize("part", ["query", "prototypes"])
def test_scores_do_not_depend_on_the_length_of_vectors(part):
    features, prototypes = maps(2, 4, 3, 3).float(), maps(2, 2, 4, seed=1).float()
    factors = {"query": 1.0, "prototypes": 1.0, part: 7.0}
    scaled = scores(factors["query"] * features, factors["prototypes"] * prototypes, 20.0)
    torch.testing.assert_close(scaled, scores(features, prototypes, 20.0))


def test_scores_are_cosines_times_the_temperature():
    features, prototypes = maps(2, 4, 3, 5).float(), maps(2, 2, 4, seed=1).float()
    found = scores(features, prototypes, 3.0)
    for b in range(2):
        for kind in range(2):
            for y in range(3):
                for x in range(5):
                    cosine = F.cosine_similarity(features[b, :, y, x], prototypes[b, kind], dim=0)
                    torch.testing.assert_close(found[b, kind, y, x], 3 * cosine)


def test_prototypes_of_a_query_are_means_over_cells():
    features, mask = maps(2, 4, 3, 5).float(), maps(2, 3, 5, seed=1) > 0
    mask[1] = False
    found = query_prototypes(features, mask)
    for b in range(2):
        for kind, chosen in ((0, ~mask[b]), (1, mask[b])):
            expected = features[b][:, chosen].mean(1) if chosen.any() else torch.zeros(4)
            torch.testing.assert_close(found[b, kind], expected, rtol=1e-4, atol=1e-5)
