"""Every choice of the method as data: one frozen dataclass per part, with its default, help and check in one place.

Defaults are the paper's, and the release's augmentation, about which the paper says little. A field that departs from the
paper says how: "release:" marks what the authors' code does and `RELEASED` switches on, "ours:" what neither does
(`docs/decisions.md` lists both with reasons).
"""

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from cyctr import limits
from cyctr.errors import ConfigError

Level = Literal["mid", "high"]
Convolutions = Literal["sgd", "adamw"]
Decay = Literal["poly", "cosine"]
Cross = Literal["none", "vanilla", "predicted", "cycle_foreground", "cycle"]
Matching = Literal["dot", "cosine"]
Mixer = Literal["transformer", "residual"]
Reads = Literal["nothing", "tokens", "maps"]
Fit = Literal["pad", "squash"]
Order = Literal["images", "shuffled", "pairs", "classes"]
Score = Literal["original", "input"]
T = TypeVar("T")


def setting(default: Any, help: str) -> Any:
    """A dataclass field whose help text the command line shows."""
    return field(default=default, metadata={"help": help})


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _require_choice(name: str, value: object, choices: object) -> None:
    _require(value in typing.get_args(choices), name, value, _described(choices))


def _described(kind: Any) -> str:
    """What a setting of this kind may be, in words."""
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _require_fraction(name: str, value: float) -> None:
    _require(0 <= value < 1, name, value, "a number from 0 up to, but not including, 1")


@dataclass(frozen=True)
class BackboneConfig:
    """The frozen feature extractor."""

    name: str = setting("resnet50", "a timm network, or 'tiny' for the built-in one")
    weights: str | None = setting(None, "a name of `cyctr weights list`, 'timm:TAG' or a file; none means random")
    taps: tuple[int, int, int] | None = setting(
        None, "timm feature levels of the two middle taps and the high one; default: those of stride 8, 16 and 32"
    )
    stride_in_1x1: bool = setting(False, "original (Caffe) ResNets: a stage's stride sits in its first 1x1 convolution")
    dilate_first: bool | None = setting(
        None,
        "the first block of a dilated ResNet stage is dilated like its others; default: where strides sit in the 1x1, "
        "which makes the dilated network equal to the undilated one",
    )
    mean: tuple[float, float, float] | None = setting(None, "RGB mean of images in [0, 1]; default: timm's")
    std: tuple[float, float, float] | None = setting(None, "RGB standard deviation; default: timm's")
    scale: tuple[float, float, float] | None = setting(None, "factors of the three taps, so that features are about 1 in size")
    offset: int | None = setting(None, "pixels, right and down, from where a cell sits to what it speaks of; default: 0")
    tuned: bool = setting(False, "ours: the singular values of its convolutions learn, all else of it stays frozen")

    @property
    def dilates_first(self) -> bool:
        """Whether first blocks are dilated like the others: as asked for, or as the place of the strides wants it."""
        return self.stride_in_1x1 if self.dilate_first is None else self.dilate_first

    def __post_init__(self) -> None:
        _require(bool(self.name), "model.backbone.name", self.name, "the name of a timm network, such as 'resnet50'")
        if self.taps is not None:
            ordered = len(self.taps) == 3 and 0 <= self.taps[0] < self.taps[1] < self.taps[2]
            _require(ordered, "model.backbone.taps", self.taps, "three increasing feature levels, such as (2, 3, 4)")
        for name in ("mean", "std"):
            value = getattr(self, name)
            _require(
                value is None or len(value) == 3, f"model.backbone.{name}", value, "three numbers, for red, green and blue"
            )
        _require(-32 <= (self.offset or 0) <= 32, "model.backbone.offset", self.offset, "-32 to 32 pixels")
        for name in ("std", "scale"):
            value = getattr(self, name)
            _require(
                value is None or (len(value) == 3 and min(value) > 0), f"model.backbone.{name}", value, "three positive numbers"
            )


