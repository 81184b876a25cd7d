"""CyCTR's own values: an encoded support, prepared queries, and what a prediction shows of itself.

Shapes: `B` batch, `K` shots, `C` channels, `h w` cells of the feature grid, `N` sampled tokens, `d` the network's channels.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from cyctr.errors import DataError
from cyctr.types import Features


class Levels(NamedTuple):
    """Backbone features as the paper names them.

    Attributes:
        mid: (B, C, h, w) the third and fourth block joined: what is compared and mixed.
        high: (B, C', h, w) the fifth block: the source of the prior map.
    """

    mid: Tensor
    high: Tensor

    @classmethod
    def of(cls, features: Features) -> "Levels":
        """The levels of three maps."""
        third, fourth, fifth = features.maps
        return cls(torch.cat([third, fourth], 1), fifth)


@dataclass(frozen=True, eq=False)
class Query(Features):
    """Prepared queries: what of them no support changes.

    Attributes:
        levels: the same features as the paper names them.
        reduced: (B, d, h, w) the middle features as the network compares them.
        familiar: (B, classes, h, w) how much each familiar class is there; None where none is known.
    """

    levels: Levels
    reduced: Tensor
    familiar: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Support:
    """The support images, encoded once for any number of queries.

    Attributes:
        prototype: (B, d) masked average of the support features, mean over shots.
        high: (B, K, M, C') high-level features of support cells, unit length.
        high_valid: (B, K, M) bool, which of them are foreground.
        tokens: (B, N, d) sampled support tokens.
        index: (B, N) int64, where each token came from, in K * h * w.
        is_foreground: (B, N) bool, the class of each token: the label at its own index.
        valid: (B, N) bool, false for slots that no token fills.
        maps: (B, K, d, h, w) all support features, kept only where the cross block reads predicted positions.
        grid: (h, w) of the support features.
        voters: (B, N, C) backbone features of the tokens, unit length, one tensor for each of `prior.votes`.
        familiar: (B, classes) how much of each familiar class what is marked shows; None where none is known.
        hidden: (B, N) bool, tokens that take part in round trips but are not attended to; None where there are none.
        by_layer: in training with `sampling.draw_per_layer`, the same support with the tokens of each layer.
    """

    prototype: Tensor
    high: Tensor
    high_valid: Tensor
    tokens: Tensor
    index: Tensor
    is_foreground: Tensor
    valid: Tensor
    maps: Tensor | None
    grid: tuple[int, int]
    voters: tuple[Tensor, ...] = ()
    familiar: Tensor | None = None
    hidden: Tensor | None = None
    by_layer: tuple["Support", ...] = ()

    @property
    def attended(self) -> Tensor:
        """(B, N) bool: the tokens that queries may attend to."""
        return self.valid if self.hidden is None else self.valid & ~self.hidden

    def expand(self, batch: int) -> "Support":
        """The same support for each of `batch` queries, without copying it."""
        own = len(self.tokens)
        if own == batch:
            return self
        if own != 1:
            raise DataError(f"support holds {own} episodes, the query batch {batch}; expected equal numbers or one support")
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        grown = {name: value.expand(batch, *value.shape[1:]) for name, value in values.items() if isinstance(value, Tensor)}
        voters = tuple(value.expand(batch, *value.shape[1:]) for value in self.voters)
        return Support(**{**values, **grown, "voters": voters})


@dataclass(frozen=True, eq=False)
class CrossTrace:
    """What one cross-alignment block did.

    Attributes:
        q: (B, heads, hw, d / heads) query tokens, scaled.
        k: (B, heads, N, d / heads) support tokens.
        bias: (B, heads, 1, N) 0 for the tokens attended to, -inf for the others.
        state: (B, heads, N) uint8 of `TokenState`.
    """

    q: Tensor
    k: Tensor
    bias: Tensor
    state: Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """What pictures of a prediction need; see `methods.base.Explanation`.

    Attributes:
        prior: (B, h, w) prior map in [0, 1].
        index: (B, N) int64, the place of each support token in K * h * w of the support.
        is_foreground: (B, N) bool.
        valid: (B, N) bool.
        support_grid: (h, w) of the support features.
        cross: one trace for each cross-alignment block that attends to support tokens.
    """

    prior: Tensor
    index: Tensor
    is_foreground: Tensor
    valid: Tensor
    support_grid: tuple[int, int]
    cross: tuple[CrossTrace, ...]

    @property
    def state(self) -> Tensor | None:
        """(B, heads, N) uint8 of `TokenState` in the last block; None without attention."""
        return self.cross[-1].state if self.cross else None

    def attention(self, row: int, column: int, layer: int = -1) -> Tensor:
        """(B, heads, N) attention weights of the query cell at (row, column) over the support tokens."""
        height, width = self.prior.shape[-2:]
        if not self.cross:
            raise DataError("this network has no attention over support tokens; use encoder.cross 'vanilla' or 'cycle'")
        if not (0 <= row < height and 0 <= column < width):
            raise DataError(f"cell ({row}, {column}) is outside the query's {height} x {width} feature grid")
        if not -len(self.cross) <= layer < len(self.cross):
            raise DataError(f"layer is {layer}; this network has {len(self.cross)} cross-alignment blocks")
        trace = self.cross[layer]
        q = trace.q[:, :, row * width + column, None].float()  # (B, heads, 1, d / heads)
        affinity = q @ trace.k.float().transpose(-2, -1)  # (B, heads, 1, N)
        return (affinity + trace.bias.float()).softmax(-1).squeeze(-2)


@dataclass(frozen=True, eq=False)
class Extras:
    """What a prediction of CyCTR holds beside its logits.

    Attributes:
        votes: (B, votes, h, w) in [0, 1], a map for each of `prior.votes`; None where there are none.
        explanation: on request, else None.
    """

    votes: Tensor | None = None
    explanation: Evidence | None = None


for _kind in (Query, Support, CrossTrace, Evidence, Extras):
    torch.export.register_dataclass(_kind, serialized_type_name=f"cyctr.{_kind.__name__}")
