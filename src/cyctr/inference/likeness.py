"""How like the class each place of a query is, by the deepest features of a backbone, for which nothing was learned.

A prior map is spread out over [0, 1] whatever there is. This is not: where nothing in the query resembles what the support
marks, it is low everywhere. So it works with every method, and says whether the class is there at all.
"""

import torch.nn.functional as F
from torch import Tensor

from cyctr.backbones.grid import Grid
from cyctr.methods.parts.prior import support_vectors
from cyctr.types import Features


def mean_foreground(support: Features, labels: Tensor, grid: Grid) -> Tensor:
    """(B, C) the mean foreground vector of B supports, unit length; zero where no shot has foreground.

    Args:
        support: of B * K images.
        labels: (B, K, H, W) uint8.
        grid: where the cells of the deepest features sit.
    """
    deepest = support.maps[-1]
    cells = grid.cells(labels.flatten(0, 1), (deepest.shape[-2], deepest.shape[-1])).unflatten(0, labels.shape[:2])
    vectors, valid = support_vectors(deepest.unflatten(0, labels.shape[:2]), cells == 1)
    weight = valid.to(vectors.dtype)[:, :, None]  # (B, K, 1, M)
    per_shot = (weight @ vectors)[:, :, 0].float() / weight.float().sum(-1).clamp_min(1)  # (B, K, C): each shot counts the same
    return F.normalize(per_shot.sum(1), dim=-1)


def likeness_map(query: Features, mean: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """The cosine similarity of each place of a query to the mean foreground of a support.

    Args:
        query: of B images.
        mean: (B, C) from `mean_foreground`, or (1, C) for all.
        grid: where the cells of the deepest features sit.
        size: (H, W) of the images.

    Returns:
        (B, H, W) in [-1, 1]: 0 where no shot has foreground.
    """
    own = F.normalize(query.maps[-1].float(), dim=1)  # (B, C, h, w)
    cosine = mean.expand(len(own), -1)[:, None] @ own.flatten(2)  # (B, 1, h * w)
    return grid.upsample(cosine.unflatten(2, own.shape[-2:]), size)[:, 0]
