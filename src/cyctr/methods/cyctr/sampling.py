"""Mask-guided sparse sampling: which support cells become keys (section 3.3, K-shot setting)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cyctr.seeding import random_bits

TokenCount = int | tuple[int, ...]
"""N_s per shot: one number, or one for each layer."""
_FOREGROUND, _BACKGROUND, _NEITHER = 0, 1, 2
_SHIFT = 32  # above the random bits


@dataclass(frozen=True, eq=False)
class Sample:
    """N chosen cells of each episode.

    Attributes:
        index: (B, N) int64 into the flattened cells; everything that belongs to a token is gathered with it.
        is_foreground: (B, N) bool.
        valid: (B, N) bool: false for slots that no cell fills.
        hidden: (B, N) bool: not to be attended to; None where all are.
    """

    index: Tensor
    is_foreground: Tensor
    valid: Tensor
    hidden: Tensor | None = None

    def gather(self, values: Tensor) -> Tensor:
        """(B, N, C): the rows of (B, S, C) values at the chosen cells."""
        return values.gather(1, self.index[..., None].expand(-1, -1, values.shape[-1]))

    def pick(self, maps: Tensor) -> Tensor:
        """(B, N, C): the chosen cells of (B, K, C, h, w) maps."""
        return self.gather(maps.flatten(3).transpose(2, 3).flatten(1, 2))


class TokenSampler:
    """Draws tokens from the cells as they are labelled; `released.ReleasedSampler` takes its place where a config asks."""

    def __call__(self, cells: Tensor, labels: Tensor, count: int, seeds: Tensor) -> Sample:
        """The tokens of B episodes.

        Args:
            cells: (B, K, h, w) uint8 labels of the support cells.
            labels: (B, K, H, W) uint8 labels of the support's pixels, which they were read from.
            count: N_s over all shots.
            seeds: (B,) int64.
        """
        return sample_tokens(cells, count, seeds)


def sample_tokens(cells: Tensor, count: int, seeds: Tensor, beyond_half: bool = False) -> Sample:
    """Draws up to half of `count` tokens from the foreground of all shots, the rest from their background, uniformly.

    Ignored cells are never drawn. The order of the shots does not matter: a cell's luck depends on its seed and its
    place in the image alone, and the few cells of equal luck that would straddle the limit are left out together.

    Args:
        cells: (B, K, h, w) uint8 labels of the support cells: 1, 0 or 255.
        count: N_s over all shots.
        seeds: (B,) int64.
        beyond_half: foreground takes the slots that too little background leaves.
    """
    batch, shots = cells.shape[:2]
    flat = cells.flatten(1)  # (B, S)
    luck = random_bits(seeds, flat.shape[1] // shots).repeat(1, shots)  # (B, S)
    group = torch.full_like(luck, _NEITHER)
    group = group.masked_fill(flat == 1, _FOREGROUND).masked_fill(flat == 0, _BACKGROUND)
    key, order = ((group << _SHIFT) + luck).sort(dim=1, stable=True)  # foreground, background, neither; each in random order

    foreground = (flat == 1).sum(1, keepdim=True)  # (B, 1) cells there are
    background = (flat == 0).sum(1, keepdim=True)
    half = torch.full_like(foreground, count // 2)
    room = torch.maximum(half, count - background) if beyond_half else half
    from_foreground = torch.minimum(foreground, room)  # (B, 1) cells to take
    from_background = torch.minimum(background, count - from_foreground)

    slot = torch.arange(count, device=cells.device).expand(batch, -1)  # (B, N)
    is_foreground = slot < from_foreground
    filled = slot < from_foreground + from_background
    place = torch.where(is_foreground, slot, foreground + slot - from_foreground)  # in the sorted order
    place = place.clamp_max(flat.shape[1] - 1)

    limit = torch.where(is_foreground, from_foreground, foreground + from_background)  # first of the group not taken
    end = torch.where(is_foreground, foreground, foreground + background)
    cut = key.gather(1, limit.clamp_max(flat.shape[1] - 1))
    straddles = (limit < end) & (key.gather(1, place) == cut)
    return Sample(order.gather(1, place), is_foreground, filled & ~straddles)
