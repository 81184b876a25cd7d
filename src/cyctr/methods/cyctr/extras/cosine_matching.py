"""Cross-attention that compares the angles of tokens, in place of the products of their vectors."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.methods.cyctr.cycle_attention import CycleAttention

_SHARPNESS = 15.0  # of angles at the start: of 600 tokens about a third are heard


class CosineCycleAttention(CycleAttention):
    """Cycle attention whose heads compare angles, times a factor that each of them learns.

    Products of vectors begin near zero, and attention as a mean over all tokens, which takes long to unlearn. Angles begin as a
    comparison.
    """

    def __init__(self, dim: int, config: EncoderConfig, biased: bool = True) -> None:
        super().__init__(dim, config, biased)
        self.norm_support = nn.LayerNorm(dim)
        self.sharpness = nn.Parameter(torch.full((self.heads,), math.log(_SHARPNESS)))
        self.k.load_state_dict(self.q.state_dict())  # what looks alike is alike from the start

    def project(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As of `CycleAttention`, from normalised support tokens."""
        q, k, v = super().project(query, self.norm_support(tokens))
        # attention divides by the root of the length again
        factor = (self.sharpness.exp() * q.shape[-1] ** 0.5).view(-1, 1, 1)  # (heads, 1, 1)
        return (F.normalize(q, dim=-1) * factor).to(v.dtype), F.normalize(k, dim=-1).to(v.dtype), v
