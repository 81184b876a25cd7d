"""Every choice of the method as data: one frozen dataclass for each part, with its default, help and check in one place.

Defaults are the paper's, and the release's augmentation, about which the paper says little. A field that departs from the
paper says how: "release:" marks what the authors' code does and `RELEASED` switches on, "ours:" what neither does
(`docs/decisions.md` lists both with reasons).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from cyctr import limits
from cyctr.config.backbone import BackboneConfig
from cyctr.config.fields import require, require_choice, require_fraction, setting
from cyctr.config.recipe import BackboneOnly, NoChoice, Recipe
from cyctr.config.training import AugmentationConfig, OptimizerConfig, TrainingConfig
from cyctr.errors import ConfigError

Level = Literal["mid", "high"]
Cross = Literal["none", "vanilla", "predicted", "cycle_foreground", "cycle"]
Comparison = Literal["dot", "cosine"]
Mixer = Literal["transformer", "residual"]
Reads = Literal["nothing", "tokens", "maps"]
_MULTIPLE = 64  # scaled counts of tokens are multiples of it: kernels see few sizes


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
        require(self.tokens_per_shot >= 2, "model.sampling.tokens_per_shot", self.tokens_per_shot, "at least 2")
        most = limits.TOKENS
        require(self.tokens_per_shot <= most, "model.sampling.tokens_per_shot", self.tokens_per_shot, f"at most {most}")
        for name in ("training_scale", "training_scale_many"):
            low, high = getattr(self, name)
            require(0 < low <= high < math.inf, f"model.sampling.{name}", (low, high), "a range LOW <= HIGH above 0")

    @property
    def released(self) -> bool:
        """Whether tokens are drawn, or their labels read, in any way of the release's."""
        return self.nearest_pixel or self.draw_ignored or self.beyond_half or self.release_labels

    def training_tokens(self, position: float, shots: int = 1) -> int:
        """N_s per shot for one training step.

        Args:
            position: in [0, 1], where in the range of factors the step falls.
            shots: K.
        """
        low, high = self.training_scale if shots == 1 else self.training_scale_many
        if low == high == 1:
            return self.tokens_per_shot
        scaled = self.tokens_per_shot * (low + position * (high - low))
        return max(1, round(scaled / _MULTIPLE)) * _MULTIPLE


@dataclass(frozen=True)
class PriorConfig:
    """Maps that say where the class may be, before anything is learned (appendix A.1)."""

    votes: tuple[Level, ...] = setting(
        (), "ours: beside the paper's prior map, one for each of these features: what the similar support tokens are"
    )
    temperature: float = setting(0.05, "ours: of the votes; a smaller one listens to fewer tokens")

    def __post_init__(self) -> None:
        for level in self.votes:
            require_choice("model.prior.votes", level, Level)
        require(len(set(self.votes)) == len(self.votes), "model.prior.votes", self.votes, "each level once")
        require(0 < self.temperature < math.inf, "model.prior.temperature", self.temperature, "a positive number")


@dataclass(frozen=True)
class EncoderConfig:
    """The L encoders: self-alignment, then cross-alignment (section 3.3)."""

    RETIRED: ClassVar[dict[str, Any]] = {"marks": False}
    layers: int = setting(2, "L: encoders stacked")
    heads: int = setting(8, "h: attention heads (the paper: 8 on PASCAL, 1 on COCO)")
    points: int = setting(9, "P: positions each token predicts in the self-alignment block")
    mlp_ratio: float = setting(3.0, "hidden width of the MLP over d")
    dropout: float = setting(0.1, "dropout of attention weights")
    cross: Cross = setting("cycle", "cross-alignment block; 'none' leaves self-alignment only")
    matching: Comparison = setting(
        "dot", "ours: 'cosine' compares the angles of tokens, times a factor that each head learns; normalises support tokens"
    )
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
            require(value >= 1, f"model.encoder.{name}", value, "at least 1")
            require(value <= most, f"model.encoder.{name}", value, f"at most {most}")
        require(0 < self.mlp_ratio < math.inf, "model.encoder.mlp_ratio", self.mlp_ratio, "a positive number")
        require(self.mlp_ratio <= limits.MLP_RATIO, "model.encoder.mlp_ratio", self.mlp_ratio, f"at most {limits.MLP_RATIO}")
        for name in ("dropout", "flag_dropout", "value_dropout", "branch_dropout"):
            require_fraction(f"model.encoder.{name}", getattr(self, name))
        require_choice("model.encoder.cross", self.cross, Cross)
        require_choice("model.encoder.matching", self.matching, Comparison)


@dataclass(frozen=True)
class HeadConfig:
    """The classifier: 3x3 convolution, ReLU, 1x1 convolution (section 3.4)."""

    RETIRED: ClassVar[dict[str, Any]] = {"residual": False}
    refine: bool = setting(
        False,
        "release: before the classifier a 1x1 convolution and ReLU, then x + relu(3x3(relu(3x3(x)))), no ReLU behind",
    )
    dropout: float = setting(0.0, "release: Dropout2d before the last convolution")

    def __post_init__(self) -> None:
        require_fraction("model.head.dropout", self.dropout)


@dataclass(frozen=True)
class ModelConfig(BackboneOnly):
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
        require(self.dim >= 4 and self.dim % 4 == 0, "model.dim", self.dim, "a positive multiple of 4")
        require(self.dim <= limits.DIM, "model.dim", self.dim, f"at most {limits.DIM}")
        taps = self.backbone.taps
        require(taps is None or len(taps) == 3, "model.backbone.taps", taps, "three, of which CyCTR joins the first two")
        require_choice("model.mixer", self.mixer, Mixer)
        require_fraction("model.reduction_dropout", self.reduction_dropout)
        require(0 <= self.familiar <= 250, "model.familiar", self.familiar, "0 to 250 classes")
        if self.dim % self.encoder.heads:
            raise ConfigError(f"model.dim is {self.dim} and model.encoder.heads is {self.encoder.heads}; heads must divide dim")


@dataclass(frozen=True)
class LossConfig(NoChoice):
    """What is minimised."""

    auxiliary_weight: float = setting(1.0, "weight of the auxiliary support loss")
    both_channels: bool = setting(False, "release: sigmoid Dice of the background and foreground channels, summed")
    clamp: bool = setting(False, "release: Dice's divisor is kept above 1e-8, without the 1 above and below")

    def __post_init__(self) -> None:
        weight = self.auxiliary_weight
        require(0 <= weight < math.inf, "loss.auxiliary_weight", weight, "zero or a positive number")


@dataclass(frozen=True)
class Config(Recipe):
    """Everything a checkpoint must remember of how it was made."""

    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()


PAPER = Config()

RELEASED = Config(
    model=ModelConfig(
        reduction_dropout=0.5,
        unbiased=True,
        own_prototype=True,
        plain_averages=True,
        deep_auxiliary=True,
        backbone=BackboneConfig("resnet50", deep_stem=True),
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
USUAL = "best"
"""The preset that is trained unless another is named."""


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
