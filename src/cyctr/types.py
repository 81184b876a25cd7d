"""The values that travel between the parts, and the checks they pass once, at the door.

Shapes: `B` batch, `K` shots, `C` channels, `H W` pixels, `h w` cells of a feature map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr.errors import DataError

IGNORE = 255
"""The label of a pixel that is neither foreground (1) nor background (0): padding, or a border nobody decided."""

SMALLEST_SIDE = 8

Pixels = NDArray[np.uint8]
"""An image (H, W, 3) in RGB, or a map (H, W) of labels."""


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class Episode:
    """B few-shot tasks: segment in the query what the K support labels mark.

    Attributes:
        support_images: (B, K, 3, H, W) RGB, uint8 or float in [0, 1].
        support_labels: (B, K, H, W) uint8: 1 foreground, 0 background, 255 ignore. Each holds some foreground.
        query_images: (B, 3, H', W') like the support images; the size may differ.
        query_labels: (B, H', W') uint8, or None where the answer is not known.
        query_padding: (B, H', W') bool, true beyond the image itself; None where nothing is padded. Supports say it by 255.
        trusted: skips the checks that read pixel values, for batches made by code that guarantees them.
    """

    support_images: Tensor
    support_labels: Tensor
    query_images: Tensor
    query_labels: Tensor | None = None
    query_padding: Tensor | None = None
    trusted: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = not (self.trusted or torch.compiler.is_compiling())
        check_support(self.support_images, self.support_labels, values)
        check_query(self.query_images, self.query_labels, values)
        if self.query_padding is not None:
            check_padding(self.query_padding, self.query_images)
        if len(self.query_images) != len(self.support_images):
            raise DataError(
                f"query_images hold {len(self.query_images)} episodes, support_images {len(self.support_images)}; "
                "give each query its own supports"
            )

    @property
    def shots(self) -> int:
        """K, the number of support images of each query."""
        return self.support_images.shape[1]


@dataclass(frozen=True, eq=False)
class Features:
    """What the backbone says of images: one map for each level that a method asks for. `Backbone.grids` says where cells sit.

    Attributes:
        maps: (B, C, h, w) each, the finest first; channels and sizes differ from level to level.
    """

    maps: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.maps[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all maps."""
        return sum(maps.nbytes for maps in self.maps)

    def one(self, place: int) -> "Features":
        """Those of one image."""
        return self.changed(lambda maps: maps[place : place + 1])

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Features":
        """The features with a change of each map."""
        return Features(tuple(map(change, self.maps)))

    @staticmethod
    def join(parts: Sequence["Features"], axis: int = 0) -> "Features":
        """Features behind one another; cat, unlike stack, keeps how their memory is laid out."""
        return Features(tuple(torch.cat(levels, axis) for levels in zip(*(part.maps for part in parts), strict=True)))


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a method answers.

    Attributes:
        logits: (B, 2, H', W') background and foreground at the query's size.
        extras: what only the method itself, and who asks it, reads; None where there is nothing.
    """

    logits: Tensor
    extras: Any = None

    @property
    def probability(self) -> Tensor:
        """(B, H', W') probability of foreground."""
        return self.logits.float().softmax(1)[:, 1]

    @property
    def mask(self) -> Tensor:
        """(B, H', W') bool."""
        return self.logits[:, 1] > self.logits[:, 0]


for _kind in (Episode, Features, Prediction):
    torch.export.register_dataclass(_kind, serialized_type_name=f"cyctr.{_kind.__name__}")


def check_support(images: Tensor, labels: Tensor, values: bool = True) -> None:
    """Raises DataError unless these are K >= 1 labelled support images for each of B episodes."""
    _check_images("support_images", images, "(B, K, 3, H, W)")
    if images.shape[1] == 0:
        raise DataError("support_images hold 0 shots; expected at least 1: add a labelled image")
    _check_labels("support_labels", labels, "support_images", images)
    if values:
        _check_pixels("support_images", images)
        _check_classes("support_labels", labels)
        empty = ~(labels == 1).flatten(2).any(-1)  # (B, K)
        if empty.any():
            episode, shot = empty.nonzero()[0].tolist()
            raise DataError(
                f"support_labels[{episode}, {shot}] marks no foreground pixel; "
                "expected at least one pixel labelled 1: mark the object or drop this support image"
            )


def check_query(images: Tensor, labels: Tensor | None = None, values: bool = True) -> None:
    """Raises DataError unless these are query images and, where known, their labels."""
    _check_images("query_images", images, "(B, 3, H, W)")
    if labels is not None:
        _check_labels("query_labels", labels, "query_images", images)
    if values:
        _check_pixels("query_images", images)
        if labels is not None:
            _check_classes("query_labels", labels)


def check_padding(padding: Tensor, images: Tensor) -> None:
    """Raises DataError unless this says of each pixel of query images whether it is padding."""
    _check_tensor("query_padding", padding)
    expected = (len(images), *images.shape[-2:])
    if padding.dtype != torch.bool or padding.shape != expected:
        raise DataError(f"query_padding is {padding.dtype} of shape {tuple(padding.shape)}; expected torch.bool of {expected}")


def _check_images(name: str, images: Tensor, layout: str) -> None:
    _check_tensor(name, images)
    shape = tuple(images.shape)
    if len(shape) != layout.count(",") + 1 or shape[-3] != 3:
        raise DataError(f"{name} have shape {shape}; expected {layout} with 3 RGB channels")
    if not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise DataError(f"{name} are {images.dtype}; expected torch.uint8, or a float type with values in [0, 1]")
    if min(shape[-2:]) < SMALLEST_SIDE:
        raise DataError(
            f"{name} are {shape[-2]} x {shape[-1]} pixels; expected at least {SMALLEST_SIDE} on each side: enlarge them"
        )
    if shape[0] == 0:
        raise DataError(f"{name} hold 0 episodes; expected at least 1")


def _check_labels(name: str, labels: Tensor, images_name: str, images: Tensor) -> None:
    _check_tensor(name, labels)
    if labels.dtype != torch.uint8:
        raise DataError(f"{name} are {labels.dtype}; expected torch.uint8 with 0, 1 and 255 (ignore): use .to(torch.uint8)")
    expected = (*images.shape[:-3], *images.shape[-2:])
    if labels.shape[-2:] != images.shape[-2:]:
        raise DataError(
            f"{name} are {tuple(labels.shape[-2:])}, {images_name} {tuple(images.shape[-2:])}; resize one to match the other"
        )
    if labels.shape != expected:
        raise DataError(f"{name} have shape {tuple(labels.shape)}; expected {expected}, one label map per image")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise DataError(f"{name} are {type(value).__name__}; expected a torch.Tensor: use torch.as_tensor")


def _check_pixels(name: str, images: Tensor) -> None:
    if images.dtype == torch.uint8:
        return
    low, high = (float(bound) for bound in torch.aminmax(images.detach()))
    if not (low > -float("inf") and high < float("inf")):  # NaN fails both
        raise DataError(f"{name} hold NaN or infinite pixels; expected values in [0, 1]: look at how they were read")
    if low < -1e-3 or high > 1 + 1e-3:
        raise DataError(
            f"{name} span [{low:g}, {high:g}]; expected [0, 1]: divide bytes by 255, and leave normalisation to the network"
        )


def _check_classes(name: str, labels: Tensor) -> None:
    strange = (labels > 1) & (labels != IGNORE)
    if strange.any():
        raise DataError(
            f"{name} hold the value {int(labels[strange][0])}; expected 0 (background), 1 (foreground) or 255 (ignore): "
            "make one episode per class"
        )
