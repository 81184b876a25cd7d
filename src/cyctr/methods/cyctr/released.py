"""What the authors' release does otherwise than the paper, each a small part that a config swaps in.

`docs/decisions.md` says where each stands in the release, and why the paper's form is the default.
"""

import math

import torch
from torch import Tensor, nn

from cyctr.methods.cyctr.config import HeadConfig, SamplingConfig
from cyctr.methods.cyctr.head import AuxiliaryHead
from cyctr.methods.cyctr.sampling import Sample, sample_tokens
from cyctr.methods.parts.pooling import Pooling, sums
from cyctr.types import IGNORE


def nearest_pixels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """(..., h, w): labels shrunk by taking the nearest pixel, of cell i along a side of H pixels floor(H i / h)."""
    rows, columns = (
        torch.arange(cells, device=labels.device) * pixels // cells
        for cells, pixels in zip(size, labels.shape[-2:], strict=True)
    )
    return labels[..., rows[:, None], columns]


def with_stand_ins(cells: Tensor) -> Tensor:
    """(B, K, h, w) labels in which each shot has both classes: the middle is foreground, the corners background, if need be."""
    height, width = cells.shape[-2:]
    middle, corners = torch.zeros(height, width, dtype=torch.bool), torch.zeros(height, width, dtype=torch.bool)
    middle[height // 2 - 1 : height // 2 + 1, width // 2 - 1 : width // 2 + 1] = True
    corners[:: height - 1, :: width - 1] = True
    for kind, places in ((1, middle), (0, corners)):
        lost = ~(cells == kind).flatten(2).any(-1)[..., None, None]  # (B, K, 1, 1)
        cells = cells.masked_fill(lost & places.to(cells.device), kind)
    return cells


_SLACK = 0.0005  # what is added to an area


class ReleasedPooling(Pooling):
    """Averages divided by area + 0.0005; an object between the pixels of all cells, and a shot without one, count as zero."""

    keeps_small = False
    all_shots = True

    def of_shots(self, features: Tensor, mask: Tensor) -> Tensor:
        """(B, K, C) each shot's mean foreground feature."""
        total, area = sums(features, mask)
        return total / (area + _SLACK)

    def joined(self, averages: Tensor, mask: Tensor) -> Tensor:
        """(B, C) the mean over all shots."""
        return averages.mean(1)


class ReleasedSampler:
    """Draws tokens, and reads their labels, as far as a config asks in the release's way."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config

    def __call__(self, cells: Tensor, labels: Tensor, count: int, seeds: Tensor) -> Sample:
        """The tokens of B episodes; arguments as in `TokenSampler`."""
        if self.config.nearest_pixel:
            cells = nearest_pixels(labels, (cells.shape[-2], cells.shape[-1]))
        void = cells == IGNORE
        if self.config.draw_ignored:  # as background, and hidden later
            cells = cells.masked_fill(void, 0)
        if self.config.nearest_pixel:
            cells = with_stand_ins(cells)
        sample = self.draw(cells, count, seeds)
        place = misread_places(cells, sample) if self.config.release_labels else sample.index
        is_foreground = cells.flatten(1).gather(1, place) == 1  # (B, N)
        hidden = void.flatten(1).gather(1, place) if self.config.draw_ignored else None
        return Sample(sample.index, is_foreground, sample.valid, hidden)

    def draw(self, kinds: Tensor, count: int, seeds: Tensor) -> Sample:
        """Tokens of both classes of (B, K, h, w) cells."""
        return sample_tokens(kinds, count, seeds, self.config.beyond_half)


def misread_places(kinds: Tensor, sample: Sample) -> Tensor:
    """(B, N) int64: the cells at which the release reads labels and padding flags of tokens.

    A token drawn as the i-th cell of its class is read at the i-th cell of all. Where every cell of a
    class is drawn, its tokens are read at their own cells.

    Args:
        kinds: (B, K, h, w) uint8, what was drawn from.
        sample: what was drawn, with the true class of each token.
    """
    flat, place = kinds.flatten(1), sample.index
    for kind in (0, 1):
        of_kind = flat == kind  # (B, S)
        drawn = sample.valid & (sample.is_foreground == bool(kind))  # (B, N)
        some_are_left = (drawn.sum(1) < of_kind.sum(1))[:, None]
        rank = (of_kind.cumsum(1) - 1).gather(1, sample.index)  # place in the list of the class
        place = torch.where(drawn & some_are_left, rank, place)
    return place


class UnpaddedCoordinates(nn.Module):
    """Coord over the part of the query that is not padding, and a level embedding, learned."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dim))
        half = dim // 2
        exponent = torch.arange(0, half, 2) / half
        self.register_buffer("scale", 2 * math.pi / 10_000**exponent, persistent=False)  # (dim / 4,)

    scale: Tensor

    def forward(self, padding: Tensor) -> Tensor:
        """(B, hw, d) of (B, h, w) bool, true where a cell is padding: rows, then columns, sine and cosine in turn."""
        inside = (~padding).float()
        sides = [self._waves(inside.cumsum(axis), axis) for axis in (1, 2)]
        return torch.cat(sides, -1).flatten(1, 2) + self.level

    def _waves(self, count: Tensor, axis: int) -> Tensor:
        """(B, h, w, d / 2) of how many unpadded cells there are up to each, along an axis."""
        total = count.select(axis, -1).unsqueeze(axis)
        angle = (count / (total + 1e-6))[..., None] * self.scale  # (B, h, w, d / 4)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


class ResidualPair(nn.Module):
    """x + relu(conv(relu(conv(x)))): the second ReLU is before the sum, not after it."""

    def __init__(self, dim: int, biased: bool = True) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(dim, dim, 3, padding=1, bias=biased) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.second(self.first(maps).relu_()).relu_()


class Refinement(nn.Module):
    """What stands between the encoders and the classifier: a 1x1 convolution and ReLU, then a residual pair."""

    def __init__(self, dim: int, biased: bool = True) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(dim, dim, 1, bias=biased)
        self.pair = ResidualPair(dim, biased)

    def forward(self, maps: Tensor) -> Tensor:
        return self.pair(self.reduce(maps).relu_())


class DeepAuxiliaryHead(AuxiliaryHead):
    """An auxiliary head whose prototype also averages what the classifier sees, so that its gradient reaches the encoders."""

    def __init__(self, dim: int, config: HeadConfig, biased: bool = True, refine: nn.Module | None = None) -> None:
        super().__init__(dim, config, biased, refine)
        self.project = nn.Conv2d(dim, dim, 1, bias=biased)

    def describe(self, reduced_query: Tensor, seen: Tensor) -> Tensor:
        return self.project(seen).relu() + reduced_query
