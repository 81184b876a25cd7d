"""The convolutions: reduction, merge, classifier, the residual blocks of the baseline, the auxiliary head."""

import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.methods.cyctr.config import HeadConfig
from cyctr.methods.cyctr.state import CrossTrace, Support


class Reduction(nn.Module):
    """1x1 convolution of the middle features to d channels."""

    def __init__(self, channels: int, dim: int, dropout: float, biased: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, dim, 1, bias=biased)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, mid: Tensor) -> Tensor:
        return self.dropout(self.convolution(mid).relu_())


class ResidualBlock(nn.Module):
    """The baseline's: two 3x3 convolutions around a shortcut."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(dim, dim, 3, padding=1) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        return (maps + self.second(self.first(maps).relu_())).relu_()


class ResidualMixer(nn.Module):
    """The paper's baseline in place of the transformer: two residual blocks, blind to the support tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ResidualBlock(dim), ResidualBlock(dim))

    def forward(
        self, query: Tensor, support: Support, explain: bool = False, padding: Tensor | None = None
    ) -> tuple[Tensor, tuple[CrossTrace, ...]]:
        """Encodes a (B, d, h, w) map; there is never a trace."""
        return self.blocks(query), ()


class Classifier(nn.Module):
    """3x3 convolution, ReLU, 1x1 convolution to background and foreground (section 3.4)."""

    def __init__(self, dim: int, config: HeadConfig, biased: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(dim, dim, 3, padding=1, bias=biased)
        self.dropout = nn.Dropout2d(config.dropout)
        self.logits = nn.Conv2d(dim, 2, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, 2, h, w) logits of a (B, d, h, w) map."""
        return self.logits(self.dropout(self.hidden(maps).relu_()))


class Merge(nn.Module):
    """1x1 convolution and ReLU over features joined with a vector that is the same at every cell."""

    def __init__(self, channels: int, dim: int, biased: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, dim, 1, bias=biased)

    def forward(self, maps: Tensor, vector: Tensor, group: Tensor | None = None) -> Tensor:
        """(B, d, h, w) from (B, C, h, w) maps and a (B, C') vector, C + C' = channels.

        Args:
            maps: (B, C, h, w).
            vector: (B, C'); or (B, G, C'), one for each group of cells.
            group: (B, h * w) int64, the group of each cell, where there are several.
        """
        of_maps, of_vector = self.convolution.weight.split([maps.shape[1], vector.shape[-1]], 1)
        bias = F.linear(vector, of_vector.flatten(1), self.convolution.bias)  # (B, d): the same everywhere, so it is a bias
        if group is None:
            return F.conv2d(maps, of_maps).add_(bias[:, :, None, None]).relu_()
        of_cells = bias.gather(1, group[..., None].expand(-1, -1, bias.shape[-1]))  # (B, hw, d)
        return F.conv2d(maps, of_maps).add_(of_cells.transpose(1, 2).unflatten(2, maps.shape[-2:])).relu_()


class AuxiliaryHead(nn.Module):
    """Predicts the support masks from the query's prototype, to align the features of both (section 4.2)."""

    def __init__(self, dim: int, config: HeadConfig, biased: bool = True, refine: nn.Module | None = None) -> None:
        super().__init__()
        self.merge = Merge(2 * dim, dim, biased)
        self.refine = refine or nn.Identity()
        self.classifier = Classifier(dim, config, biased)

    def describe(self, reduced_query: Tensor, seen: Tensor) -> Tensor:
        """(B, d, h, w) what the query's prototype is an average of; `seen` is what the classifier sees of the query."""
        return reduced_query

    def forward(self, support: Tensor, query_prototype: Tensor) -> Tensor:
        """(B, K, 2, h, w) logits from (B, K, d, h, w) reduced support features and a (B, d) vector."""
        batch, shots = support.shape[:2]
        vector = query_prototype.repeat_interleave(shots, 0)
        merged = self.merge(support.flatten(0, 1), vector)
        return self.classifier(self.refine(merged)).unflatten(0, (batch, shots))