@dataclass(frozen=True)
class SamplingConfig:
    """Mask-guided sparse sampling of support tokens (section 3.3, K-shot setting)."""

    tokens_per_shot: int = setting(600, "N_s: support tokens kept per shot, at most half of them foreground")
    training_scale: tuple[float, float] = setting(
        (1.0, 1.0), "release: in one-shot training N_s is multiplied by a factor drawn from this range"
    )
    training_scale_many: tuple[float, float] = setting((1.0, 1.0), "release: the same in training with more than one shot")
    draw_per_layer: bool = setting(False, "release: in training each layer draws its own tokens, and its own number of them")
    nearest_pixel: bool = setting(
        False,
        "release: the label of a token is read where nearest-neighbour shrinking reads it, up to 7 pixels from the cell; "
        "the four middle cells stand in for foreground that is lost, the four corners for background",
    )
    draw_ignored: bool = setting(
        False, "release: ignored and padded cells are drawn as background, take part in round trips, and are hidden after"
    )
    beyond_half: bool = setting(False, "release: where background is scarce, more than half of the tokens are foreground")
    release_labels: bool = setting(
        False,
        "release: its bug. Where only some cells of a class are drawn, labels and padding of its tokens are read elsewhere: "
        "at the token's place in the list of its class",
    )
    seed: int = setting(0, "which tokens are drawn where the caller brings no seeds, as at inference")

    def __post_init__(self) -> None:
        _require(self.tokens_per_shot >= 2, "model.sampling.tokens_per_shot", self.tokens_per_shot, "at least 2")
        most = limits.TOKENS
        _require(self.tokens_per_shot <= most, "model.sampling.tokens_per_shot", self.tokens_per_shot, f"at most {most}")
        for name in ("training_scale", "training_scale_many"):
            low, high = getattr(self, name)
            _require(0 < low <= high < math.inf, f"model.sampling.{name}", (low, high), "a range LOW <= HIGH above 0")

    @property
    def released(self) -> bool:
        """Whether tokens are drawn, or their labels read, in any way of the release's."""
        return self.nearest_pixel or self.draw_ignored or self.beyond_half or self.release_labels

    def training_tokens(self, position: float, shots: int = 1, multiple: int = 64) -> int:
        """N_s per shot for one training step.

        Args:
            position: in [0, 1], where in the range of factors the step falls.
            shots: K.
            multiple: a scaled count is rounded to this, so that kernels see few different sizes.
        """
        low, high = self.training_scale if shots == 1 else self.training_scale_many
        if low == high == 1:
            return self.tokens_per_shot
        scaled = self.tokens_per_shot * (low + position * (high - low))
        return max(1, round(scaled / multiple)) * multiple


@dataclass(frozen=True)
class PriorConfig:
    """Maps that say where the class may be, before anything is learned (appendix A.1)."""

    votes: tuple[Level, ...] = setting(
        (), "ours: beside the paper's prior map, one for each of these features: what the similar support tokens are"
    )
    temperature: float = setting(0.05, "ours: of the votes; a smaller one listens to fewer tokens")

    def __post_init__(self) -> None:
        for level in self.votes:
            _require_choice("model.prior.votes", level, Level)
        _require(len(set(self.votes)) == len(self.votes), "model.prior.votes", self.votes, "each level once")
        _require(0 < self.temperature < math.inf, "model.prior.temperature", self.temperature, "a positive number")


