"""Configs as nested frozen dataclasses: what all methods share. A method's own fields live with the method."""

from cyctr.config.backbone import BackboneConfig
from cyctr.config.fields import changed, choices, from_dict, parse, setting, settings, shown, to_dict, value_at
from cyctr.config.protocol import PROTOCOLS, Fit, InputConfig, ProtocolConfig, Score, protocol
from cyctr.config.recipe import BackboneOnly, NoChoice, Recipe
from cyctr.config.training import AugmentationConfig, OptimizerConfig, Order, TrainingConfig

__all__ = [
    "PROTOCOLS",
    "AugmentationConfig",
    "BackboneConfig",
    "BackboneOnly",
    "Fit",
    "InputConfig",
    "NoChoice",
    "OptimizerConfig",
    "Order",
    "ProtocolConfig",
    "Recipe",
    "Score",
    "TrainingConfig",
    "changed",
    "choices",
    "from_dict",
    "parse",
    "protocol",
    "setting",
    "settings",
    "shown",
    "to_dict",
    "value_at",
]
