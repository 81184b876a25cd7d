"""The masked average: one vector for what the support marks."""

import torch
from torch import Tensor

from cyctr.backbones.grid import Grid

_EPSILON = 1e-5  # pixels


def shot_averages(features: Tensor, mask: Tensor) -> Tensor:
    """Each shot's mean foreground feature.

    Args:
        features: (B, K, C, h, w).
        mask: (B, K, h, w) bool.

    Returns:
        (B, K, C): zero where a shot has no foreground.
    """
    total, area = sums(features, mask)
    return total / area.clamp_min(1)


def masked_average(features: Tensor, mask: Tensor) -> Tensor:
    """The mean over shots of each shot's mean foreground feature; arguments as above.

    Returns:
        (B, C). A shot without foreground is left out; zero if all are.
    """
    return mean_of_shots(shot_averages(features, mask), mask)


def pixel_average(features: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """The mean of features at pixel resolution, without making them: cells are weighted by the pixels that read them.

    Args:
        features: (..., C, h, w).
        weights: (..., H, W) of the pixels.
        grid: where the cells sit.

    Returns:
        (..., C) float32: zero where all weights are.
    """
    with torch.autocast(features.device.type, enabled=False):
        features, weights = features.float(), weights.float()
        shares = grid.spread(weights, (features.shape[-2], features.shape[-1]))  # (..., h, w)
        total = (features * shares[..., None, :, :]).flatten(-2).sum(-1)  # (..., C)
        return total / (weights.flatten(-2).sum(-1) + _EPSILON)[..., None]


def mean_of_shots(averages: Tensor, mask: Tensor) -> Tensor:
    """(B, C) the mean of (B, K, C) averages over the shots that have foreground in (B, K, h, w)."""
    present = mask.flatten(2).any(-1, keepdim=True).to(averages.dtype)  # (B, K, 1)
    return (averages * present).sum(1) / present.sum(1).clamp_min(1)


def sums(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, C) sums over the foreground, and (B, K, 1) its area."""
    weight = mask.to(features.dtype).flatten(2)  # (B, K, hw)
    return (features.flatten(3) * weight[:, :, None]).sum(-1), weight.sum(-1, keepdim=True)


class Pooling:
    """How a method makes one vector of what several shots mark.

    Attributes:
        keeps_small: an object that lies between the pixels of all cells keeps the cell that it covers most.
        all_shots: a shot without foreground counts as zero in prior maps; otherwise it does not count.
    """

    keeps_small = True
    all_shots = False

    def of_shots(self, features: Tensor, mask: Tensor) -> Tensor:
        """(B, K, C) each shot's mean foreground feature; see `shot_averages`."""
        return shot_averages(features, mask)

    def joined(self, averages: Tensor, mask: Tensor) -> Tensor:
        """(B, C) of all shots; see `mean_of_shots`."""
        return mean_of_shots(averages, mask)
