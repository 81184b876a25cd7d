"""Images and masks of one class -> labelled images, and negatives: images that show nothing of it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cyctr.errors import DataError, NothingMarkedError
from cyctr.images.imaging import find_images, read_values
from cyctr.inference.inputs import ImageLike, MaskLike, to_image, to_label
from cyctr.types import Pixels

Shot = tuple[Pixels, Pixels]
"""(H, W, 3) pixels and the (H, W) label: 1 the class, 0 the rest, 255 undecided."""
_MARKERS = ("_mask", "-mask", ".mask")


def read_shots(images: Sequence[ImageLike], masks: Sequence[MaskLike], class_id: int | None) -> tuple[list[Shot], list[Shot]]:
    """The labelled images, and those whose mask is 0 everywhere, in their order; arguments as of `encode_support`."""
    marked: list[Shot] = []
    empty: list[Shot] = []
    first: NothingMarkedError | None = None
    for place, (image, mask) in enumerate(zip(images, masks, strict=True)):
        pixels = to_image(image, f"images[{place}]")
        size = (pixels.shape[0], pixels.shape[1])
        try:
            marked.append((pixels, to_label(mask, size, class_id, f"masks[{place}]")))
        except NothingMarkedError as error:
            first = first or error
            empty.append((pixels, np.zeros(size, np.uint8)))
    if first is not None and not marked:
        raise first
    return marked, empty


def read_negatives(images: Sequence[ImageLike], marked: Sequence[Shot]) -> list[Shot]:
    """Images without the class, and labels that say so.

    Args:
        images: of them.
        marked: the labelled images; that one of them is a negative too is refused.
    """
    found: list[Shot] = []
    for place, image in enumerate(images):
        pixels = to_image(image, f"negatives[{place}]")
        for other, (shown, _) in enumerate(marked):
            if np.array_equal(pixels, shown):
                raise DataError(
                    f"negatives[{place}] is labelled image {other + 1}, which shows the class; expected images without it"
                )
        found.append((pixels, np.zeros(pixels.shape[:2], np.uint8)))
    return found


def find_negatives(folder: Path) -> list[Path]:
    """The images of a folder, which show nothing of the class.

    Raises:
        DataError: there are none, or a mask beside one of them marks something.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}; expected a folder of images that do not show the class")
    named = find_images(folder)
    masks = {f"{stem}{end}": named[f"{stem}{end}"] for stem in named for end in _MARKERS if f"{stem}{end}" in named}
    for path in masks.values():
        if read_values(path).any():
            raise DataError(f"{path}: marks something; a negative shows nothing of the class: remove the image, or its mask")
    images = [path for stem, path in named.items() if stem not in masks]
    if not images:
        raise DataError(f"{folder}: holds no image; expected images that do not show the class")
    return images
