"""The contract: what every method is, and what some can do beside it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.config import Recipe
from cyctr.errors import ConfigError, DataError
from cyctr.types import IGNORE, Episode, Features, Prediction

S = TypeVar("S")
"""A method's own value of an encoded support."""
Size = tuple[int, int]
"""Height and width, in pixels."""


@dataclass(frozen=True, eq=False)
class Step:
    """What the training loop tells a method of a step.

    Attributes:
        seeds: (B,) int64, one for each episode: what the method draws for an episode is a function of it.
        drawn: what `Method.draw` gave for this step.
    """

    seeds: Tensor
    drawn: Any = None


@dataclass(frozen=True, eq=False)
class Losses:
    """What a step minimises.

    Attributes:
        each: (B,) the loss of each episode.
        parts: what it consists of, as means over the batch, by the name that the log shows.
    """

    each: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The mean over the episodes, which is minimised."""
        return self.each.mean()


@dataclass(frozen=True)
class ParameterCount:
    """Trained parameters: all, and those that an answer needs."""

    trained: int
    used_at_test: int


class TokenState(IntEnum):
    """What became of a support token in the round trip through the query."""

    UNUSED = 0
    INCONSISTENT = 1
    CONSISTENT_BACKGROUND = 2
    CONSISTENT_FOREGROUND = 3


@dataclass(frozen=True, eq=False)
class Matching:
    """What plain matching of support tokens finds in B queries.

    Attributes:
        votes: (B, n, h, w) in [0, 1], the share of foreground among the tokens that a cell resembles, by n kinds of features.
        is_foreground: (B, N) bool, or (1, N) of one support for all.
        valid: (B, N) bool, or (1, N): tokens that vote.
        shot: (B, N) int64, or (1, N): the number of the labelled image that each token is of.
    """

    votes: Tensor
    is_foreground: Tensor
    valid: Tensor
    shot: Tensor


class Method(nn.Module, ABC, Generic[S]):
    """Backbone features and labels -> logits.

    A support is encoded once and serves any number of queries. Attributes of the class:
        name: for the table, checkpoints and results; a class outside the table is called "package.module:Class".
        Config: a dataclass that derives from `cyctr.config.Recipe`. Commands take their options from it, and checkpoints hold
            it.
        presets: instances of `Config` by name, the usual one first; where there are none, `Config()` is the only one, "usual".
        training_only: what the names of parameters begin with that an answer does not need.

    And of an instance:
        config: the `model` part of the `Config` it was built from.
        backbone: built, with the feature levels that `config.backbone` asks for: `taps`, on one grid or with `own_strides`.
            A frozen one stays so.
    """

    name: ClassVar[str]
    Config: ClassVar[type[Any]] = Recipe
    presets: ClassVar[Mapping[str, Any]] = {}
    training_only: ClassVar[tuple[str, ...]] = ()
    backbone: Backbone
    config: Any
    accelerated: bool = False

    @classmethod
    @abstractmethod
    def build(cls, config: Any, backbone: Backbone) -> Self:
        """The untrained method of a `Config` on a backbone."""

    @abstractmethod
    def encode_support(self, features: Features, labels: Tensor, seeds: Tensor | None = None) -> S:
        """What B episodes with K labelled images each show of their class.

        Args:
            features: of B * K images.
            labels: (B, K, H, W) uint8: 1 foreground, 0 background, 255 neither.
            seeds: (B,) int64, what is drawn by chance; by default the method's own.
        """

    def prepare(self, query: Features) -> Features:
        """What of B queries no support changes, for any number of `predict`; by default the features as they are."""
        return query

    @abstractmethod
    def predict(
        self, query: Features, support: S, size: Size, padding: Tensor | None = None, explain: bool = False
    ) -> Prediction:
        """Segments B queries, with the supports of as many episodes or that of one.

        Args:
            query: features of B images, as the backbone or `prepare` gives them.
            support: from `encode_support`.
            size: (H, W) of the query images, and of the logits.
            padding: (B, H, W) bool, true beyond the image itself; None where nothing is padded.
            explain: the extras of the prediction also hold what pictures need, where the method explains itself.
        """

    def learn(self, episode: Episode, query: Features, support: Features, step: Step) -> Losses:
        """The losses of B episodes with known query labels; by default the cross-entropy of `predict`."""
        encoded = self.encode_support(support, episode.support_labels, step.seeds)
        prediction = self.predict(query, encoded, query_size(episode), episode.query_padding)
        return Losses(cross_entropy(prediction.logits, known_labels(episode)))

    def draw(self, seed: int, number: int, shots: int) -> Any:
        """What is decided by chance for a whole step of training, as a function of these numbers alone; see `Step.drawn`."""
        return None

    @property
    def draws_alike(self) -> bool:
        """Whether `draw` gives the same for every step, which lets the loop compile `learn`."""
        return True

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every trained parameter, once, by group; "transformer" and "backbone" have rates of their own in `optimizer`."""
        return {"convolutions": [value for value in self.parameters() if value.requires_grad]}

    @classmethod
    def least_size(cls, config: Any) -> int:
        """How many numbers a checkpoint of this config holds at least: a damaged config is refused before it is built."""
        return 0

    def parameter_count(self) -> "ParameterCount":
        """How many numbers training moves."""
        trained = {name: value.numel() for name, value in self.named_parameters() if value.requires_grad}
        used = sum(count for name, count in trained.items() if not name.startswith(self.training_only))
        return ParameterCount(sum(trained.values()), used)

    def forward(self, episode: Episode, seeds: Tensor | None = None, explain: bool = False) -> Prediction:
        """Segments the queries of B episodes."""
        query = self.backbone(episode.query_images)
        support = self.encode_support(self.backbone(episode.support_images.flatten(0, 1)), episode.support_labels, seeds)
        return self.predict(query, support, query_size(episode), episode.query_padding, explain)

    def accelerate(self) -> Self:
        """Rewrites the method for inference, its output unchanged to 1e-3. It cannot be trained any more."""
        self.backbone.accelerate()
        self.requires_grad_(False).eval()
        self.accelerated = True
        return self

    def train(self, mode: bool = True) -> Self:
        """As for any module, but refused once the method was accelerated."""
        if mode and self.accelerated:
            raise ConfigError("this network was accelerated for inference and cannot train; build it again")
        return super().train(mode)


