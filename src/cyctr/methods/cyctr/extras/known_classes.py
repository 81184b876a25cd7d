"""Classes that training knew by name: where they are in a query, something else is not."""

import torch
from torch import Tensor, nn

from cyctr.methods.cyctr.state import Levels
from cyctr.methods.parts.pooling import masked_average

_SURE = 0.3  # of a score: what has less says nothing
_WEIGHT = 8.0  # log odds for each unit of score beyond that


class Familiar(nn.Module):
    """Recognises training classes, so that they are not taken for the one that is asked for.

    A linear map of the backbone's features, with a row for each class that gives one where it is and zero elsewhere
    (`fit_known_classes` fits it, without gradients). Of its scores those of the support's foreground are taken away: what
    is asked for, and what looks like it, is not held against itself. A row of zeros recognises nothing.

    Attributes:
        weight: (classes, 1 + C) of the constant one, then of middle and high features.
    """

    weight: Tensor

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, 1 + channels))

    def scores(self, features: Levels) -> Tensor:
        """(B, classes, h, w) float32, about one where a class is."""
        with torch.autocast(self.weight.device.type, enabled=False):
            bias, *maps = self.weight.split([1, features.mid.shape[1], features.high.shape[1]], 1)
            parts = zip(maps, (features.mid, features.high), strict=True)
            return sum((torch.einsum("kc,bchw->bkhw", rows, level.float()) for rows, level in parts), bias[:, :, None])

    def shown(self, features: Levels, foreground: Tensor) -> Tensor:
        """(B, classes) the mean scores of what a support marks.

        Args:
            features: of B * K support images.
            foreground: (B, K, h, w) bool.
        """
        return masked_average(self.scores(features).unflatten(0, foreground.shape[:2]), foreground)

    def against(self, scores: Tensor, shown: Tensor) -> Tensor:
        """(B, h, w) log odds that speak against the class that is asked for, none of them below zero.

        Args:
            scores: (B, classes, h, w) of the queries.
            shown: (B, classes) of their supports.
        """
        others = (scores - shown.clamp_min(0)[:, :, None, None]).amax(1)
        return _WEIGHT * (others - _SURE).clamp_min(0)
