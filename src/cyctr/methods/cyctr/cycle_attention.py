"""Cycle-consistent attention: query tokens attend to the support tokens that survive a round trip (section 3.3.1)."""

import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.methods.base import TokenState
from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.methods.cyctr.state import CrossTrace, Support
from cyctr.speed import kernels, on_cpu

_PAD = 8  # channels: kernels want their number to be a multiple of it
_HIDDEN = -1e4  # far enough for a weight of zero, near enough for half precision


def nearest_neighbours(q: Tensor, k: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The most similar query token of every support token, and the most similar support token of every query token.

    Args:
        q: (B, heads, hw, C) query tokens.
        k: (B, heads, N, C) support tokens.
        valid: (B, 1, N) bool; the others are nobody's nearest.

    Returns:
        (B, heads, N) int64 in hw, i* of each j; and (B, heads, hw) int64 in N, j* of each i. The first of equals.
    """
    affinity = (q @ k.transpose(-2, -1)).masked_fill(~valid[:, :, None], -math.inf)  # (B, heads, hw, N)
    return affinity.argmax(-2), affinity.argmax(-1)


def cycle_consistency(nearest_query: Tensor, nearest_support: Tensor, is_foreground: Tensor, valid: Tensor) -> Tensor:
    """Which support tokens come back to their own class: j -> nearest query i* -> nearest support j*.

    Args:
        nearest_query: (B, heads, N) and
        nearest_support: (B, heads, hw), both from `nearest_neighbours`.
        is_foreground: (B, 1, N) bool, the class of each support token.
        valid: (B, 1, N) bool.

    Returns:
        (B, heads, N) bool. Where any token is valid one is consistent: the pair with the largest affinity returns to itself.
    """
    return comes_home(nearest_support.gather(-1, nearest_query), is_foreground, valid)  # j -> i* -> j*


def comes_home(landing: Tensor, is_foreground: Tensor, valid: Tensor) -> Tensor:
    """As `cycle_consistency`, of the (B, heads, N) places where round trips end."""
    landing_class = is_foreground.expand(landing.shape).gather(-1, landing)
    return valid & (is_foreground == landing_class)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float = 0.0) -> Tensor:
    """Softmax attention in which a bias per key hides some of them.

    Args:
        q: (B, heads, hw, C).
        k: (B, heads, N, C).
        v: (B, heads, N, C).
        bias: (B, heads, 1, N): 0 or -inf.
        dropout: of the attention weights.

    Returns:
        (B, heads, hw, C).
    """
    if q.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        return _attend_heard(q, k, v, bias[:, :, 0] == 0)
    if q.device.type != "cuda" or q.dtype == torch.float32:
        rows = bias.expand(-1, -1, q.shape[2], -1)  # (B, heads, hw, N) without a copy
        return F.scaled_dot_product_attention(q, k, v, rows, dropout)
    # The fastest kernels take no bias, so it travels as one more channel, which queries multiply by one; zeros fill the rest.
    channels = q.shape[-1]
    scale = channels**-0.5
    hidden = bias.transpose(-2, -1).clamp_min(_HIDDEN) / scale  # (B, heads, N, 1)
    q = F.pad(q, (0, _PAD), value=1.0)
    k = torch.cat([k, hidden.to(k.dtype), k.new_zeros(*k.shape[:-1], _PAD - 1)], -1)
    v = F.pad(v, (0, _PAD))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)[..., :channels]


def _attend_heard(q: Tensor, k: Tensor, v: Tensor, heard: Tensor) -> Tensor:
    """As `attend`, of (B, heads, N) keys that are not hidden: the others, often half of them, take no time."""
    batch, heads = heard.shape[:2]
    rows = []
    for episode, head in product(range(batch), range(heads)):
        keys, values = (one[episode, head][heard[episode, head]][None, None] for one in (k, v))  # (1, 1, heard, C)
        rows.append(F.scaled_dot_product_attention(q[episode, head][None, None], keys, values))  # fused for four axes only
    return torch.cat(rows).view(batch, heads, *q.shape[2:])


class CycleAttention(nn.Module):
    """Multi-head attention of query tokens over sampled support tokens, each head with a cycle of its own.

    `encoder.cross` chooses the tokens attended to: all ("vanilla"), the consistent ones ("cycle"), or the consistent
    foreground alone ("cycle_foreground"). Tokens are compared by the products of their vectors.
    """

    def __init__(self, dim: int, config: EncoderConfig, biased: bool = True) -> None:
        super().__init__()
        self.heads = config.heads
        self.cross = config.cross
        self.dropout = config.dropout
        self.flag_dropout = config.flag_dropout
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=biased) if config.output_projection else nn.Identity()

    def forward(
        self, query: Tensor, position: Tensor, grid: tuple[int, int], support: Support, explain: bool = False
    ) -> tuple[Tensor, CrossTrace | None]:
        """Gathers support information for every query token.

        Args:
            query: (B, hw, d).
            position: `Coord` of the query's cells, which does not matter here.
            grid: (h, w) of the query, likewise.
            support: its tokens are keys and values.
            explain: also return what happened.

        Returns:
            (B, hw, d), and the trace if asked for.
        """
        q, k, v = self.project(query, support.tokens)  # (B, heads, hw, d / heads), twice (B, heads, N, d / heads)
        valid = support.attended[:, None].expand(-1, self.heads, -1)  # (B, heads, N)
        consistent = self._consistent(q, k, support) if self.cross != "vanilla" or explain else valid
        usable = self._usable(valid if self.cross == "vanilla" else consistent, support)
        bias = torch.zeros_like(usable, dtype=q.dtype).masked_fill(~usable, -math.inf)[:, :, None]  # (B, heads, 1, N)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, bias, dropout)  # (B, heads, hw, d / heads)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))  # (B, hw, d)
        if not explain:
            return mixed, None
        return mixed, CrossTrace(q * q.shape[-1] ** -0.5, k, bias, _states(consistent, support))

    def project(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values for each head, from (B, hw, d) query tokens and (B, N, d) support tokens."""
        return self.split(self.q(query)), self.split(self.k(tokens)), self.split(self.v(tokens))

    def split(self, tokens: Tensor) -> Tensor:
        """(B, heads, tokens, d / heads) of (B, tokens, d)."""
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _consistent(self, q: Tensor, k: Tensor, support: Support) -> Tensor:
        """(B, heads, N) the tokens whose round trip ends where it began."""
        valid, is_foreground = support.valid[:, None], support.is_foreground[:, None]  # (B, 1, N)
        # float32 even under autocast: rounding to bfloat16 makes ties, and ties change who is nearest
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            if kernels.usable(q):  # adds up in float32 by itself
                there, back = kernels.nearest(q, k.to(q.dtype), support.valid.to(torch.uint8))
            elif on_cpu.usable(q):
                return comes_home(on_cpu.landings(q.float(), k.float(), valid), is_foreground, valid)
            else:
                there, back = nearest_neighbours(q.float(), k.float(), valid)
            return cycle_consistency(there, back, is_foreground, valid)

    def _usable(self, allowed: Tensor, support: Support) -> Tensor:
        """(B, heads, N) the tokens attended to; never none."""
        valid, is_foreground = support.attended[:, None], support.is_foreground[:, None]
        if self.training and self.flag_dropout:
            allowed = allowed | (torch.rand(allowed.shape, device=allowed.device) < self.flag_dropout)
        if support.hidden is not None or (self.training and self.flag_dropout):
            allowed = allowed & valid
        if self.cross == "cycle_foreground":
            allowed = _or_all(allowed & is_foreground, valid & is_foreground)
        return _or_all(allowed, valid)


def _or_all(chosen: Tensor, candidates: Tensor) -> Tensor:
    """`chosen`, or all `candidates` where none is chosen, or simply all where there is no candidate: never an empty row."""
    chosen = torch.where(chosen.any(-1, keepdim=True), chosen, candidates)
    return chosen | ~chosen.any(-1, keepdim=True)


def _states(consistent: Tensor, support: Support) -> Tensor:
    valid, is_foreground = support.attended[:, None], support.is_foreground[:, None]
    state = torch.full_like(consistent, TokenState.INCONSISTENT, dtype=torch.uint8)
    state = state.masked_fill(consistent & is_foreground, TokenState.CONSISTENT_FOREGROUND)
    state = state.masked_fill(consistent & ~is_foreground, TokenState.CONSISTENT_BACKGROUND)
    return state.masked_fill(~valid, TokenState.UNUSED)
