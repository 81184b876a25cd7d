"""References that learn nothing: what a frozen backbone, or no image at all, scores by itself."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import load_backbone
from cyctr.config import BackboneConfig, BackboneOnly, Recipe, setting
from cyctr.config.fields import require, require_choice
from cyctr.errors import ConfigError
from cyctr.methods.base import Method, Size
from cyctr.methods.parts.pooling import masked_average
from cyctr.methods.parts.prior import prior_map, support_vectors
from cyctr.types import Episode, Features, Prediction

PRIOR_THRESHOLD = 0.4
"""Of 0.3, 0.4, ..., 0.9 the best on training classes (`docs/protocol.md`)."""
Level = Literal["mid", "high"]
PROTOTYPE_LEVEL: Level = "high"
"""Of middle and high features the better on training classes (`docs/protocol.md`)."""


class Constant(nn.Module):
    """The same answer for every pixel."""

    def __init__(self, foreground: bool) -> None:
        super().__init__()
        self.foreground = foreground

    def forward(self, episode: Episode) -> Prediction:
        images = episode.query_images
        logits = torch.zeros(len(images), 2, *images.shape[-2:], device=images.device)
        logits[:, int(self.foreground)] = 1
        return Prediction(logits)


@dataclass(frozen=True)
class PriorConfig(BackboneOnly):
    """Of the prior map above a threshold."""

    threshold: float = setting(PRIOR_THRESHOLD, "of the prior map, above which a place is foreground")


@dataclass(frozen=True)
class PriorRecipe(Recipe):
    """Of the same; nothing of it learns."""

    model: PriorConfig = PriorConfig()


class PriorThreshold(Method[tuple[Tensor, Tensor]]):
    """Foreground where the prior map exceeds a threshold. A support is vectors and which of them count."""

    name = "prior"
    Config = PriorRecipe

    def __init__(self, config: PriorConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone

    @classmethod
    def build(cls, config: PriorRecipe, backbone: Backbone) -> Self:
        """The method on a backbone."""
        return cls(config.model, backbone)

    @property
    def threshold(self) -> float:
        """Of the prior map."""
        return self.config.threshold

    def encode_support(self, features: Features, labels: Tensor, seeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, K, M, C) foreground vectors, and (B, K, M) which of them are some."""
        maps, cells = _by_shot(features.maps[-1], self.backbone, labels)
        return support_vectors(maps, cells == 1)

    def predict(
        self,
        query: Features,
        support: tuple[Tensor, Tensor],
        size: Size,
        padding: Tensor | None = None,
        explain: bool = False,
    ) -> Prediction:
        """Compares the prior map with the threshold."""
        prior = prior_map(query.maps[-1], *support)  # (B, h, w)
        return _prediction(torch.stack([torch.full_like(prior, self.threshold), prior], 1), self.backbone, size)


@dataclass(frozen=True)
class PrototypeConfig(BackboneOnly):
    """Of the nearest prototype."""

    level: Level = setting(PROTOTYPE_LEVEL, "which features are compared: the deepest, or the two before it joined")

    def __post_init__(self) -> None:
        require_choice("model.level", self.level, Level)
        apart = self.level == "mid" and self.backbone.own_strides
        require(not apart, "model.backbone.own_strides", True, "false for middle features, which are joined")


@dataclass(frozen=True)
class PrototypeRecipe(Recipe):
    """Of the same; nothing of it learns."""

    model: PrototypeConfig = PrototypeConfig()


class NearestPrototype(Method[Tensor]):
    """Each cell goes to the nearer of two vectors, by cosine: the support's mean foreground and its mean background."""

    name = "prototype"
    Config = PrototypeRecipe

    def __init__(self, config: PrototypeConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone

    @classmethod
    def build(cls, config: PrototypeRecipe, backbone: Backbone) -> Self:
        """The method on a backbone."""
        return cls(config.model, backbone)

    @property
    def level(self) -> Level:
        """Which features are compared."""
        return self.config.level

    def encode_support(self, features: Features, labels: Tensor, seeds: Tensor | None = None) -> Tensor:
        """(B, 2, C) the mean of background and of foreground."""
        maps, cells = _by_shot(self._compared(features), self.backbone, labels)
        return torch.stack([masked_average(maps, cells == kind) for kind in (0, 1)], 1)

    def predict(
        self, query: Features, support: Tensor, size: Size, padding: Tensor | None = None, explain: bool = False
    ) -> Prediction:
        """Compares each cell with both."""
        of_query = self._compared(query)
        with torch.autocast(of_query.device.type, enabled=False):
            cosine = torch.einsum("bpc,bchw->bphw", F.normalize(support, dim=-1), F.normalize(of_query, dim=1))
        return _prediction(cosine, self.backbone, size)

    def _compared(self, features: Features) -> Tensor:
        """(B, C, h, w) float32."""
        return (features.maps[-1] if self.level == "high" else torch.cat(features.maps[:-1], 1)).float()


def _by_shot(maps: Tensor, backbone: Backbone, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, C, h, w) support features and (B, K, h, w) the label of each cell."""
    shape = labels.shape[:2]
    cells = backbone.grids[-1].cells(labels.flatten(0, 1), (maps.shape[-2], maps.shape[-1]))
    return maps.unflatten(0, shape), cells.unflatten(0, shape)


def _prediction(logits: Tensor, backbone: Backbone, size: Size) -> Prediction:
    return Prediction(backbone.grids[-1].upsample(logits.float(), size))


REFERENCES = {
    "prior": "the prior map above a threshold",
    "prototype": "the nearer of the support's mean foreground and mean background, by cosine",
    "background": "nothing is foreground",
    "foreground": "everything is foreground",
}
CONSTANTS = ("background", "foreground")
"""Those that look at no image."""


def reference(name: str, backbone: BackboneConfig) -> Method[Any] | Constant:
    """The reference of that name on a backbone with its weights; `prior:0.6` and `prototype:mid` choose a variant."""
    check_reference(name)
    kind, _, variant = name.partition(":")
    if kind in CONSTANTS:
        return Constant(kind == "foreground")
    built = load_backbone(backbone)
    if kind == "prior":
        return PriorThreshold(PriorConfig(backbone, float(variant or PRIOR_THRESHOLD)), built).eval()
    level: Level = "mid" if variant == "mid" else "high"
    return NearestPrototype(PrototypeConfig(backbone, level if variant else PROTOTYPE_LEVEL), built).eval()


def check_reference(name: str) -> None:
    """Raises ConfigError where there is no reference of that name."""
    kind, colon, variant = name.partition(":")
    if kind not in REFERENCES or (colon and kind in CONSTANTS):
        raise ConfigError(f"method is {name!r}; expected one of {', '.join(REFERENCES)}, prior:THRESHOLD or prototype:LEVEL")
    if colon and kind == "prior" and not _is_share(variant):
        raise ConfigError(f"method is {name!r}; expected a threshold from 0 to 1, such as prior:0.6")
    if colon and kind == "prototype" and variant not in ("mid", "high"):
        raise ConfigError(f"method is {name!r}; expected prototype:mid or prototype:high")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
