"""Which backbone a method looks at images with."""

from dataclasses import dataclass
from typing import Any, ClassVar

from cyctr.config.fields import require, setting


@dataclass(frozen=True)
class BackboneConfig:
    """The feature extractor: frozen, unless `tuned` or `trained` says otherwise."""

    BEFORE: ClassVar[dict[str, Any]] = {"dilate_first": False}
    name: str = setting("resnet50", "a timm network, or 'tiny' for the built-in one")
    weights: str | None = setting(None, "a name of `cyctr weights list`, 'timm:TAG' or a file; none means random")
    taps: tuple[int, ...] | None = setting(
        None, "timm feature levels, the finest first; -1 is the deepest usual one; default: those of stride 8, 16 and 32"
    )
    deep_stem: bool = setting(False, "release: a ResNet begins with three 3x3 convolutions instead of a 7x7 (timm's resnet50s)")
    own_strides: bool = setting(
        False, "each map keeps the stride that the network gives it; false: all lie on one grid, at stride 8"
    )
    blocks: bool = setting(False, "levels are the blocks of the network one by one, instead of its stages")
    stride_in_1x1: bool = setting(False, "original (Caffe) ResNets: a stage's stride sits in its first 1x1 convolution")
    dilate_first: bool | None = setting(
        None,
        "the first block of a dilated ResNet stage is dilated like its others; default: where strides sit in the 1x1, "
        "which makes the dilated network equal to the undilated one",
    )
    mean: tuple[float, float, float] | None = setting(None, "RGB mean of images in [0, 1]; default: timm's")
    std: tuple[float, float, float] | None = setting(None, "RGB standard deviation; default: timm's")
    scale: tuple[float, ...] | None = setting(
        None, "factors of the taps, so that features are about 1 in size; three are of the default taps"
    )
    offset: int | None = setting(None, "pixels, right and down, from where a cell sits to what it speaks of; default: 0")
    tuned: bool = setting(False, "ours: the singular values of its convolutions learn, all else of it stays frozen")
    trained: int = setting(0, "so many of its last feature levels learn, but for their BatchNorms; 9 is all of any network")
    last_relu: bool = setting(
        True, "false: the deepest level (with blocks, each one) is given as it is before its final ReLU, where it ends with one"
    )

    @property
    def architecture(self) -> str:
        """The name that timm has for the network."""
        return f"{self.name}s" if self.deep_stem else self.name

    @property
    def learns(self) -> bool:
        """Whether any part of it learns."""
        return self.tuned or self.trained > 0

    @property
    def dilates_first(self) -> bool:
        """Whether first blocks are dilated like the others: as asked for, or as the place of the strides wants it."""
        return self.stride_in_1x1 if self.dilate_first is None else self.dilate_first

    def __post_init__(self) -> None:
        require(bool(self.name), "model.backbone.name", self.name, "the name of a timm network, such as 'resnet50'")
        if self.taps is not None:
            same_end = min(self.taps, default=0) >= 0 or max(self.taps) < 0
            ordered = bool(self.taps) and same_end and sorted(set(self.taps)) == list(self.taps)
            require(ordered, "model.backbone.taps", self.taps, "increasing feature levels, such as (2, 3, 4) or (-1,)")
        for name in ("mean", "std"):
            value = getattr(self, name)
            require(value is None or len(value) == 3, f"model.backbone.{name}", value, "three numbers, for red, green and blue")
        require(0 <= self.trained <= 9, "model.backbone.trained", self.trained, "0 to 9 feature levels")
        require(-32 <= (self.offset or 0) <= 32, "model.backbone.offset", self.offset, "-32 to 32 pixels")
        require(self.std is None or min(self.std) > 0, "model.backbone.std", self.std, "three positive numbers")
        counts = {3, len(self.taps or (0, 0, 0))}
        whole = self.scale is None or (len(self.scale) in counts and min(self.scale) > 0)
        require(whole, "model.backbone.scale", self.scale, f"{' or '.join(map(str, sorted(counts)))} positive numbers")
