"""Images and masks of one class -> what a network sees of them, one by one: only one large image is in memory at a time."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cyctr.errors import DataError, NothingMarkedError
from cyctr.images.imaging import find_images, read_values
from cyctr.inference.inputs import ImageLike, MaskLike, to_image, to_label
from cyctr.inference.segment_options import check_tile
from cyctr.inference.supports.labelled import Labelled
from cyctr.inference.tiles import Window, around, closer, middle
from cyctr.types import Pixels
from cyctr.words import counted

Look = tuple[Tensor, Tensor]
"""(3, S, S) of an image and (S, S) of its label: 1 the class, 0 the rest, 255 undecided."""
_MARKERS = ("_mask", "-mask", ".mask")
_CLOSER_SHOT = 0.8  # side of a window around a labelled thing that becomes a further shot, in that of the image


class Shots:
    """The labelled images of a class, and images without it, as a network sees them.

    Attributes:
        tile: side of the windows that are cut from the images; None for whole ones.
        whole: each labelled image.
        near: closer looks at what is small in them.
        without: images that show nothing of the class.
    """

    def __init__(self, fitted: Callable[[Pixels, Pixels, Window], Look], tile: int | None, negatives: bool) -> None:
        """Begins without any image.

        Args:
            fitted: makes a look of pixels, label and window.
            tile: see above.
            negatives: whether some will be added, and must not be labelled images.
        """
        check_tile(tile)
        self.tile, self._fitted, self._negatives = tile, fitted, negatives
        self.whole: list[Look] = []
        self.near: list[Look] = []
        self.without: list[Look] = []
        self._known: list[bytes] = []  # checksums of the labelled images

    def read(self, images: Sequence[ImageLike], masks: Sequence[MaskLike], class_id: int | None) -> None:
        """Adds labelled images, and as negatives those whose mask is 0 everywhere; arguments as of `encode_support`."""
        first: NothingMarkedError | None = None
        for place, (image, mask) in enumerate(zip(images, masks, strict=True)):
            try:
                self._add(image, mask, class_id, f"images[{place}]", f"masks[{place}]")
            except NothingMarkedError as error:
                first = first or error.with_traceback(None)  # which would keep the image
                self._add_empty(to_image(image, f"images[{place}]"))
        if first is not None and not self.whole:
            raise first

    def read_files(self, name: str, labelled: Sequence[Labelled], complain: Callable[[str], None]) -> None:
        """Adds labelled files of a class; those that cannot be read are left out, and complained of."""
        for shot in labelled:
            try:
                self._add(shot.image, shot.mask, shot.class_id, str(shot.image), str(shot.image))
            except DataError as error:
                complain(str(error))
        if not self.whole:
            raise DataError(f"class {name!r}: none of its {counted(len(labelled), 'labelled image')} can be read; mend them")

    def read_negatives(self, images: Sequence[ImageLike]) -> None:
        """Adds images without the class; that one of them is a labelled image too is refused."""
        for place, image in enumerate(images):
            pixels = to_image(image, f"negatives[{place}]")
            known = _checksum(pixels)
            if known in self._known:
                number = self._known.index(known) + 1
                raise DataError(
                    f"negatives[{place}] is labelled image {number}, which shows the class; expected images without it"
                )
            self._add_empty(pixels)
            del pixels  # before the next is read

    @property
    def looks(self) -> Look:
        """(N, 3, S, S) and (N, S, S): the labelled images, the closer looks, and what does not show the class."""
        images, labels = zip(*self.whole, *self.near, *self.without, strict=True)
        return torch.stack(images), torch.stack(labels)

    def warn_of_full(self, name: str) -> None:
        """Warns where all of a labelled image is marked: nothing shows then what is not of the class."""
        full = [place for place, (_, label) in enumerate(self.whole, 1) if not bool((label == 0).any())]
        if full:
            larger = "" if self.tile is None else f", or take a larger tile than {self.tile}"
            which = f"mask {full[0]}" + (f" and {len(full) - 1} more" if len(full) > 1 else "")
            warnings.warn(
                f"support {name!r}: {which} of {len(self.whole)} leaves no background, so that all of an image may be taken "
                f"for it; mark the object alone{larger}",
                stacklevel=4,
            )

    def _add(self, image: ImageLike, mask: MaskLike, class_id: int | None, image_name: str, mask_name: str) -> None:
        pixels = to_image(image, image_name)
        label = to_label(mask, (pixels.shape[0], pixels.shape[1]), class_id, mask_name)
        window = None if self.tile else closer(label == 1, _CLOSER_SHOT)
        self.whole.append(self._fitted(pixels, label, around(label, self.tile)))
        if window is not None:
            self.near.append(self._fitted(pixels, label, window))
        if self._negatives:
            self._known.append(_checksum(pixels))

    def _add_empty(self, pixels: Pixels) -> None:
        size = (pixels.shape[0], pixels.shape[1])
        self.without.append(self._fitted(pixels, np.zeros(size, np.uint8), middle(size, self.tile)))


def _checksum(pixels: Pixels) -> bytes:
    return hashlib.sha256(f"{pixels.shape}".encode() + hashlib.sha256(np.ascontiguousarray(pixels).data).digest()).digest()


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
