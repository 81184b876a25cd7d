"""How images are segmented: every option with its default, its help and its check. The command line is made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from cyctr.config import setting
from cyctr.errors import ConfigError


@dataclass(frozen=True)
class SegmentOptions:
    """The options of `Segmenter.segment` and `Segmenter.segment_many`, checked."""

    threshold: float = setting(0.5, "Probability above which a pixel is of the class.")
    tile: int | None = setting(None, "Look at windows of so many pixels: for small things in large images.")
    overlap: float = setting(0.25, "Share of a window that the next one shows too.")
    flip: bool = setting(False, "Also look at the mirror image: better, twice the time.")
    scales: tuple[float, ...] = setting((1.0,), "Sizes to look at, such as 0.75,1,1.25: better, slower.")
    smallest: int = setting(0, "Drop regions of fewer pixels.")
    fill_holes: bool = setting(False, "What a region encloses belongs to it.")
    votes: float | None = setting(None, "Weight of plain matching, 0 to 1; default: 0.5.")
    drop_absent: bool | Literal["auto"] = setting(
        "auto", "Mark nothing of a class that is probably not there; auto: where the confidence was measured for the network."
    )
    edges: bool = setting(True, "Let masks follow the edges of the image.")
    zoom: bool = setting(True, "Look again, closer, at what is small.")
    refine: str | None = setting(None, "sam: sharpen outlines with SAM 2; better, seconds an image.")

    def __post_init__(self) -> None:
        _check_number("threshold", self.threshold)
        if not 0 < self.threshold < 1:
            raise ConfigError(f"threshold is {self.threshold!s:.40}; expected a probability between 0 and 1")
        for name in ("overlap", "smallest", *(() if self.votes is None else ("votes",))):
            _check_number(name, getattr(self, name))
        if self.drop_absent != "auto":
            _check_choice("drop_absent", self.drop_absent, ", or 'auto'")
        for name in ("flip", "fill_holes", "edges", "zoom"):
            _check_choice(name, getattr(self, name))
        if self.refine not in (None, "sam"):
            raise ConfigError(f"refine is {self.refine!r:.40}; expected 'sam' or None")
        check_tile(self.tile)
        if not 0 <= self.overlap <= 0.9:
            raise ConfigError(f"overlap is {self.overlap!s:.40}; expected a share of the tile from 0 to 0.9")
        _check_scales(self.scales)
        if self.votes is not None and not 0 <= self.votes <= 1:
            raise ConfigError(
                f"votes is {self.votes!s:.40}; expected a weight from 0 (the network alone) to 1 (matching alone)"
            )
        if not isinstance(self.smallest, int) or self.smallest < 0:
            raise ConfigError(f"smallest is {self.smallest!s:.40}; expected a whole number of pixels, 0 for all")

    def changed(self, given: Mapping[str, Any]) -> "SegmentOptions":
        """These options with others in place of some; a name that is not an option is refused."""
        known = [item.name for item in fields(self)]
        if unknown := sorted(given.keys() - set(known)):
            raise ConfigError(f"option {unknown[0]!r:.40} does not exist; expected {', '.join(known)}")
        return replace(self, **given)


def check_tile(tile: int | None) -> None:
    """Raises ConfigError for a tile that is not a whole number, or too small to show anything."""
    if tile is not None and not isinstance(tile, int):
        raise ConfigError(f"tile is {tile!r:.40}; expected a whole number of pixels, or none for whole images")
    if tile is not None and tile < 64:
        raise ConfigError(f"tile is {tile!s:.40}; expected at least 64 pixels, or none for whole images")


def _check_scales(scales: Sequence[float]) -> None:
    if not isinstance(scales, list | tuple):
        raise ConfigError(f"scales are {scales!r:.60}; expected several numbers, such as (0.75, 1, 1.25)")
    for scale in scales:
        _check_number("scales", scale)
    if not scales or not all(0.25 <= scale <= 4 for scale in scales):
        raise ConfigError(f"scales are {tuple(scales)!s:.60}; expected some from 0.25 to 4, such as (0.75, 1, 1.25)")


def _check_choice(name: str, value: object, more: str = "") -> None:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's too, without importing it
        raise ConfigError(f"{name} is {value!r:.40}; expected True or False{more}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r:.40}; expected a number")