@dataclass(frozen=True)
class EncoderConfig:
    """The L encoders: self-alignment, then cross-alignment (section 3.3)."""

    layers: int = setting(2, "L: encoders stacked")
    heads: int = setting(8, "h: attention heads (the paper: 8 on PASCAL, 1 on COCO)")
    points: int = setting(9, "P: positions each token predicts in the self-alignment block")
    mlp_ratio: float = setting(3.0, "hidden width of the MLP over d")
    dropout: float = setting(0.1, "dropout of attention weights")
    cross: Cross = setting("cycle", "cross-alignment block; 'none' leaves self-alignment only")
    matching: Matching = setting(
        "dot", "ours: 'cosine' compares the angles of tokens, times a factor that each head learns; normalises support tokens"
    )
    marks: bool = setting(False, "ours: what cross-attention collects also says whether the tokens are foreground")
    output_projection: bool = setting(True, "the linear layer after the heads are joined, as in Vaswani et al.")
    flag_dropout: float = setting(0.0, "release: in training this share of the inconsistent tokens is let through")
    value_dropout: float = setting(
        0.0, "release: in training this share of the query's cells has values of zero in self-alignment"
    )
    branch_dropout: float = setting(0.0, "release: dropout behind each attention, and behind both layers of each MLP")
    unprojected: bool = setting(False, "release: self-alignment reads offsets and weights from z + Coord, without W_q")
    zero_padding: bool = setting(False, "release: padded cells of the query have values of zero in self-alignment")
    unpadded_coordinates: bool = setting(
        False, "release: Coord counts the cells of the image without its padding, and a learned level embedding is added"
    )

    @property
    def sees_padding(self) -> bool:
        """Whether it matters where the query is padded."""
        return self.zero_padding or self.unpadded_coordinates

    def __post_init__(self) -> None:
        for name, most in (("layers", limits.LAYERS), ("heads", limits.HEADS), ("points", limits.POINTS)):
            value = getattr(self, name)
            _require(value >= 1, f"model.encoder.{name}", value, "at least 1")
            _require(value <= most, f"model.encoder.{name}", value, f"at most {most}")
        _require(0 < self.mlp_ratio < math.inf, "model.encoder.mlp_ratio", self.mlp_ratio, "a positive number")
        _require(self.mlp_ratio <= limits.MLP_RATIO, "model.encoder.mlp_ratio", self.mlp_ratio, f"at most {limits.MLP_RATIO}")
        for name in ("dropout", "flag_dropout", "value_dropout", "branch_dropout"):
            _require_fraction(f"model.encoder.{name}", getattr(self, name))
        _require_choice("model.encoder.cross", self.cross, Cross)
        _require_choice("model.encoder.matching", self.matching, Matching)


@dataclass(frozen=True)
class HeadConfig:
    """The classifier: 3x3 convolution, ReLU, 1x1 convolution (section 3.4)."""

    refine: bool = setting(
        False,
        "release: before the classifier a 1x1 convolution and ReLU, then x + relu(3x3(relu(3x3(x)))), no ReLU behind",
    )
    dropout: float = setting(0.0, "release: Dropout2d before the last convolution")

    def __post_init__(self) -> None:
        _require_fraction("model.head.dropout", self.dropout)


@dataclass(frozen=True)
class ModelConfig:
    """The whole network."""

    dim: int = setting(256, "d: hidden dimension")
    mixer: Mixer = setting("transformer", "'residual' is the paper's baseline: two residual blocks, no attention")
    reduction_dropout: float = setting(0.0, "release: Dropout2d after the 1x1 reductions of the middle features")
    familiar: int = setting(0, "ours: at most so many training classes are recognised, and not taken for the one asked for")
    unbiased: bool = setting(
        False, "release: convolutions and linear layers have no biases, but for offsets, their weights and the last layer"
    )
    own_prototype: bool = setting(False, "release: support features are joined with the average of their own shot, not of all")
    plain_averages: bool = setting(
        False, "release: averages are divided by area + 0.0005, and an object between the pixels of all cells is lost to them"
    )
    auxiliary: bool = setting(True, "in training, predict the support masks from the query's prototype (appendix A.1)")
    deep_auxiliary: bool = setting(
        False, "release: the auxiliary prototype also averages what the classifier sees, so that its loss reaches all before"
    )
    backbone: BackboneConfig = BackboneConfig()
    prior: PriorConfig = PriorConfig()
    sampling: SamplingConfig = SamplingConfig()
    encoder: EncoderConfig = EncoderConfig()
    head: HeadConfig = HeadConfig()

    @property
    def samples(self) -> bool:
        """Whether support tokens are drawn: for the mixer, or to vote."""
        return self.reads == "tokens" or bool(self.prior.votes)

    @property
    def draws_per_layer(self) -> bool:
        """Whether each layer draws tokens of its own in training."""
        return self.sampling.draw_per_layer and self.reads == "tokens"

    @property
    def reads(self) -> Reads:
        """What the mixer asks of the support beside its prototype and the prior map."""
        if self.mixer == "residual" or self.encoder.cross == "none":
            return "nothing"
        return "maps" if self.encoder.cross == "predicted" else "tokens"

    def __post_init__(self) -> None:
        _require(self.dim >= 4 and self.dim % 4 == 0, "model.dim", self.dim, "a positive multiple of 4")
        _require(self.dim <= limits.DIM, "model.dim", self.dim, f"at most {limits.DIM}")
        _require_choice("model.mixer", self.mixer, Mixer)
        _require_fraction("model.reduction_dropout", self.reduction_dropout)
        _require(0 <= self.familiar <= 250, "model.familiar", self.familiar, "0 to 250 classes")
        if self.dim % self.encoder.heads:
            raise ConfigError(f"model.dim is {self.dim} and model.encoder.heads is {self.encoder.heads}; heads must divide dim")


