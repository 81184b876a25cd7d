"""What a segmenter answers: masks at the size of the image they belong to, ready to be saved, shown and counted."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cyctr.errors import DataError
from cyctr.images.imaging import write_image, write_mask, write_values
from cyctr.inference.cleaning import clean, components
from cyctr.limits import CLASSES
from cyctr.types import Pixels
from cyctr.visual.draw import COLOURS, overlay, overlays

PRESENT = 0.5
"""The confidence from which a class is taken to be in an image."""
_STRIP = 2**20  # pixels that are decided at a time


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation:
    """Where one class is in one image.

    Attributes:
        probability: (H, W) float32, of being of the class.
        mask: (H, W) bool, cleaned as was asked for.
        confidence: 0 to 1, that the class is in the image at all; below `PRESENT` it probably is not.
        image: (H, W, 3) RGB.
    """

    probability: NDArray[np.float32]
    mask: NDArray[np.bool_]
    confidence: float
    image: Pixels

    def __repr__(self) -> str:
        height, width = self.size
        share = 100 * self.mask.mean()
        return f"<Segmentation {height} x {width}: {share:.1f} % marked, confidence {self.confidence:.2f}>"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.mask.shape[0], self.mask.shape[1]

    @property
    def present(self) -> bool:
        """Whether the class is probably in the image, and something of it is marked."""
        return self.confidence >= PRESENT and bool(self.mask.any())

    @cached_property
    def instances(self) -> NDArray[np.int32]:
        """(H, W): 0 outside the mask, 1, 2, ... in its connected parts, the largest first."""
        return components(self.mask)

    def save(self, path: str | Path) -> None:
        """Writes the mask as a PNG of 0 and 255; a file that is there is replaced."""
        write_mask(Path(path), self.mask)

    def overlay(self) -> Image.Image:
        """The image with the mask in full colour, framed, and the rest pale."""
        return Image.fromarray(overlay(self.image, self.mask))


@dataclass(frozen=True, eq=False, repr=False)
class ImageResult:
    """Where several classes are in one image.

    Attributes:
        source: what was given: a path, or the pixels.
        place: its number among those given, from 0.
        classes: by name, in the order of the supports; their masks may overlap.
        smallest: pixels of the smallest region that stays where classes may not overlap, and one takes a part of another.
    """

    source: Any
    place: int
    classes: Mapping[str, Segmentation]
    smallest: int = 0

    def __repr__(self) -> str:
        named = isinstance(self.source, str | os.PathLike)
        return f"<ImageResult {self.source if named else self.place}: {dict(self.classes)}>"

    @property
    def image(self) -> Pixels:
        """(H, W, 3) RGB."""
        return next(iter(self.classes.values())).image

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """(H, W): 0 where no class is, else the number of the likeliest, counted from 1 in the order of `classes`."""
        if len(self.classes) > CLASSES:
            raise DataError(f"{len(self.classes)} classes do not fit one label per pixel; expected at most {CLASSES}")
        found = np.zeros(next(iter(self.classes.values())).size, np.uint8)
        rows = max(1, _STRIP // found.shape[1])
        for part in (slice(top, top + rows) for top in range(0, len(found), rows)):
            best = np.full(found[part].shape, -1, np.float32)  # a hole that was filled may have a probability of 0
            for number, one in enumerate(self.classes.values(), 1):
                wins = one.mask[part] & (one.probability[part] > best)
                found[part][wins] = number
                best[wins] = one.probability[part][wins]
        if self.smallest > 1 and len(self.classes) > 1:
            for number in range(1, len(self.classes) + 1):
                own = found == number
                found[own & ~clean(own, self.smallest)] = 0
        return found

    @cached_property
    def disjoint(self) -> dict[str, NDArray[np.bool_]]:
        """By name, (H, W) bool: the masks without the places where another class is likelier."""
        if len(self.classes) == 1:
            return {name: one.mask for name, one in self.classes.items()}
        return {name: self.labels == number for number, name in enumerate(self.classes, 1)}

    def save(self, path: str | Path) -> None:
        """Writes `labels` as a PNG in the colours of VOC; a file that is there is replaced."""
        write_values(Path(path), self.labels)

    def overlay(self, step: int = 1) -> Image.Image:
        """The image with each class framed in a colour of its own, and the rest pale; of every `step`-th pixel."""
        return Image.fromarray(self.overlay_pixels(step))

    def overlay_pixels(self, step: int = 1) -> Pixels:
        """(H, W, 3) RGB of `overlay`."""
        return drawn(self.image, list(self.disjoint.values()), step)

    def save_overlay(self, path: str | Path) -> None:
        """Writes `overlay()`; a file that is there is replaced."""
        write_image(Path(path), self.overlay_pixels())


def drawn(image: Pixels, masks: Sequence[NDArray[np.bool_]], step: int = 1) -> Pixels:
    """(H, W, 3) RGB of every `step`-th pixel of an image, with each of some (H, W) masks in a colour of its own."""
    return overlays(image[::step, ::step], [mask[::step, ::step] for mask in masks], COLOURS)
