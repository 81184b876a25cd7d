"""How a benchmark is measured."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from cyctr.config.fields import require, require_choice, setting
from cyctr.config.training import Order
from cyctr.errors import ConfigError

Fit = Literal["pad", "squash"]
Score = Literal["original", "input"]


@dataclass(frozen=True)
class InputConfig:
    """How an image becomes what a network is tested on, and its answer the size of the image again."""

    size: int = setting(473, "height and width of what the network sees")
    fit: Fit = setting("pad", "'pad': longest side to size, top left, the rest filled; 'squash': both sides to size")
    multiple: int = setting(1, "release and PFENet: both sides of the resized image are rounded down to a multiple of this, 8")
    register: bool = setting(True, "release and PFENet: false, which enlarges the filled square as a whole, not its content")
    fill: int = setting(116, "grey value of the padding, whose label is 255: about the mean colour; release and PFENet: 0")

    def __post_init__(self) -> None:
        require(self.size >= 8, "input.size", self.size, "at least 8 pixels")
        require(1 <= self.multiple <= self.size, "input.multiple", self.multiple, "from 1 to input.size")
        require(0 <= self.fill <= 255, "input.fill", self.fill, "a grey value from 0 to 255")
        require_choice("input.fit", self.fit, Fit)
        if self.fit == "squash" and (self.multiple > 1 or not self.register):
            raise ConfigError("input.fit is 'squash'; then input.multiple must be 1 and input.register true")


@dataclass(frozen=True)
class ProtocolConfig:
    """How a benchmark is measured. Repositories differ in these, and so do their numbers.

    `Dataset.protocol` gives a protocol with the number of episodes and the order that are usual on that dataset.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("episodes_coco", "episodes_fss", "order_coco")  # the dataset decides them now
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
        require(self.episodes >= 1, "protocol.episodes", self.episodes, "at least 1")
        require_choice("protocol.order", self.order, Order)
        require_choice("protocol.score", self.score, Score)
        require(self.smallest is None or self.smallest >= 1, "protocol.smallest", self.smallest, "at least 1 pixel")
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        require(distinct, "protocol.seeds", self.seeds, "at least one seed, each once")


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
