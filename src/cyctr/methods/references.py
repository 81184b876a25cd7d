"""References that learn nothing: what a frozen backbone, or no image at all, scores by itself."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import load_backbone
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError
from cyctr.methods.cyctr.pooling import masked_average
from cyctr.methods.cyctr.prior import prior_map, support_vectors
from cyctr.types import Episode, Features, Prediction

PRIOR_THRESHOLD = 0.4
"""Of 0.3, 0.4, ..., 0.9 the best on training classes (`docs/protocol.md`)."""
PROTOTYPE_LEVEL = "high"
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


class OnFeatures(nn.Module):
    """A method that compares what a frozen backbone says of query and support."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, episode: Episode) -> Prediction:
        support = self.backbone(episode.support_images.flatten(0, 1))
        return self.match(self.backbone(episode.query_images), support, episode)

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        """As `forward`, with features that were made before; those of the support are (B * K, C, h, w)."""
        raise NotImplementedError


class PriorThreshold(OnFeatures):
    """Foreground where the prior map exceeds a threshold."""

    def __init__(self, backbone: Backbone, threshold: float = PRIOR_THRESHOLD) -> None:
        super().__init__(backbone)
        self.threshold = threshold

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        features, cells = _by_shot(support.high, self.backbone, episode)
        vectors, valid = support_vectors(features, cells == 1)
        prior = prior_map(query.high, vectors, valid)  # (B, h, w)
        return _prediction(torch.stack([torch.full_like(prior, self.threshold), prior], 1), self.backbone, episode)


class NearestPrototype(OnFeatures):
    """Each cell goes to the nearer of two vectors, by cosine: the support's mean foreground and its mean background."""

    def __init__(self, backbone: Backbone, level: str = PROTOTYPE_LEVEL) -> None:
        super().__init__(backbone)
        self.level = level

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        of_support, of_query = (getattr(side, self.level).float() for side in (support, query))
        features, cells = _by_shot(of_support, self.backbone, episode)
        prototypes = torch.stack([masked_average(features, cells == kind) for kind in (0, 1)], 1)  # (B, 2, C)
        with torch.autocast(of_query.device.type, enabled=False):
            cosine = torch.einsum("bpc,bchw->bphw", F.normalize(prototypes, dim=-1), F.normalize(of_query, dim=1))
        return _prediction(cosine, self.backbone, episode)


def _by_shot(maps: Tensor, backbone: Backbone, episode: Episode) -> tuple[Tensor, Tensor]:
    """(B, K, C, h, w) support features and (B, K, h, w) the label of each cell."""
    shape = episode.support_labels.shape[:2]
    cells = backbone.grid.cells(episode.support_labels.flatten(0, 1), (maps.shape[-2], maps.shape[-1]))
    return maps.unflatten(0, shape), cells.unflatten(0, shape)


def _prediction(logits: Tensor, backbone: Backbone, episode: Episode) -> Prediction:
    size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
    return Prediction(backbone.grid.upsample(logits.float(), size))


REFERENCES = {
    "prior": "the prior map above a threshold",
    "prototype": "the nearer of the support's mean foreground and mean background, by cosine",
    "background": "nothing is foreground",
    "foreground": "everything is foreground",
}


def reference(name: str, backbone: BackboneConfig, device: torch.device) -> nn.Module:
    """The reference of that name on a backbone with its weights; `prior:0.6` and `prototype:mid` choose a variant."""
    kind, variant = check_reference(name)
    if kind in ("background", "foreground"):
        return Constant(kind == "foreground")
    built = load_backbone(backbone).to(device).accelerate()
    if kind == "prior":
        return PriorThreshold(built, float(variant or PRIOR_THRESHOLD)).eval()
    return NearestPrototype(built, variant or PROTOTYPE_LEVEL).eval()


def check_reference(name: str) -> tuple[str, str]:
    """The kind and the variant, empty where none was named.

    Raises:
        ConfigError: there is no such reference.
    """
    kind, colon, variant = name.partition(":")
    if kind not in REFERENCES or (colon and kind in ("background", "foreground")):
        raise ConfigError(f"method is {name!r}; expected one of {', '.join(REFERENCES)}, prior:THRESHOLD or prototype:LEVEL")
    if colon and kind == "prior" and not _is_share(variant):
        raise ConfigError(f"method is {name!r}; expected a threshold from 0 to 1, such as prior:0.6")
    if colon and kind == "prototype" and variant not in ("mid", "high"):
        raise ConfigError(f"method is {name!r}; expected prototype:mid or prototype:high")
    return kind, variant


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
