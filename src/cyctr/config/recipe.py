"""What the config of every method has: a model on a backbone, its loss, and how it learns."""

from dataclasses import dataclass

from cyctr.config.backbone import BackboneConfig
from cyctr.config.training import OptimizerConfig, TrainingConfig


@dataclass(frozen=True)
class BackboneOnly:
    """The `model` of a method that has no choice but its backbone; others derive from it and add theirs."""

    backbone: BackboneConfig = BackboneConfig()


@dataclass(frozen=True)
class NoChoice:
    """The `loss` of a method that leaves none; others derive from it and add theirs."""


@dataclass(frozen=True)
class Recipe:
    """Everything a checkpoint must remember of how it was made. A method derives its own, with its own `model` and `loss`."""

    model: BackboneOnly = BackboneOnly()
    loss: NoChoice = NoChoice()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
