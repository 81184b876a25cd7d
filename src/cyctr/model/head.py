"""Features -> logits: the classifier, the residual block of the baseline and of the release, the auxiliary head."""

import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.config import HeadConfig
from cyctr.types import CrossTrace, Support


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

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

    def forward(self, query: Tensor, support: Support, explain: bool = False) -> tuple[Tensor, tuple[CrossTrace, ...]]:
        """Encodes a (B, d, h, w) map; there is never a trace."""
        return self.blocks(query), ()


class Classifier(nn.Module):
    """3x3 convolution, ReLU, 1x1 convolution to background and foreground (section 3.4)."""

    def __init__(self, dim: int, config: HeadConfig) -> None:
        super().__init__()
        self.residual = ResidualBlock(dim) if config.residual else nn.Identity()
        self.hidden = nn.Conv2d(dim, dim, 3, padding=1)
        self.dropout = nn.Dropout2d(config.dropout)
        self.logits = nn.Conv2d(dim, 2, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, 2, h, w) logits of a (B, d, h, w) map."""
        return self.logits(self.dropout(self.hidden(self.residual(maps)).relu_()))


class Merge(nn.Module):
    """1x1 convolution and ReLU over features joined with a vector that is the same at every cell."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, dim, 1)

    def forward(self, maps: Tensor, vector: Tensor) -> Tensor:
        """(B, d, h, w) from (B, C, h, w) maps and a (B, C') vector, C + C' = channels."""
        of_maps, of_vector = self.convolution.weight.split([maps.shape[1], vector.shape[1]], 1)
        bias = F.linear(vector, of_vector.flatten(1), self.convolution.bias)  # (B, d): the same everywhere, so it is a bias
        return F.conv2d(maps, of_maps).add_(bias[:, :, None, None]).relu_()


class AuxiliaryHead(nn.Module):
    """Predicts the support masks from the query's prototype, to align the features of both (section 4.2)."""

    def __init__(self, dim: int, config: HeadConfig) -> None:
        super().__init__()
        self.merge = Merge(2 * dim, dim)
        self.classifier = Classifier(dim, config)

    def forward(self, support: Tensor, query_prototype: Tensor) -> Tensor:
        """(B, K, 2, h, w) logits from (B, K, d, h, w) reduced support features and a (B, d) vector."""
        batch, shots = support.shape[:2]
        vector = query_prototype.repeat_interleave(shots, 0)
        return self.classifier(self.merge(support.flatten(0, 1), vector)).unflatten(0, (batch, shots))
