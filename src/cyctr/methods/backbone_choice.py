"""Which backbone a recipe is on: by default its own, or that of other weights."""

from dataclasses import replace
from typing import TypeVar

from cyctr.backbones.weights import CATALOGUE
from cyctr.config import BackboneConfig, Recipe
from cyctr.errors import ConfigError

R = TypeVar("R", bound=Recipe)


def backbone_of(weights: str) -> BackboneConfig:
    """The backbone that weights of the catalogue, or "tiny", are made for."""
    if weights in CATALOGUE:
        return BackboneConfig(CATALOGUE[weights].architecture, weights)
    if weights == "tiny":
        return BackboneConfig("tiny")
    raise ConfigError(
        f"weights is {weights!r}; expected a name of `cyctr weights list`: {', '.join(CATALOGUE)}, or tiny; "
        "model.backbone.weights takes files"
    )


def with_weights(config: R, weights: str) -> R:
    """The same network and recipe on another backbone, that of weights of the catalogue, which learns where the other did.

    Where the weights are those that the network has, nothing changes; where they are others of the same architecture, its
    form stays. A recipe that has an offset gets that of the other weights.
    """
    own, other = config.model.backbone, backbone_of(weights)
    if weights == own.weights:
        return config
    changes = {name: getattr(own, name) for name in ("tuned", "trained", "last_relu", "own_strides", "blocks")}
    if own.taps is not None and own.taps[0] < 0:  # others are numbers of the other network
        changes["taps"] = own.taps
    if own.offset is not None and weights in CATALOGUE:
        changes["offset"] = CATALOGUE[weights].offset
    return replace(config, model=replace(config.model, backbone=replace(other, **changes)))
