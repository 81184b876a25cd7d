"""The values that travel between the parts, and the checks they pass once, at the door.

Shapes: `B` batch, `K` shots, `C` channels, `H W` pixels, `h w` cells of the feature grid, `N` sampled tokens.
"""

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Literal

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
    """What the backbone says of an image.

    Attributes:
        mid: (B, C, h, w) middle-level features, the third and fourth block joined: what is compared and mixed.
        high: (B, C', h, w) high-level features, the fifth block: the source of the prior map.
    """

    mid: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class Support:
    """The support images, encoded once for any number of queries.

    Attributes:
        prototype: (B, d) masked average of the support features, mean over shots.
        high: (B, K, M, C') high-level features of support cells, unit length.
        high_valid: (B, K, M) bool, which of them are foreground.
        tokens: (B, N, d) sampled support tokens.
        index: (B, N) int64, where each token came from, in K * h * w.
        is_foreground: (B, N) bool, the class of each token: the label at its own index.
        valid: (B, N) bool, false for slots that no token fills.
        maps: (B, K, d, h, w) all support features, kept only where the cross block reads predicted positions.
        grid: (h, w) of the support features.
        voters: (B, N, C) backbone features of the tokens, unit length, one tensor for each of `prior.votes`.
        familiar: (B, classes) how much of each familiar class what is marked shows; None where none is known.
        hidden: (B, N) bool, tokens that take part in round trips but are not attended to; None where there are none.
        by_layer: in training with `sampling.draw_per_layer`, the same support with the tokens of each layer.
    """

    prototype: Tensor
    high: Tensor
    high_valid: Tensor
    tokens: Tensor
    index: Tensor
    is_foreground: Tensor
    valid: Tensor
    maps: Tensor | None
    grid: tuple[int, int]
    voters: tuple[Tensor, ...] = ()
    familiar: Tensor | None = None
    hidden: Tensor | None = None
    by_layer: tuple["Support", ...] = ()

    @property
    def attended(self) -> Tensor:
        """(B, N) bool: the tokens that queries may attend to."""
        return self.valid if self.hidden is None else self.valid & ~self.hidden

    def expand(self, batch: int) -> "Support":
        """The same support for each of `batch` queries, without copying it."""
        own = len(self.tokens)
        if own == batch:
            return self
        if own != 1:
            raise DataError(f"support holds {own} episodes, the query batch {batch}; expected equal numbers or one support")
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        grown = {name: value.expand(batch, *value.shape[1:]) for name, value in values.items() if isinstance(value, Tensor)}
        voters = tuple(value.expand(batch, *value.shape[1:]) for value in self.voters)
        return Support(**{**values, **grown, "voters": voters})


@dataclass(frozen=True, eq=False)
class Query:
    """Query images, encoded once for any number of supports.

    Attributes:
        features: what the backbone says of them.
        reduced: (B, d, h, w) the middle features as the network compares them.
        size: (H, W) of the images.
        familiar: (B, classes, h, w) how much each familiar class is there; None where none is known.
        padding: (B, h, w) bool, cells beyond the image; None where nothing is padded, or the network does not ask.
    """

    features: Features
    reduced: Tensor
    size: tuple[int, int]
    familiar: Tensor | None = None
    padding: Tensor | None = None

    def one(self, place: int) -> "Query":
        """One of the images."""
        own = slice(place, place + 1)
        familiar, padding = (None if maps is None else maps[own] for maps in (self.familiar, self.padding))
        features = Features(self.features.mid[own], self.features.high[own])
        return Query(features, self.reduced[own], self.size, familiar, padding)


class CycleState(IntEnum):
    """What became of a support token in the round trip through the query (section 3.3.1)."""

    UNUSED = 0
    INCONSISTENT = 1
    CONSISTENT_BACKGROUND = 2
    CONSISTENT_FOREGROUND = 3


@dataclass(frozen=True, eq=False)
class CrossTrace:
    """What one cross-alignment block did.

    Attributes:
        q: (B, heads, hw, d / heads) query tokens, scaled.
        k: (B, heads, N, d / heads) support tokens.
        bias: (B, heads, 1, N) 0 for the tokens attended to, -inf for the others.
        state: (B, heads, N) uint8 of `CycleState`.
    """

    q: Tensor
    k: Tensor
    bias: Tensor
    state: Tensor


@dataclass(frozen=True, eq=False)
class Explanation:
    """What pictures of a prediction need.

    Attributes:
        prior: (B, h, w) prior map in [0, 1].
        index: (B, N) int64, the place of each support token in K * h * w of the support.
        valid: (B, N) bool.
        support_grid: (h, w) of the support features.
        stride: pixels from one cell to the next.
        alignment: "corner" where cell i sits on pixel stride * i, "center" where it covers the stride pixels from there.
        offset: pixels, right and down, from there to what the cell speaks of.
        cross: one trace for each cross-alignment block that attends to support tokens.
    """

    prior: Tensor
    index: Tensor
    valid: Tensor
    support_grid: tuple[int, int]
    stride: int
    alignment: Literal["corner", "center"]
    offset: int
    cross: tuple[CrossTrace, ...]

    def attention(self, row: int, column: int, layer: int = -1) -> Tensor:
        """(B, heads, N) attention weights of the query cell at (row, column) over the support tokens."""
        height, width = self.prior.shape[-2:]
        if not self.cross:
            raise DataError("this network has no attention over support tokens; use encoder.cross 'vanilla' or 'cycle'")
        if not (0 <= row < height and 0 <= column < width):
            raise DataError(f"cell ({row}, {column}) is outside the query's {height} x {width} feature grid")
        if not -len(self.cross) <= layer < len(self.cross):
            raise DataError(f"layer is {layer}; this network has {len(self.cross)} cross-alignment blocks")
        trace = self.cross[layer]
        q = trace.q[:, :, row * width + column, None].float()  # (B, heads, 1, d / heads)
        affinity = q @ trace.k.float().transpose(-2, -1)  # (B, heads, 1, N)
        return (affinity + trace.bias.float()).softmax(-1).squeeze(-2)


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the network answers.

    Attributes:
        logits: (B, 2, H', W') background and foreground at the query's size.
        auxiliary: (B, K, 2, H, W) logits of the support masks, in training with known query labels, else None.
        explanation: on request, else None.
        votes: (B, votes, h, w) in [0, 1], what the support's tokens say of each cell without any learning, a map for each of
            `prior.votes`; None where there are none.
        similarity: (B, H', W') how much each place of the query is like what the support marks, a cosine in [-1, 1] that
            nothing was learned for; always from `answer` and `segment`, elsewhere on request.
    """

    logits: Tensor
    auxiliary: Tensor | None = None
    explanation: Explanation | None = None
    votes: Tensor | None = None
    similarity: Tensor | None = None

    @property
    def probability(self) -> Tensor:
        """(B, H', W') probability of foreground."""
        return self.logits.float().softmax(1)[:, 1]

    @property
    def mask(self) -> Tensor:
        """(B, H', W') bool."""
        return self.logits[:, 1] > self.logits[:, 0]


for _kind in (Episode, Features, Query, Support, CrossTrace, Explanation, Prediction):
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
