"""The CyCTR encoders: self-alignment of the query, then cross-alignment with the support, L times (figure 3)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cyctr.methods.cyctr.config import EncoderConfig
from cyctr.methods.cyctr.position import coordinates
from cyctr.methods.cyctr.predicted_attention import PredictedAttention
from cyctr.methods.cyctr.released import UnpaddedCoordinates
from cyctr.methods.cyctr.state import CrossTrace, Support


class Mix(nn.Module):
    """What surrounds an attention layer in a transformer block: residual, LayerNorm, MLP, residual, LayerNorm."""

    def __init__(self, dim: int, config: EncoderConfig, biased: bool = True) -> None:
        super().__init__()
        hidden = round(dim * config.mlp_ratio)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden, biased), nn.ReLU(inplace=True), nn.Linear(hidden, dim, biased))
        self.dropout = nn.Dropout(config.branch_dropout)

    def forward(self, tokens: Tensor, attended: Tensor) -> Tensor:
        first, activation, second = self.mlp
        tokens = self.norm_attention(tokens + self.dropout(attended))
        inner = self.dropout(activation(first(tokens)))
        return self.norm_mlp(tokens + self.dropout(second(inner)))


class Encoder(nn.Module):
    """One encoder: a self-alignment block and, where there is one, a cross-alignment block."""

    def __init__(
        self, self_attention: PredictedAttention, self_mix: Mix, cross_attention: nn.Module | None, cross_mix: Mix | None
    ) -> None:
        super().__init__()
        self.self_attention, self.self_mix = self_attention, self_mix
        self.cross_attention, self.cross_mix = cross_attention, cross_mix

    def forward(
        self,
        tokens: Tensor,
        position: Tensor,
        grid: tuple[int, int],
        support: Support,
        explain: bool = False,
        silent: Tensor | None = None,
    ) -> tuple[Tensor, CrossTrace | None]:
        """Encodes (B, hw, d) query tokens; the trace is that of the cross-alignment block, if asked for."""
        tokens = self.self_mix(tokens, self.self_attention(tokens, position, grid, silent=silent))
        if self.cross_attention is None or self.cross_mix is None:
            return tokens, None
        attended, trace = self.cross_attention(tokens, position, grid, support, explain)
        return self.cross_mix(tokens, attended), trace


class PredictedCrossAttention(PredictedAttention):
    """The ablation "CyCTR (pred)": query tokens read predicted positions of the support instead of attending to tokens."""

    def forward(  # type: ignore[override]
        self, query: Tensor, position: Tensor, grid: tuple[int, int], support: Support, explain: bool = False
    ) -> tuple[Tensor, CrossTrace | None]:
        return super().forward(query, position, grid, support.maps), None


class TransformerMixer(nn.Module):
    """L encoders over a feature map."""

    def __init__(self, encoders: Iterable[Encoder], config: EncoderConfig, unpadded: UnpaddedCoordinates | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoders = nn.ModuleList(encoders)
        self.unpadded = unpadded

    def forward(
        self, query: Tensor, support: Support, explain: bool = False, padding: Tensor | None = None
    ) -> tuple[Tensor, tuple[CrossTrace, ...]]:
        """Encodes a (B, d, h, w) map; one trace per encoder that attends to support tokens, if asked for.

        Args:
            query: (B, d, h, w).
            support: what it is compared with.
            explain: also return the traces.
            padding: (B, h, w) bool, the cells beyond the image, if any; read where the config asks.
        """
        height, width = query.shape[-2:]
        tokens = query.flatten(2).transpose(1, 2)  # (B, hw, d)
        position = self._position(query, padding)
        supports = support.by_layer or (support,) * len(self.encoders)
        traces = []
        for encoder, its_support in zip(self.encoders, supports, strict=True):
            silent = self._silent(query, padding)
            tokens, trace = encoder(tokens, position, (height, width), its_support, explain, silent)
            traces += [trace] if trace is not None else []
        return tokens.transpose(1, 2).unflatten(2, (height, width)), tuple(traces)

    def _position(self, query: Tensor, padding: Tensor | None) -> Tensor:
        """(hw, d) or (B, hw, d): `Coord`."""
        batch, dim, height, width = query.shape
        if self.unpadded is None:
            return coordinates(height, width, dim, query.device)
        return self.unpadded(_or_none(padding, (batch, height, width), query.device))

    def _silent(self, query: Tensor, padding: Tensor | None) -> Tensor | None:
        """(B, hw) bool: cells whose values count as zero in self-alignment; None where all count."""
        drops = self.training and self.config.value_dropout > 0
        if not drops and (padding is None or not self.config.zero_padding):
            return None
        shape = (len(query), *query.shape[-2:])
        silent = _or_none(padding if self.config.zero_padding else None, shape, query.device)
        if drops:
            silent = silent | (torch.rand(shape, device=query.device) < self.config.value_dropout)
        return silent.flatten(1)


def _or_none(padding: Tensor | None, shape: tuple[int, int, int], device: torch.device) -> Tensor:
    """The padding, or that there is none."""
    return torch.zeros(shape, dtype=torch.bool, device=device) if padding is None else padding