@dataclass(frozen=True)
class LossConfig:
    """What is minimised."""

    auxiliary_weight: float = setting(1.0, "weight of the auxiliary support loss")
    both_channels: bool = setting(False, "release: sigmoid Dice of the background and foreground channels, summed")
    clamp: bool = setting(False, "release: Dice's divisor is kept above 1e-8, without the 1 above and below")

    def __post_init__(self) -> None:
        weight = self.auxiliary_weight
        _require(0 <= weight < math.inf, "loss.auxiliary_weight", weight, "zero or a positive number")


@dataclass(frozen=True)
class OptimizerConfig:
    """Section 4.2: SGD with poly decay for the convolutions, AdamW for the transformer."""

    convolutions: Convolutions = setting("sgd", "ours: the optimizer of everything outside the transformer")
    convolution_rate: float = setting(2.5e-3, "learning rate of everything outside the transformer")
    rate_multiplier: float = setting(1.0, "release: its schedule multiplies that rate by 15")
    momentum: float = setting(0.9, "SGD momentum")
    convolution_decay: float = setting(1e-4, "weight decay of everything outside the transformer")
    decay: Decay = setting("poly", "ours: how the rate of the convolutions falls to zero")
    poly_power: float = setting(0.9, "exponent of the polynomial decay")
    transformer_rate: float = setting(1e-4, "AdamW learning rate of the transformer")
    transformer_decay: float = setting(1e-2, "AdamW weight decay of the transformer")
    backbone_rate: float = setting(1e-3, "ours: AdamW learning rate of a tuned backbone; falls like the convolutions'")
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
                _require(0 <= value <= 1e6, f"optimizer.{item.name}", value, "0 to 1,000,000")
        _require_choice("optimizer.convolutions", self.convolutions, Convolutions)
        _require_choice("optimizer.decay", self.decay, Decay)
        for name in ("warm_up", "average", "momentum"):
            _require_fraction(f"optimizer.{name}", getattr(self, name))


