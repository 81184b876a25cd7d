"""Which episodes a method learns from, how many, and how its weights move: what all methods have in common."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from cyctr.config.fields import require, require_choice, require_fraction, setting
from cyctr.errors import ConfigError

Convolutions = Literal["sgd", "adamw"]
Decay = Literal["poly", "cosine", "steps"]
Order = Literal["images", "shuffled", "pairs", "classes"]


@dataclass(frozen=True)
class OptimizerConfig:
    """Section 4.2: SGD with poly decay for the convolutions, AdamW for the transformer."""

    convolutions: Convolutions = setting("sgd", "ours: the optimizer of everything outside the transformer")
    convolution_rate: float = setting(2.5e-3, "learning rate of everything outside the transformer")
    rate_multiplier: float = setting(1.0, "release: its schedule multiplies that rate by 15")
    momentum: float = setting(0.9, "SGD momentum")
    convolution_decay: float = setting(1e-4, "weight decay of everything outside the transformer")
    decay: Decay = setting("poly", "ours: how the rate of the convolutions falls; 'steps': to a tenth after each of drops")
    drops: tuple[float, ...] = setting((1 / 3, 2 / 3), "shares of the schedule after which decay 'steps' lowers the rates")
    poly_power: float = setting(0.9, "exponent of the polynomial decay")
    transformer_rate: float = setting(1e-4, "AdamW learning rate of the transformer")
    transformer_decay: float = setting(1e-2, "AdamW weight decay of the transformer")
    backbone: Convolutions = setting("adamw", "the optimizer of a backbone that learns")
    backbone_rate: float = setting(1e-3, "ours: learning rate of a backbone that learns; falls like the convolutions'")
    backbone_decay: float = setting(0.0, "weight decay of a backbone that learns")
    transformer_falls: bool = setting(False, "ours: the transformer's rate falls like that of the convolutions")
    decay_biases: bool = setting(True, "release: AdamW leaves biases undecayed; norms too, unless decay_norms is true")
    decay_norms: bool = setting(False, "release: AdamW decays the weights of LayerNorms even where biases are left undecayed")
    warm_up: float = setting(0.0, "ours: share of the schedule over which the rates rise")
    clip: float = setting(0.0, "ours: longest gradient that is let through; 0 lets through any")
    average: float = setting(0.0, "ours: decay of the moving average of the weights that is tested and saved; 0 takes the last")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float | int) and not isinstance(value, bool):
                require(0 <= value <= 1e6, f"optimizer.{item.name}", value, "0 to 1,000,000")
        require_choice("optimizer.convolutions", self.convolutions, Convolutions)
        require_choice("optimizer.backbone", self.backbone, Convolutions)
        require_choice("optimizer.decay", self.decay, Decay)
        rising = all(0 < share < 1 for share in self.drops) and sorted(set(self.drops)) == list(self.drops)
        require(rising, "optimizer.drops", self.drops, "increasing shares between 0 and 1, such as (0.33, 0.67)")
        for name in ("warm_up", "average", "momentum"):
            require_fraction(f"optimizer.{name}", getattr(self, name))


@dataclass(frozen=True)
class AugmentationConfig:
    """What changes an image at random in training, and its mask with it."""

    RETIRED: ClassVar[dict[str, Any]] = {"colour": 0.0}
    size: int = setting(473, "height and width of the crop")
    scale: tuple[float, float] = setting((0.9, 1.1), "range of the random scale, as in the release (0.8 to 1.25 on COCO)")
    rotation: float = setting(10.0, "largest rotation, in degrees, to either side")
    blur: float = setting(0.5, "probability of a slight blur, as in the release")
    flip: float = setting(0.5, "probability of a left-right flip, as in the release")
    longest: int | None = setting(None, "first make larger images so small that their longest side has this many pixels")

    def __post_init__(self) -> None:
        require(8 <= self.size <= 2**12, "training.augmentation.size", self.size, "8 to 4,096 pixels")
        low, high = self.scale
        require(0 < low <= high < math.inf, "training.augmentation.scale", self.scale, "a range LOW <= HIGH above 0")
        require(0 <= self.rotation <= 180, "training.augmentation.rotation", self.rotation, "0 to 180 degrees")
        for name in ("blur", "flip"):
            require(0 <= getattr(self, name) <= 1, f"training.augmentation.{name}", getattr(self, name), "a probability")
        require(
            self.longest is None or self.longest >= 8,
            "training.augmentation.longest",
            self.longest,
            "at least 8 pixels, or none",
        )


@dataclass(frozen=True)
class TrainingConfig:
    """Which episodes a network learns from, and how many."""

    episodes: int | None = setting(None, "length of the schedule; default: training.epochs times the images of the fold")
    epochs: int = setting(200, "the length in rounds of the fold's images (the paper: 200 on PASCAL-5^i, 50 on COCO-20^i)")
    batch: int = setting(4, "episodes of one step, over all processes")
    shots: int = setting(1, "K: support images of an episode")
    rotate: bool = setting(
        False, "ours: each image of an episode is its query once, the others its supports, so K + 1 images make K + 1 episodes"
    )
    order: Order = setting(
        "shuffled",
        "how queries are found: 'images', 'pairs' or 'classes', each in turn, the last with a query drawn from its images; "
        "'shuffled': as images, in a new order each time round",
    )
    drop_novel: bool = setting(False, "leave out training images that hold any test class (BAM; not comparable)")
    latent_classes: int = setting(0, "ours: kinds of unlabelled regions that are learned from too; 0 for none")
    latent_share: float = setting(0.3, "ours: share of the episodes whose class is such a region")
    latent_unsure: float = setting(0.0, "ours: share of that background left undecided, where a second kind is almost as near")
    hold_out: int = setting(0, "training classes held out to validate on")
    seed: int = setting(0, "decides the first weights, the episodes, what augmentation does and what dropout drops")
    augmentation: AugmentationConfig = AugmentationConfig()

    def __post_init__(self) -> None:
        for name, most in (("episodes", 10**12), ("epochs", 10**6), ("batch", 2**16), ("shots", 2**16)):
            value = getattr(self, name)
            require(value is None or 1 <= value <= most, f"training.{name}", value, f"1 to {most:,}")
        require_fraction("training.latent_share", self.latent_share)
        unsure = self.latent_unsure
        require(0 <= unsure < 1, "training.latent_unsure", unsure, "a share from 0 up to but not including 1")
        require(0 <= self.latent_classes <= 254, "training.latent_classes", self.latent_classes, "0 to 254")
        for name in ("hold_out", "seed"):
            require(0 <= getattr(self, name) < 2**31, f"training.{name}", getattr(self, name), "0 to 2,147,483,647")
        require_choice("training.order", self.order, Order)

    @property
    def images(self) -> int:
        """Images of one drawn group: the query and its supports."""
        return self.shots + 1

    @property
    def groups(self) -> int:
        """Groups drawn for one step.

        Raises:
            ConfigError: they do not make the batch. Not known at the door: whether the data can give the shots, on which the
                batch depends, is to be said first.
        """
        if self.rotate and self.batch % self.images:
            raise ConfigError(
                f"training.batch is {self.batch} and training.rotate makes {self.images} episodes at a time; "
                f"expected a multiple of {self.images}, such as {-(-self.batch // self.images) * self.images}"
            )
        return self.batch // self.images if self.rotate else self.batch

    @property
    def steps(self) -> int:
        """Steps of the whole schedule."""
        return max(1, -(-self.length // self.batch))

    @property
    def length(self) -> int:
        """Episodes of the whole schedule.

        Raises:
            ConfigError: they depend on the data, which `with_length` has not been told of.
        """
        if self.episodes is None:
            raise ConfigError("training.episodes is None, so the length depends on the data; give a number, or use with_length")
        return self.episodes

    def with_length(self, images: int) -> "TrainingConfig":
        """The same with its length in episodes, for a fold of so many training images."""
        return self if self.episodes is not None else replace(self, episodes=self.epochs * images)
