"""What the GPU kernels must compute, said by their twins in plain torch. As a script: on the CPU, by Triton's interpreter."""

import math

import torch
import torch.nn.functional as F

from cyctr.methods.cyctr.cycle_attention import nearest_neighbours
from cyctr.methods.cyctr.predicted_attention import gather_points, sample_points

SIZES = [(37, 70), (1, 1), (130, 5), (64, 128)]  # query and support tokens: within a tile, of one, across tiles, full ones
WIDTHS = [16, 32, 48, 256]  # of heads; the last is that of the paper's one head on COCO
GRIDS = [(5, 7), (1, 1), (9, 4), (1, 33)]
FILTERS = [(3, 1, 1), (5, 4, 8), (5, 2, 4), (3, 8, 8), (5, 1, 0), (4, 2, 5), (3, 2, 7)]  # size, dilation, padding


def check_nearest(device, dtype, cells=37, tokens=70, width=32, batch=2, heads=3):
    """Small whole numbers: every sum is exact in any precision, and many are equal, of which the first must be found."""
    from cyctr.speed.kernels.nearest import nearest

    generator = torch.Generator().manual_seed(cells * tokens + width)
    q = torch.randint(-3, 4, (batch, heads, cells, width), generator=generator).to(device, dtype)
    k = torch.randint(-3, 4, (batch, heads, tokens, width), generator=generator).to(device, dtype)
    q[:, :, cells // 2 :] = q[:, :, : cells - cells // 2].clone()  # the same token twice
    valid = torch.rand(batch, tokens, generator=generator).to(device) < 0.6
    valid[0], valid[-1, tokens // 2] = True, True
    of_support, of_query = (found.cpu() for found in nearest(q, k, valid.byte()))
    q, k, valid = q.float().cpu(), k.float().cpu(), valid[:, None].cpu()
    expected_query, expected_support = nearest_neighbours(q, k, valid)
    assert of_support.dtype == of_query.dtype == torch.int64
    assert torch.equal(of_query, expected_support)
    real = valid.expand(-1, heads, -1)  # of the others nobody asks
    assert torch.equal(of_support[real], expected_query[real])


def check_nearest_of_noise(device, dtype, cells=300, tokens=200, width=32):
    """Of any numbers, what is found is as similar as the most similar, but for rounding."""
    from cyctr.speed.kernels.nearest import nearest

    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, cells, width, generator=generator).to(device, dtype)
    k = torch.randn(2, 2, tokens, width, generator=generator).to(device, dtype)
    valid = (torch.rand(2, tokens, generator=generator) < 0.7).to(device)
    of_support, of_query = nearest(q, k, valid.byte())
    affinity = (q.double() @ k.double().transpose(-2, -1)).masked_fill(~valid[:, None, None], -math.inf)
    found = affinity.gather(3, of_query[..., None])[..., 0]
    torch.testing.assert_close(found, affinity.amax(3), atol=1e-4, rtol=0)
    found = affinity.gather(2, of_support[:, :, None])[:, :, 0]
    torch.testing.assert_close(found, affinity.amax(2), atol=1e-4, rtol=0)


def check_nobody_valid(device, dtype):
    """Where no support token is valid, something that exists is named all the same."""
    from cyctr.speed.kernels.nearest import nearest

    q, k = torch.randn(2, 1, 2, 9, 16).to(device, dtype)
    of_support, of_query = nearest(q, k, torch.zeros(1, 9, dtype=torch.uint8, device=device))
    assert not of_query.any()
    assert ((of_support >= 0) & (of_support < 9)).all()


def check_tiles():
    """What is compared at a time fits into the memory of any card, however wide the tokens; of narrow ones it is much."""
    from cyctr.speed.kernels.nearest import tiles

    for wide in (16, 32, 64, 128, 256):
        for item in (2, 4):
            rows, columns = tiles(wide, item)
            assert rows >= 16 and columns >= 16  # the smallest that a product takes
            assert wide * item * (rows + 2 * columns) <= 48 * 2**10
    assert tiles(32, 2) == (128, 64)
    assert tiles(4096, 4) == (16, 16)  # fits nowhere; it is refused by the card, not looked for for ever


def points_case(device, dtype, grid=(5, 7), width=32, points=3, batch=2, heads=2):
    """Values, offsets to places near, across the edges and far beyond, some of them whole, and weights."""
    height, across = grid
    generator = torch.Generator().manual_seed(height * across + width)
    shape = (batch, height * across, heads)
    values = torch.randn(*shape, width, generator=generator)
    offsets = torch.randn(*shape, points, 2, generator=generator) * 2
    offsets[:, ::3, :, 0] = 1000.3
    offsets[:, 1::3, :, 0, 1] = -5000.7
    offsets[:, ::2, :, -1] = offsets[:, ::2, :, -1].round()
    weights = torch.rand(*shape, points, generator=generator)
    given = (values.to(dtype), offsets, weights)
    return [part.to(device).requires_grad_() for part in given]


def slow_mix(values, offsets, weights, height, width, exact=True):
    """(B, hw, heads, C) in float32: places are read, then weighted and summed.

    By `gather_points`, or by `sample_points`, whose rounding decides which of two slopes meets a whole position.
    """
    batch, tokens, heads, channels = values.shape
    maps = values.float().permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
    place = torch.arange(tokens, device=values.device)
    centres = torch.stack([place % width, place // width], -1)  # (hw, 2)
    points = (centres + offsets.permute(0, 2, 3, 1, 4)).flatten(0, 1)  # (B * heads, P, hw, 2)
    read = gather_points(maps, *points.unbind(-1)) if exact else sample_points(maps, points)  # (B * heads, C, P, hw)
    return torch.einsum("bhcpt,bthp->bthc", read.unflatten(0, (batch, heads)), weights)


def with_gradients(mix, given, grid):
    """What a function gives, and the gradients of values, offsets and weights."""
    out = mix(*given, *grid)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(given[0])  # exact in its precision
    return out, *torch.autograd.grad((out.float() * pull).sum(), given)


def check_mix_points(device, dtype, grid=(5, 7), width=32, points=3, mix=None):
    """Forward, and backward to values, offsets and weights."""
    from cyctr.speed.kernels.points import mix_points

    given = points_case(device, dtype, grid, width, points)
    found, expected = with_gradients(mix or mix_points, given, grid), with_gradients(slow_mix, given, grid)
    assert found[0].dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    names = ("mixed", "values", "offsets", "weights")
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(
            one.float(), other.float(), atol=tolerance, rtol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )
        assert grid == (1, 1) or other.any(), name
    torch.testing.assert_close(found[0].float(), slow_mix(*given, *grid, exact=False), atol=10 * tolerance, rtol=10 * tolerance)


def check_depthwise(device, dtype, size=5, dilation=2, padding=4, channels=70, convolve=None):
    """Forward, and backward to the images; also where the filters reach beyond them, and padding reaches beyond the filters."""
    from cyctr.speed.kernels.depthwise import depthwise

    generator = torch.Generator().manual_seed(size * dilation + padding)
    images = torch.randn(2, channels, 9, 11, generator=generator).to(device, dtype).requires_grad_()
    weight = torch.randn(channels, 1, size, size, generator=generator)
    bias = torch.randn(channels, generator=generator)
    expected = F.conv2d(images.cpu().float(), weight, bias, 1, padding, dilation, channels)
    filters = weight.flatten(1).T.contiguous()
    made = (convolve or depthwise)(images, filters.to(device), bias.to(device), dilation, padding)
    assert made.dtype == dtype
    found = made.cpu()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)
    pull = torch.randn(expected.shape, generator=generator).to(dtype)
    gradients = [torch.autograd.grad((out * pull.to(out)).sum(), images)[0].float() for out in (found, expected)]
    torch.testing.assert_close(*gradients, atol=tolerance, rtol=tolerance)


def check_registration(device):
    """What torch.compile is told of the operators is true: shapes, types, gradients, that they change no input."""
    from cyctr.speed.kernels.depthwise import depthwise
    from cyctr.speed.kernels.nearest import nearest
    from cyctr.speed.kernels.points import mix_points

    images = torch.randn(2, 6, 5, 7, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(depthwise, (images, torch.randn(9, 6, device=device), torch.randn(6, device=device), 2, 2))
    q, k = torch.randn(2, 1, 2, 9, 16, device=device)
    torch.library.opcheck(nearest, (q, k, torch.ones(1, 9, dtype=torch.uint8, device=device)))
    given = points_case(device, torch.float32, (2, 3), 16)
    torch.library.opcheck(mix_points, (*given, 2, 3))
    plain = [part.detach() for part in (given[0], *given)]  # a gradient like the values
    torch.library.opcheck(torch.ops.cyctr.mix_points_backward.default, (*plain, 2, 3))


if __name__ == "__main__":
    for size in SIZES:
        check_nearest("cpu", torch.float32, *size)
    for grid in GRIDS:
        check_mix_points("cpu", torch.float32, grid, width=16)
    for form in FILTERS:
        check_depthwise("cpu", torch.float32, *form)
    for kind in (torch.float32, torch.float16):  # the interpreter knows no bfloat16
        check_nearest("cpu", kind, width=48)
        check_nearest("cpu", kind, width=256)
        check_nearest_of_noise("cpu", kind, 40, 30)
        check_nobody_valid("cpu", kind)
        check_mix_points("cpu", kind, width=48)
        check_mix_points("cpu", kind, width=256)
        check_depthwise("cpu", kind)
    check_tiles()
    check_registration("cpu")