@runtime_checkable
class MatchesPlainly(Protocol):
    """A method that also says what plain matching of support tokens finds, to be blended with its answer."""

    def matching(self, prediction: Prediction, support: Any) -> Matching | None:
        """Of a prediction and the support it was made with; None where the config has no matching."""
        ...


@runtime_checkable
class KnowsClasses(Protocol):
    """A method that recognises training classes by a linear map of the backbone's features, which training fits last."""

    @property
    def known_classes(self) -> int:
        """How many at most; 0 where the config wants none."""
        ...

    def knowing(self, rows: Tensor) -> dict[str, Tensor]:
        """By its name, the tensor of the network that holds (classes, 1 + C) rows, of the constant one, then of all maps."""
        ...


@runtime_checkable
class LimitsSupport(Protocol):
    """A method whose supports grow with the shots, and can be kept as small as those of fewer."""

    def encode_within(self, features: Features, labels: Tensor, shots: int, negatives: int = 0) -> Any:
        """As `Method.encode_support` of one episode, no larger than for so many shots.

        The last `negatives` images mark nothing; each of them adds as much as one of the others.
        """
        ...


class Explanation(Protocol):
    """What pictures need of a prediction."""

    @property
    def prior(self) -> Tensor:
        """(B, h, w) likeness to the support before any learning, in [0, 1]."""
        ...

    @property
    def index(self) -> Tensor:
        """(B, N) int64, the place of each support token in K * h * w of the support."""
        ...

    @property
    def is_foreground(self) -> Tensor:
        """(B, N) bool, the class of each token."""
        ...

    @property
    def valid(self) -> Tensor:
        """(B, N) bool, the tokens that are attended to."""
        ...

    @property
    def support_grid(self) -> Size:
        """(h, w) of the support features."""
        ...

    @property
    def state(self) -> Tensor | None:
        """(B, heads, N) uint8 of `TokenState`; None where the config has no attention over tokens."""
        ...

    def attention(self, row: int, column: int) -> Tensor:
        """(B, heads, N) how much the query cell at a place looks at each token."""
        ...


@runtime_checkable
class ExplainsItself(Protocol):
    """A method whose predictions can be drawn."""

    def explanation(self, prediction: Prediction) -> Explanation | None:
        """Of a prediction that was made with `explain`; None for others."""
        ...


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) the mean over the pixels that are not 255; 0 where there is none."""
    counted = labels != IGNORE
    lost = F.cross_entropy(logits.float(), labels.masked_fill(~counted, 0).long(), reduction="none")  # (B, H, W)
    return (lost * counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp_min(1)


def query_size(episode: Episode) -> Size:
    """(H, W) of the queries."""
    return episode.query_images.shape[-2], episode.query_images.shape[-1]


def known_labels(episode: Episode) -> Tensor:
    """(B, H, W) the labels of the queries."""
    if episode.query_labels is None:
        raise DataError("the episode has no query_labels; expected (B, H, W) uint8 labels to compute a loss")
    return episode.query_labels


def moved(value: Any, device: torch.device) -> Any:
    """An encoded support on a device: tensors, and dataclasses, tuples, lists and dictionaries of them."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: moved(getattr(value, item.name), device) for item in fields(value) if item.init})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(part, device) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    return value
