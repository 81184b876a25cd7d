"""Answers that follow the edges of the image: a guided filter, whose linear maps are found on a small grid and used on any."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS = 0.02
"""Of the side of the input: how far pixels of one colour agree, on photographs."""
BENCHMARK_RADIUS = 0.04
"""The same as the numbers of PASCAL-5^i were measured with, and chosen on its held-out classes."""
_NOISE = 1e-4  # variance of colours in [0, 1] below which there is no edge
_STEP = 3  # the small grid has every third place
_LEAST = 2  # places on the small grid: of fewer a linear map says little


def edge_maps(images: Tensor, answers: Tensor, inside: Tensor, radius: float = RADIUS) -> Tensor:
    """The linear map from colour to answer that fits best around each place (He et al., "Guided Image Filtering").

    In double precision: variances are small differences of squares.

    Args:
        images: (B, 3, S, S) uint8, or float in [0, 1].
        answers: (B, n, S, S) probabilities.
        inside: (B, S, S) bool, false for padding, which has no say.
        radius: of the side of the input.

    Returns:
        (B, n, 4, s, s) float32: factors of red, green and blue, and a constant.
    """
    side = -(-images.shape[-1] // _STEP)
    reach = max(_LEAST, round(radius * side))
    seen = inside[:, None].float()
    weight = _smaller(seen, side)  # (B, 1, s, s) the share that is inside
    share = _around(weight, reach).clamp_min(1e-6)

    def mean(maps: Tensor) -> Tensor:
        return _around(maps * weight, reach) / share

    colours, values = (_smaller(maps * seen, side) / weight.clamp_min(1e-6) for maps in (_unit(images), answers.float()))
    of_colours, of_values = mean(colours), mean(values)  # (B, 3, s, s), (B, n, s, s)
    spread = _covariance(colours, of_colours, mean)  # six maps
    count = values.shape[1]
    joint = mean((values[:, :, None] * colours[:, None]).flatten(1, 2)).unflatten(1, (count, 3))
    joint = joint - of_values[:, :, None] * of_colours[:, None]  # (B, n, 3, s, s)
    factors = _solved(spread, joint)
    constant = of_values - (factors * of_colours[:, None]).sum(2)  # (B, n, s, s)
    found = torch.cat([factors, constant[:, :, None]], 2)  # (B, n, 4, s, s)
    return mean(found.flatten(1, 2)).unflatten(1, (count, 4)).float()


def enlarge(maps: Tensor, side: int) -> Tensor:
    """(n, 4, s, s) linear maps on a grid of (n, 4, side, side)."""
    return F.interpolate(maps, (side, side), mode="bilinear", align_corners=False)


def follow(maps: Tensor, images: Tensor) -> Tensor:
    """(..., H, W) what (..., 4, H, W) linear maps say of the colours of (..., 3, H, W) images, in [0, 1]."""
    said = maps[..., 3, :, :].clone()
    for colour in range(3):  # one at a time: the images may be large
        said.addcmul_(maps[..., colour, :, :], _unit(images[..., colour, :, :]))
    return said.clamp_(0, 1)


def follow_edges(images: Tensor, answers: Tensor, inside: Tensor | None = None, radius: float = RADIUS) -> Tensor:
    """(B, S, S) answers that follow the edges of (B, 3, S, S) images; arguments as of `edge_maps`, all inside by default."""
    inside = torch.ones_like(answers, dtype=torch.bool) if inside is None else inside
    maps = edge_maps(images, answers[:, None], inside, radius)[:, 0]
    return follow(enlarge(maps, images.shape[-1]), images)


def _unit(images: Tensor) -> Tensor:
    """Colours in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _smaller(maps: Tensor, side: int) -> Tensor:
    return F.adaptive_avg_pool2d(maps, side).double()


def _around(maps: Tensor, radius: int) -> Tensor:
    """The mean over a square around each place, zero beyond the rim; divided by the mean of ones it is right there too."""
    size = 2 * radius + 1
    rows = F.avg_pool2d(maps, (1, size), 1, (0, radius))
    return F.avg_pool2d(rows, (size, 1), 1, (radius, 0))


def _covariance(colours: Tensor, means: Tensor, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, 6, s, s) of red-red, red-green, red-blue, green-green, green-blue and blue-blue."""
    one, other = [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]
    return mean(colours[:, one] * colours[:, other]) - means[:, one] * means[:, other]


def _solved(spread: Tensor, joint: Tensor) -> Tensor:
    """(B, n, 3, s, s) factors: the inverse of the colours' covariance, by cofactors, times that with the answers."""
    rr, rg, rb, gg, gb, bb = spread.unbind(1)
    rr, gg, bb = rr + _NOISE, gg + _NOISE, bb + _NOISE
    cofactors = (
        (gg * bb - gb * gb, rb * gb - rg * bb, rg * gb - rb * gg),
        (rb * gb - rg * bb, rr * bb - rb * rb, rb * rg - rr * gb),
        (rg * gb - rb * gg, rb * rg - rr * gb, rr * gg - rg * rg),
    )
    whole = rr * cofactors[0][0] + rg * cofactors[0][1] + rb * cofactors[0][2]  # at least _NOISE cubed
    inverse = torch.stack([torch.stack(row, 1) for row in cofactors], 1) / whole[:, None, None]  # (B, 3, 3, s, s)
    return (inverse[:, None] * joint[:, :, None]).sum(3)
