"""What of PANet can be chosen, and its recipes."""

import math
from dataclasses import dataclass, replace

from cyctr.config import (
    AugmentationConfig,
    BackboneConfig,
    BackboneOnly,
    NoChoice,
    OptimizerConfig,
    Recipe,
    TrainingConfig,
    setting,
)
from cyctr.config.fields import require


@dataclass(frozen=True)
class ModelConfig(BackboneOnly):
    """The deepest features of a backbone that learns, without their last ReLU."""

    backbone: BackboneConfig = BackboneConfig(taps=(-1,), trained=9, last_relu=False)
    temperature: float = setting(20.0, "factor of the cosines before their softmax")

    def __post_init__(self) -> None:
        require(0 < self.temperature < math.inf, "model.temperature", self.temperature, "a positive number")


@dataclass(frozen=True)
class LossConfig(NoChoice):
    """Cross-entropy of the query's mask, and of the support's masks that the query's prediction gives back."""

    alignment: float = setting(1.0, "weight of the alignment regularisation, section 3.4")

    def __post_init__(self) -> None:
        require(0 <= self.alignment < math.inf, "loss.alignment", self.alignment, "a number, 0 or more")


@dataclass(frozen=True)
class Config(Recipe):
    """PANet and how it learns."""

    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()


PAPER = Config(
    optimizer=OptimizerConfig(
        decay="steps", drops=(1 / 3, 2 / 3), backbone="sgd", backbone_rate=1e-3, momentum=0.9, backbone_decay=5e-4
    ),
    training=TrainingConfig(
        episodes=30_000,
        batch=1,
        augmentation=AugmentationConfig(size=417, scale=(1.0, 1.0), rotation=0.0, blur=0.0, flip=0.5),
    ),
)
"""Section 4: SGD on every weight, and only left-right flips. The paper squashes images to 417 pixels; here they are cropped."""

LAST = replace(PAPER, model=ModelConfig(backbone=replace(ModelConfig().backbone, trained=1)))
"""The same where only the deepest level of the backbone learns."""

PRESETS = {"paper": PAPER, "last": LAST}
USUAL = "paper"