@dataclass(frozen=True)
class AugmentationConfig:
    """What changes an image at random in training, and its mask with it."""

    size: int = setting(473, "height and width of the crop")
    scale: tuple[float, float] = setting((0.9, 1.1), "range of the random scale, as in the release (0.8 to 1.25 on COCO)")
    rotation: float = setting(10.0, "largest rotation, in degrees, to either side")
    blur: float = setting(0.5, "probability of a slight blur, as in the release")
    flip: float = setting(0.5, "probability of a left-right flip, as in the release")
    colour: float = setting(0.0, "ours: brightness, contrast and saturation change by up to this share")
    longest: int | None = setting(None, "first make larger images so small that their longest side has this many pixels")

    def __post_init__(self) -> None:
        _require(8 <= self.size <= 2**12, "training.augmentation.size", self.size, "8 to 4,096 pixels")
        low, high = self.scale
        _require(0 < low <= high < math.inf, "training.augmentation.scale", self.scale, "a range LOW <= HIGH above 0")
        _require(0 <= self.rotation <= 180, "training.augmentation.rotation", self.rotation, "0 to 180 degrees")
        for name in ("blur", "flip"):
            _require(0 <= getattr(self, name) <= 1, f"training.augmentation.{name}", getattr(self, name), "a probability")
        _require(0 <= self.colour < 1, "training.augmentation.colour", self.colour, "a share from 0 up to but not including 1")
        _require(
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
            _require(value is None or 1 <= value <= most, f"training.{name}", value, f"1 to {most:,}")
        _require_fraction("training.latent_share", self.latent_share)
        unsure = self.latent_unsure
        _require(0 <= unsure < 1, "training.latent_unsure", unsure, "a share from 0 up to but not including 1")
        _require(0 <= self.latent_classes <= 254, "training.latent_classes", self.latent_classes, "0 to 254")
        for name in ("hold_out", "seed"):
            _require(0 <= getattr(self, name) < 2**31, f"training.{name}", getattr(self, name), "0 to 2,147,483,647")
        _require_choice("training.order", self.order, Order)

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


@dataclass(frozen=True)
class Config:
    """Everything a checkpoint must remember of how it was made."""

    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class InputConfig:
    """How an image becomes what a network is tested on, and its answer the size of the image again."""

    size: int = setting(473, "height and width of what the network sees")
    fit: Fit = setting("pad", "'pad': longest side to size, top left, the rest filled; 'squash': both sides to size")
    multiple: int = setting(1, "release and PFENet: both sides of the resized image are rounded down to a multiple of this, 8")
    register: bool = setting(True, "release and PFENet: false, which enlarges the filled square as a whole, not its content")
    fill: int = setting(116, "grey value of the padding, whose label is 255: about the mean colour; release and PFENet: 0")

    def __post_init__(self) -> None:
        _require(self.size >= 8, "input.size", self.size, "at least 8 pixels")
        _require(1 <= self.multiple <= self.size, "input.multiple", self.multiple, "from 1 to input.size")
        _require(0 <= self.fill <= 255, "input.fill", self.fill, "a grey value from 0 to 255")
        _require_choice("input.fit", self.fit, Fit)
        if self.fit == "squash" and (self.multiple > 1 or not self.register):
            raise ConfigError("input.fit is 'squash'; then input.multiple must be 1 and input.register true")


@dataclass(frozen=True)
class ProtocolConfig:
    """How a benchmark is measured. Repositories differ in these, and so do their numbers.

    `Dataset.protocol` gives a protocol with the number of episodes and the order that are usual on that dataset.
    """

    episodes: int = setting(1000, "episodes for each fold and seed")
    order: Order = setting(
        "images",
        "'images': queries in list order, class drawn from those in the image; 'pairs': every (image, class) in turn; "
        "'classes': class balanced, query drawn from its images; 'shuffled': as images, in a new order each time round",
    )
    smallest: int | None = setting(None, "least pixels of a class for an image to count; default: the dataset's (2048, or 1)")
    drop_novel: bool = setting(False, "training lists without images that hold any test class (BAM; not comparable)")
    seeds: tuple[int, ...] = setting((0,), "seeds to average")
    score: Score = setting("original", "where pixels are compared: at the image's own size, or as the network saw it")
    input: InputConfig = InputConfig()

    def __post_init__(self) -> None:
        _require(self.episodes >= 1, "protocol.episodes", self.episodes, "at least 1")
        _require_choice("protocol.order", self.order, Order)
        _require_choice("protocol.score", self.score, Score)
        _require(self.smallest is None or self.smallest >= 1, "protocol.smallest", self.smallest, "at least 1 pixel")
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        _require(distinct, "protocol.seeds", self.seeds, "at least one seed, each once")


PROTOCOLS = {
    "cyctr": ProtocolConfig(),
    "released": ProtocolConfig(input=InputConfig(multiple=8, register=False, fill=0)),
    "pfenet": ProtocolConfig(episodes=5000, input=InputConfig(multiple=8, register=False, fill=0)),
    "hsnet": ProtocolConfig(order="pairs", score="input", input=InputConfig(size=400, fit="squash")),
}
"""The ways of measuring in use (`docs/protocol.md` says why their numbers differ)."""


def protocol(name: str) -> ProtocolConfig:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol is {name!r}; expected one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


PAPER = Config()

RELEASED = Config(
    model=ModelConfig(
        reduction_dropout=0.5,
        unbiased=True,
        own_prototype=True,
        plain_averages=True,
        deep_auxiliary=True,
        backbone=BackboneConfig("resnet50s"),
        sampling=SamplingConfig(
            training_scale=(0.6, 4.0),
            training_scale_many=(0.6, 1.4),
            draw_per_layer=True,
            nearest_pixel=True,
            draw_ignored=True,
            beyond_half=True,
            release_labels=True,
        ),
        encoder=EncoderConfig(
            flag_dropout=0.1,
            value_dropout=0.1,
            branch_dropout=0.1,
            unprojected=True,
            zero_padding=True,
            unpadded_coordinates=True,
        ),
        head=HeadConfig(refine=True, dropout=0.1),
    ),
    loss=LossConfig(both_channels=True, clamp=True),
    optimizer=OptimizerConfig(rate_multiplier=15.0, decay_biases=False, decay_norms=True),
)

BEST = Config(
    model=replace(
        PAPER.model,
        reduction_dropout=0.5,
        familiar=64,
        backbone=BackboneConfig("resnet50", "resnet50-keras", offset=6, tuned=True),
        prior=PriorConfig(votes=("mid", "high")),
        encoder=EncoderConfig(matching="cosine"),
    ),
    optimizer=OptimizerConfig(
        convolutions="adamw",
        convolution_rate=4e-4,
        convolution_decay=1e-2,
        decay="cosine",
        transformer_rate=2e-4,
        transformer_falls=True,
        decay_biases=False,
        warm_up=0.02,
        clip=1.0,
        average=0.998,
    ),
    training=TrainingConfig(
        episodes=36_000,
        batch=16,
        rotate=True,
        order="classes",
        latent_classes=24,
        latent_share=0.1,
        latent_unsure=0.5,
        augmentation=AugmentationConfig(longest=512),
    ),
)
"""The recipe that generalises best to classes held out of the training classes (`docs/results.md`)."""

PRESETS = {"paper": PAPER, "released": RELEASED, "best": BEST}


def _row(cross: Cross = "cycle", layers: int = 2, dim: int = 128, mixer: Mixer = "transformer") -> ModelConfig:
    return ModelConfig(dim=dim, mixer=mixer, encoder=EncoderConfig(layers=layers, cross=cross))


ABLATIONS = {
    "baseline": _row(mixer="residual"),
    "self": _row("none"),
    "vanilla": _row("vanilla"),
    "predicted": _row("predicted"),
    "cycle_foreground": _row("cycle_foreground"),
    "full": _row(),
    "layers_1": _row(layers=1),
    "layers_3": _row(layers=3),
    "dim_256": _row(dim=256),
    "dim_384": _row(dim=384),
    "coco": replace(PAPER.model, encoder=EncoderConfig(heads=1)),
}
"""The rows of the paper's tables 4 and 5 (d = 128 and L = 2 unless the row says otherwise), and its COCO network."""


def preset(name: str, dataset: str | None = None) -> Config:
    """The configuration of that name.

    Args:
        name: of the preset.
        dataset: name of the dataset it is for, such as "coco-2017": "paper" and "released" have settings of their own there.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}; expected one of {', '.join(PRESETS)}")
    chosen = PRESETS[name]
    if name == "best" or not (dataset or "").startswith("coco-"):
        return chosen
    augmentation = replace(chosen.training.augmentation, scale=(0.8, 1.25))
    training = replace(chosen.training, epochs=50, batch=16, augmentation=augmentation)
    heads = 1 if name == "paper" else chosen.model.encoder.heads
    return replace(chosen, model=replace(chosen.model, encoder=replace(chosen.model.encoder, heads=heads)), training=training)


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any], path: str = "") -> T:
    """A config from what `to_dict` gave, checked; a field that is missing takes its default."""
    if not isinstance(values, dict):
        raise ConfigError(f"{path or 'config'} is {values!r}; expected the fields of {kind.__name__}")
    known, prefix = typing.get_type_hints(kind), f"{path}." if path else ""
    retired, values = _RETIRED.get(kind, {}), {**_BEFORE.get(kind, {}), **values}
    values = {name: value for name, value in values.items() if name not in _OF_DATASETS.get(kind, ())}
    for name in values:
        if name in retired and values[name] != retired[name]:
            raise ConfigError(
                f"{prefix}{name} is {values[name]!r}, which this version no longer has; use the version that wrote it"
            )
        if name not in known and name not in retired:
            raise ConfigError(f"{prefix}{name} is not a setting of this version; expected one of {', '.join(known)}")
    kept = {name: value for name, value in values.items() if name not in retired}
    return kind(**{name: _typed(known[name], value, f"{prefix}{name}") for name, value in kept.items()})


_RETIRED: dict[type[Any], dict[str, Any]] = {HeadConfig: {"residual": False}}
"""Settings of earlier versions, with the only value that this one still stands for."""
_OF_DATASETS: dict[type[Any], tuple[str, ...]] = {ProtocolConfig: ("episodes_coco", "episodes_fss", "order_coco")}
"""Settings of earlier versions that the dataset decides now. They are ignored."""
_BEFORE: dict[type[Any], dict[str, Any]] = {BackboneConfig: {"dilate_first": False}}
"""What was done before a setting came, where that is not its default: configs of earlier versions do not name it."""


def _typed(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, path)
    options = typing.get_args(kind) if typing.get_origin(kind) is types.UnionType else (kind,)
    for option in options:
        origin, inner = typing.get_origin(option), typing.get_args(option)
        if origin is tuple and isinstance(value, list | tuple) and inner[1:] == (...,):
            return tuple(_typed(inner[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        if origin is tuple and isinstance(value, list | tuple) and len(value) == len(inner):
            return tuple(_typed(part, item, f"{path}[{i}]") for i, (part, item) in enumerate(zip(inner, value, strict=True)))
        if origin is Literal and value in inner:
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(option, type) and isinstance(value, option) and not (option is int and isinstance(value, bool)):
            return value
    raise ConfigError(f"{path} is {value!r}; expected {_described(kind)}")


def settings(kind: type[Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Every leaf of a config class as (dotted name, default, help)."""
    rows: list[tuple[str, Any, str]] = []
    for item in fields(kind):
        if dataclasses.is_dataclass(item.default):
            rows += settings(type(item.default), f"{prefix}{item.name}.")
        else:
            rows.append((prefix + item.name, item.default, item.metadata["help"]))
    return rows


def value_at(config: Any, name: str) -> Any:
    """The value of a setting by its dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def choices(kind: type[Any], name: str) -> tuple[str, ...]:
    """The texts that a setting of a config class may be, or its parts; nothing where it may be any."""
    found = _kind_of(kind, name)
    if typing.get_origin(found) is tuple:
        found = typing.get_args(found)[0]
    if found is bool:
        return ("true", "false")
    return typing.get_args(found) if typing.get_origin(found) is Literal else ()


def _kind_of(kind: type[Any], name: str) -> Any:
    """The type of a setting by its dotted name."""
    return functools.reduce(lambda owner, part: typing.get_type_hints(owner)[part], name.split("."), kind)


def parse(kind: type[T], base: T, given: Mapping[str, str]) -> T:
    """A config with some of its settings given as text.

    Args:
        kind: of config.
        base: what is not given.
        given: by dotted name, such as {"optimizer.clip": "1.0"}; tuples as "0.9,1.1", nothing as "none".
    """
    values, known = to_dict(base), [name for name, _, _ in settings(kind)]
    for name, text in given.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, cutoff=0)
            raise ConfigError(f"{name} is not a setting; the nearest one is {nearest[0]}")
        *path, last = name.split(".")
        target = functools.reduce(dict.__getitem__, path, values)
        target[last] = _parsed(_kind_of(kind, name), text, name)
    return from_dict(kind, values)


def _parsed(kind: Any, text: str, name: str) -> Any:
    """The value that a text stands for, as far as the kind of the setting tells."""
    options = typing.get_args(kind) if typing.get_origin(kind) is types.UnionType else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in (option for option in options if option is not type(None)):
        origin, inner = typing.get_origin(option), typing.get_args(option)
        if origin is tuple:
            any_number = inner[1:] == (...,)
            nothing = any_number and text.lower() == "none"
            parts = [] if nothing else [part.strip() for part in text.split(",") if part.strip()]
            kinds = inner[:1] * len(parts) if any_number else inner
            if len(kinds) != len(parts):
                raise ConfigError(f"{name} is {text!r}; expected {len(kinds)} values with commas between them")
            return [_parsed(part_kind, part, name) for part_kind, part in zip(kinds, parts, strict=True)]
        if option is bool:
            if text.lower() not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
                raise ConfigError(f"{name} is {text!r}; expected true or false")
            return text.lower() in ("true", "yes", "on", "1")
        if option in (int, float):
            return _number(option, text, name)
    return text


def _number(kind: type[int] | type[float], text: str, name: str) -> float:
    plain = text.replace("_", "")
    if kind is int and plain.removeprefix("-").isdecimal():
        return int(plain)  # as it is: large ones would lose digits on the way through a float
    try:
        number = float(plain)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; expected a number") from error
    if kind is int and not number.is_integer():  # 2e4 is one
        raise ConfigError(f"{name} is {text!r}; expected a whole number")
    return int(number) if kind is int else number


def shown(value: Any) -> str:
    """A setting's value as `parse` reads it."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
