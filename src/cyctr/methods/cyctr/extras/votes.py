"""Votes: what the support's tokens say of each query cell without any learning. They know the support's background."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr.methods.cyctr.config import PriorConfig
from cyctr.methods.cyctr.sampling import Sample
from cyctr.methods.cyctr.state import Levels, Support
from cyctr.methods.parts.prior import as_other, in_parts, lengths


class Votes:
    """Further maps beside the prior map, one for each feature level of the config."""

    def __init__(self, config: PriorConfig) -> None:
        self.levels, self.temperature = config.votes, config.temperature

    def voters(self, levels: Levels, sample: Sample, shots: int) -> tuple[Tensor, ...]:
        """(B, N, C) features of the sampled tokens, unit length, for each level, from those of B * K images."""
        maps = (getattr(levels, level).unflatten(0, (-1, shots)) for level in self.levels)
        return tuple(F.normalize(sample.pick(one), dim=-1) for one in maps)

    def __call__(self, query: Levels, support: Support) -> Sequence[Tensor]:
        """(B, h, w) in [0, 1] for each level."""
        return [
            vote_map(getattr(query, level), voters, support.is_foreground, support.valid, self.temperature)
            for level, voters in zip(self.levels, support.voters, strict=True)
        ]


def vote_map(query: Tensor, voters: Tensor, is_foreground: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """The share of foreground among the support tokens each query cell resembles, the more similar ones weighing more.

    Unlike the prior map it knows what the background looks like, and all shots vote together.

    Args:
        query: (B, C, h, w).
        voters: (B, N, C) support tokens of unit length.
        is_foreground: (B, N) bool.
        valid: (B, N) bool; the others have no vote.
        temperature: of the softmax over cosine similarities.

    Returns:
        (B, h, w) in [0, 1]: 0.5 where nobody votes.
    """
    cells = query.flatten(2).transpose(1, 2)  # (B, hw, C)

    def shares(part: Tensor) -> Tensor:
        products = (as_other(part, voters) @ voters.transpose(1, 2)).float()  # (B, rows, N)
        logits = products * (1 / (temperature * lengths(part)))[..., None]  # cosines over the temperature
        weights = logits.masked_fill(~valid[:, None], torch.finfo(torch.float32).min).softmax(-1)
        return (weights * is_foreground[:, None]).sum(-1)  # (B, rows)

    share = torch.cat([shares(part) for part in in_parts(cells, voters.shape[1])], 1)  # (B, hw)
    share = torch.where(valid.any(-1, keepdim=True), share, 0.5)
    return share.unflatten(1, query.shape[-2:])
