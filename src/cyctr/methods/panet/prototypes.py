"""Prototypes and what they answer: the pure functions of section 3.2 and 3.3."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.grid import Grid
from cyctr.methods.parts.pooling import pixel_average

_EPSILON = 1e-5  # cells


def support_prototypes(features: Tensor, labels: Tensor, grid: Grid) -> Tensor:
    """The mean over shots of masked averages at pixel resolution (equations 1 and 2).

    Args:
        features: (B, K, C, h, w).
        labels: (B, K, H, W) uint8; every pixel that is 0 is background, and 255 is neither.
        grid: where the cells sit.

    Returns:
        (B, 2, C) background and foreground; a shot without any pixel of a kind adds a zero vector.
    """
    return torch.stack([pixel_average(features, labels == kind, grid).mean(1) for kind in (0, 1)], 1)


def query_prototypes(features: Tensor, mask: Tensor) -> Tensor:
    """Averages over the cells that a mask calls foreground, and over the others (section 3.4).

    Args:
        features: (B, C, h, w).
        mask: (B, h, w) bool.

    Returns:
        (B, 2, C) background and foreground; zero where there is no cell of a kind.
    """
    with torch.autocast(features.device.type, enabled=False):
        kinds = torch.stack([~mask, mask], 1).float()  # (B, 2, h, w)
        total = torch.einsum("bphw,bchw->bpc", kinds, features.float())
        return total / (kinds.flatten(2).sum(-1) + _EPSILON)[..., None]


def scores(features: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """(B, 2, h, w) float32 cosines of (B, C, h, w) features to (B, 2, C) prototypes, times the temperature (equation 3).

    The cosine of a zero vector is 0.
    """
    with torch.autocast(features.device.type, enabled=False):
        of_cells, of_kinds = F.normalize(features.float(), dim=1), F.normalize(prototypes.float(), dim=-1)
        return temperature * torch.einsum("bpc,bchw->bphw", of_kinds, of_cells)
