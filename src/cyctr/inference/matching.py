"""Plain matching beside the network: what the support's tokens say by themselves, and how much that counts.

`vote_map` gives the share of foreground among the tokens that a cell resembles. That share follows how many tokens of each
class there are: a small object has few tokens of its own and hundreds of background, so the share stays low even on the
object. Here each class gets the same say, whatever its number of tokens.
"""

import torch
from torch import Tensor

from cyctr.methods.base import Matching

WEIGHT = 0.5
"""Of plain matching in the answer. `experiments/photos.py`: the best for supports that the network knows well or badly."""

EXPECTED = 0.25
"""The share of a photograph that is of the class before anything is seen of it."""
_LEAST = 1e-6  # a share that is no smaller, nor closer to one


def balanced(share: Tensor, support: Matching, expected: float = EXPECTED, labelled: int | None = None) -> Tensor:
    """Shares of foreground as they were if the tokens of each class had one vote together.

    The odds of a share are a sum over foreground tokens by a sum over background tokens. Divided by how many there are, they
    are a ratio of means, and times the expected odds a probability.

    Args:
        share: (B, ...) from `vote_map`.
        support: of B episodes, or of one for all.
        expected: share of the query that is of the class, before it is seen.
        labelled: how many images of the support, the first ones, count; None is all. The others show nothing of the class:
            their tokens vote, but are not counted, so that they can only lower the share.
    """
    counted = support.valid if labelled is None else support.valid & (support.shot < labelled)
    marked = (support.is_foreground & counted).sum(1).float()  # (B,)
    rest = (~support.is_foreground & counted).sum(1).float()
    known = (marked > 0) & (rest > 0)  # otherwise there is nothing to balance
    shift = torch.where(known, (rest.clamp_min(1) / marked.clamp_min(1)).log() + torch.logit(marked.new_tensor(expected)), 0)
    odds = torch.logit(share.float(), _LEAST)
    return torch.sigmoid(odds + shift.view(-1, *[1] * (share.dim() - 1)))
