"""The CyCTR encoders: self-alignment of the query, then cross-alignment with the support, L times (figure 3)."""

from torch import Tensor, nn

from cyctr.config import EncoderConfig
from cyctr.model.cycle_attention import CycleAttention
from cyctr.model.predicted_attention import PredictedAttention
from cyctr.types import CrossTrace, Support


class Mix(nn.Module):
    """What surrounds an attention layer in a transformer block: residual, LayerNorm, MLP, residual, LayerNorm."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        hidden = round(dim * config.mlp_ratio)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, dim))

    def forward(self, tokens: Tensor, attended: Tensor) -> Tensor:
        tokens = self.norm_attention(tokens + attended)
        return self.norm_mlp(tokens + self.mlp(tokens))


class Encoder(nn.Module):
    """One encoder: a self-alignment block and, unless `encoder.cross` is "none", a cross-alignment block."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attention, self.self_mix = PredictedAttention(dim, config), Mix(dim, config)
        if config.cross != "none":
            cross = PredictedCrossAttention if config.cross == "predicted" else CycleAttention
            self.cross_attention, self.cross_mix = cross(dim, config), Mix(dim, config)
        self.crosses = config.cross != "none"

    def forward(
        self, tokens: Tensor, grid: tuple[int, int], support: Support, explain: bool = False
    ) -> tuple[Tensor, CrossTrace | None]:
        """Encodes (B, hw, d) query tokens; the trace is that of the cross-alignment block, if asked for."""
        tokens = self.self_mix(tokens, self.self_attention(tokens, grid))
        if not self.crosses:
            return tokens, None
        attended, trace = self.cross_attention(tokens, grid, support, explain)
        return self.cross_mix(tokens, attended), trace


class PredictedCrossAttention(PredictedAttention):
    """The ablation "CyCTR (pred)": query tokens read predicted positions of the support instead of attending to tokens."""

    def forward(  # type: ignore[override]
        self, query: Tensor, grid: tuple[int, int], support: Support, explain: bool = False
    ) -> tuple[Tensor, CrossTrace | None]:
        return super().forward(query, grid, support.maps), None


class TransformerMixer(nn.Module):
    """L encoders over a feature map."""

    def __init__(self, dim: int, config: EncoderConfig) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(Encoder(dim, config) for _ in range(config.layers))

    def forward(self, query: Tensor, support: Support, explain: bool = False) -> tuple[Tensor, tuple[CrossTrace, ...]]:
        """Encodes a (B, d, h, w) map; one trace per encoder that attends to support tokens, if asked for."""
        height, width = query.shape[-2:]
        tokens = query.flatten(2).transpose(1, 2)  # (B, hw, d)
        traces = []
        for encoder in self.encoders:
            tokens, trace = encoder(tokens, (height, width), support, explain)
            traces += [trace] if trace is not None else []
        return tokens.transpose(1, 2).unflatten(2, (height, width)), tuple(traces)
