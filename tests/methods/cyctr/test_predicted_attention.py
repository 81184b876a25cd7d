import math

import pytest
import torch

from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.methods.cyctr.position import coordinates
from cyctr.methods.cyctr.predicted_attention import PredictedAttention, gather_points, sample_points

CODE = coordinates(4, 5, 8, torch.device("cpu"))


def slow_read(values, x, y):
    """Bilinear reading of a (C, h, w) map at one point, zero outside."""
    height, width = values.shape[-2:]
    total = torch.zeros(values.shape[0])
    left, top = math.floor(x), math.floor(y)
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        if 0 <= column < width and 0 <= row < height:
            total = total + values[:, row, column] * (1 - abs(x - column)) * (1 - abs(y - row))
    return total


def slow_attention(layer, query, grid):
    """Equation 6 with loops over episodes, tokens, heads and points."""
    height, width = grid
    q, v = layer.q(query), layer.v(query)
    guide = q + coordinates(height, width, query.shape[-1], query.device)
    offsets, weights = layer.offsets(guide), layer.weights(guide)
    share = query.shape[-1] // layer.heads
    out = torch.zeros_like(query)
    for b in range(len(query)):
        maps = v[b].T.reshape(-1, height, width)
        for r in range(height * width):
            for head in range(layer.heads):
                part = slice(head * share, (head + 1) * share)
                attention = weights[b, r].view(layer.heads, layer.points)[head].softmax(0)
                for g in range(layer.points):
                    dx, dy = offsets[b, r].view(layer.heads, layer.points, 2)[head, g].tolist()
                    out[b, r, part] += attention[g] * slow_read(maps[part], r % width + dx, r // width + dy)
    return layer.out(out)


def layer_of(points=3, heads=2, dim=8, **settings):
    layer = PredictedAttention(dim, EncoderConfig(heads=heads, points=points, **settings)).eval()
    layer.requires_grad_(False)
    layer.offsets.weight.zero_()  # offsets are the bias, for every token
    return layer


def test_predicted_attention_equals_its_formula_in_loops():
    layer = layer_of()
    layer.offsets.weight.normal_(0, 0.3)
    layer.weights.weight.normal_()
    query = torch.randn(2, 20, 8)
    torch.testing.assert_close(layer(query, CODE, (4, 5)), slow_attention(layer, query, (4, 5)), atol=1e-5, rtol=1e-4)


def test_zero_offsets_read_the_token_itself():
    layer = layer_of()
    layer.offsets.bias.zero_()
    query = torch.randn(2, 20, 8)
    torch.testing.assert_close(layer(query, CODE, (4, 5)), layer.out(layer.v(query)))


def test_an_offset_of_one_cell_reads_the_neighbour():
    layer = layer_of(points=1)
    layer.offsets.bias.copy_(torch.tensor([1.0, 0.0] * 2))  # x by one, in both heads
    query = torch.randn(1, 20, 8)
    values = layer.v(query).view(1, 4, 5, 8)
    shifted = torch.zeros_like(values)
    shifted[:, :, :-1] = values[:, :, 1:]  # zero beyond the edge
    torch.testing.assert_close(layer(query, CODE, (4, 5)), layer.out(shifted.flatten(1, 2)))


def test_each_head_starts_by_looking_along_its_own_direction():
    layer = PredictedAttention(32, EncoderConfig(heads=8, points=9))
    start = layer.offsets.bias.view(8, 9, 2)
    assert start.norm(dim=-1).diff(dim=1).gt(0).all()  # further with every point
    directions = torch.nn.functional.normalize(start[:, 0], dim=-1)
    assert (directions @ directions.T - torch.eye(8)).max() < 0.99


def test_the_cross_form_reads_the_mean_of_the_shots():
    layer = layer_of()
    query, maps = torch.randn(2, 20, 8), torch.randn(2, 3, 8, 4, 5)
    together = layer(query, CODE, (4, 5), maps)
    apart = torch.stack([layer(query, CODE, (4, 5), maps[:, k : k + 1]) for k in range(3)]).mean(0)
    torch.testing.assert_close(together, apart)


def test_the_cross_form_places_query_cells_on_a_support_of_another_size():
    layer = layer_of(points=1)
    layer.offsets.bias.zero_()
    # a ramp in x, from which the place that was read can be told
    ramp = torch.arange(10.0).expand(1, 1, 8, 4, 10)
    layer.v.weight.copy_(torch.eye(8))
    layer.out.weight.copy_(torch.eye(8))
    layer.out.bias.zero_()
    read = layer(torch.randn(1, 20, 8), CODE, (4, 5), ramp).view(4, 5, 8)
    torch.testing.assert_close(read[0, :, 0], torch.arange(5) * 2 + 0.5)


def test_a_map_of_one_cell_is_read_without_division_by_zero():
    values = torch.full((1, 2, 1, 1), 3.0)
    torch.testing.assert_close(sample_points(values, torch.zeros(1, 1, 1, 2)), torch.full((1, 2, 1, 1), 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_exact_whatever_the_precision_of_the_values(dtype):
    width = 100
    values = torch.arange(width).to(dtype).view(1, 1, 1, width)  # 0..99 are exact in bfloat16
    points = torch.stack([torch.arange(width).float(), torch.zeros(width)], -1).view(1, 1, width, 2)
    read = sample_points(values, points).flatten()
    torch.testing.assert_close(read, torch.arange(width).float(), atol=1e-3, rtol=0)


def reading(points=6, tokens=40, size=(4, 7)):
    """Maps, and positions within them, across their edges and far beyond."""
    height, width = size
    x = torch.rand(2, points, tokens) * (width + 4) - 2.5
    y = torch.rand(2, points, tokens) * (height + 4) - 2.5
    x[:, 0], y[:, 1] = 3 * width + 0.3, -2 * height - 0.3
    return torch.randn(2, 3, *size), x, y


@pytest.mark.parametrize("size", [(4, 7), (7, 4), (1, 1), (1, 9)])
def test_reading_corner_by_corner_is_bilinear_reading(size):
    values, x, y = reading(size=size)
    torch.testing.assert_close(gather_points(values, x, y), sample_points(values, torch.stack([x, y], -1)))
    corner_by_corner = gather_points(values, x, y)[1, :, 2, 5]
    torch.testing.assert_close(corner_by_corner, slow_read(values[1], x[1, 2, 5].item(), y[1, 2, 5].item()))


def test_reading_corner_by_corner_finds_whole_positions_exactly():
    values = torch.randn(1, 3, 4, 7)
    y, x = (places.flatten()[None, None].float() for places in torch.meshgrid(torch.arange(4), torch.arange(7), indexing="ij"))
    assert torch.equal(gather_points(values, x, y).view(1, 3, 4, 7), values)
    for dx, dy in ((-7, 0), (7, 0), (0, -4), (0, 4)):
        assert not gather_points(values, x + dx, y + dy).any()


@pytest.mark.parametrize("size", [(4, 7), (1, 9)])
def test_reading_corner_by_corner_has_the_gradients_of_bilinear_reading(size):
    given = [part.double().requires_grad_() for part in reading(size=size)]
    weights = torch.randn(2, 3, 6, 40)
    mine = torch.autograd.grad((gather_points(*given) * weights).sum(), given)
    values, x, y = given
    points = torch.stack([x, y], -1).float()
    theirs = torch.autograd.grad((sample_points(values.float(), points) * weights).sum(), given)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        assert other.any()


@pytest.mark.parametrize("size", [(4, 8), (2, 16), (1, 1)])
def test_reading_corner_by_corner_has_the_gradients_of_bilinear_reading_at_whole_positions_too(size):
    """Between two slopes that meet there; sizes are powers of two, so that no rounding moves a position off its cell."""
    height, width = size
    values = torch.randn(2, 3, height, width)
    y, x = torch.meshgrid(torch.arange(-2.0, height + 2), torch.arange(-2.0, width + 2), indexing="ij")
    given = [values, *(places.flatten().expand(2, 1, -1).clone() for places in (x, y))]
    for part in given:
        part.requires_grad_()
    weights = torch.randn(2, 3, 1, x.numel())
    mine = torch.autograd.grad((gather_points(*given) * weights).sum(), given)
    theirs = torch.autograd.grad((sample_points(given[0], torch.stack(given[1:], -1)) * weights).sum(), given)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
        assert other.any()

    padded = torch.nn.functional.pad(values.detach(), (3, 3, 3, 3))  # position (x, y) is at column x + 3, row y + 3
    rises = padded[..., 1:-1, 2:] - padded[..., 1:-1, 1:-1]  # from this column to the next
    expected = (rises.flatten(2) * weights[:, :, 0]).sum(1)
    torch.testing.assert_close(mine[1][:, 0], expected)


@pytest.mark.parametrize("shots", [0, 2])
def test_reading_without_gradients_equals_reading_with_them(shots):
    layer = layer_of()
    layer.offsets.weight.normal_(0, 0.5)  # some points lie beyond the map
    layer.weights.weight.normal_()
    query, maps = torch.randn(2, 20, 8), torch.randn(2, shots, 8, 3, 6) if shots else None
    expected = layer(query, CODE, (4, 5), maps)
    with torch.inference_mode():
        found = layer(query, CODE, (4, 5), maps)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
