"""A few labelled images of one class, encoded: a value that is reused, pickled, shared by threads, and kept as one file."""

import hashlib
import io
import json
import math
import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch import Tensor

from cyctr import json_files
from cyctr.errors import DataError
from cyctr.images.geometry import planes
from cyctr.limits import SHOTS, SUPPORT_BYTES, SUPPORT_PIXELS, SUPPORT_SIDE, check_bytes
from cyctr.methods.base import moved
from cyctr.storage import sweep, write_atomically
from cyctr.types import IGNORE, Pixels
from cyctr.visual.contact import tile
from cyctr.visual.draw import PAPER, to_pixels

_FORMAT, _ABOUT = "cyctr-support-1", "about.json"
_REMEDY = "save it again, or give a folder of labelled images, or a file that `cyctr support save` wrote"
_SIDE, _GAP = 240, 8  # pixels of a picture, and between pictures


@dataclass(frozen=True, eq=False, repr=False)
class EncodedSupport:
    """What a segmenter knows of a class.

    Attributes:
        name: of the class.
        images: (K + closer + negatives, 3, S, S) uint8, as the network saw them: K labelled images, then closer looks at some
            of them, then images without the class.
        labels: (K + closer + negatives, S, S) uint8: 1 the class, 0 the rest, 255 beyond the image or undecided.
        encoded: what the method made of them, a value of its own.
        mean_foreground: (1, C) the mean of the deepest backbone features of what is marked.
        model: a checksum of the network, to tell it from others.
        tile: pixels of the side of the windows they were cut from; none where they are whole images.
        closer: how many of the images, those after the labelled ones, are closer looks at what is small in them.
        negatives: how many of the images, the last ones, show nothing of the class.
        kind: (classes,) what kind of thing it is, for the confidence; None where the network cannot say.
    """

    name: str
    images: Tensor
    labels: Tensor
    encoded: Any
    mean_foreground: Tensor
    model: str
    tile: int | None = None
    closer: int = 0
    negatives: int = 0
    kind: Tensor | None = None

    def __repr__(self) -> str:
        cut = "" if self.tile is None else f", in windows of {self.tile} pixels"
        without = f", {self.negatives} without it" if self.negatives else ""
        return f"<EncodedSupport {self.name!r}: {self.shots} labelled{without}{cut}>"

    @property
    def shots(self) -> int:
        """K, how many labelled images there are."""
        return len(self.images) - self.closer - self.negatives

    def warn_of_tile(self, tile: int | None) -> None:
        """Warns where images are looked at in other windows than the labelled ones: things differ in size then."""
        if self.tile == tile:
            return
        is_cut = "is of whole images" if self.tile is None else f"was cut in windows of {self.tile} pixels"
        looked = "whole images are looked at" if tile is None else f"images are looked at in windows of {tile}"
        same = "no tile" if self.tile is None else f"tile {self.tile}"
        other = "without one" if tile is None else f"with tile {tile}"
        warnings.warn(
            f"support {self.name!r} {is_cut}, and {looked}: things differ in size; use {same}, or make the support {other}",
            stacklevel=3,
        )

    @property
    def digest(self) -> str:
        """A checksum of the images and labels."""
        return _digest(self.images, self.labels)

    def to(self, device: torch.device) -> "EncodedSupport":
        """The same on a device; itself where it is there already."""
        here = self.mean_foreground.device
        if here.type == device.type and device.index in (None, here.index):
            return self
        kind = None if self.kind is None else self.kind.to(device)
        there = self.mean_foreground.to(device)
        return replace(self, encoded=moved(self.encoded, device), mean_foreground=there, kind=kind)

    def __getstate__(self) -> dict[str, Any]:
        return self.to(torch.device("cpu")).__dict__  # opens where there is no GPU

    def save(self, path: str | Path) -> None:
        """Writes the images and labels, which any network can encode again, as one file; what is there is replaced."""
        shape = {"shots": len(self.images), "tile": self.tile, "closer": self.closer, "negatives": self.negatives}
        about = {"format": _FORMAT, "name": self.name, **shape, "digest": self.digest}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry(_ABOUT), json.dumps(about))
            for shot in range(len(self.images)):
                image = self.images[shot].permute(1, 2, 0).contiguous().numpy()
                archive.writestr(_entry(f"{shot}.png"), _png(Image.fromarray(image)))
                archive.writestr(_entry(f"{shot}-label.png"), _png(Image.fromarray(self.labels[shot].numpy())))
        try:
            write_atomically(Path(path), buffer.getvalue())
            sweep(Path(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


@dataclass(frozen=True, eq=False)
class StoredSupport:
    """What a file of `EncodedSupport.save` holds; attributes as there."""

    name: str
    images: Tensor
    labels: Tensor
    tile: int | None
    closer: int = 0
    negatives: int = 0


def read_support(path: str | Path) -> StoredSupport:
    """The content of a support's file."""
    try:
        if Path(path).is_fifo():  # opening it would wait for its writer
            raise DataError(f"{path}: is a pipe; expected a file that `cyctr support save` wrote")
        with zipfile.ZipFile(path) as archive:
            about = json_files.parse_object(_content(archive, _ABOUT))
            if about.get("format") != _FORMAT:
                raise DataError(f"{path}: has format {about.get('format')!r}, expected {_FORMAT!r}; save the support again")
            shots, window = int(about["shots"]), about["tile"]
            closer, negatives = (int(about.get(kind, 0)) for kind in ("closer", "negatives"))  # older files have neither
            if not 1 <= shots <= SHOTS:
                raise DataError(f"{path}: holds {shots} images, expected 1 to {SHOTS}; save the support again")
            if closer < 0 or negatives < 0 or closer + negatives >= shots:
                others = f" and {negatives} negatives" if negatives else ""
                raise DataError(f"{path}: has {closer} closer looks{others} among {shots} images; {_REMEDY}")
            name, side = about["name"], min(SUPPORT_SIDE, math.isqrt(SUPPORT_PIXELS // shots))
            if not isinstance(name, str) or not name:
                raise DataError(f"{path}: is of the class {name!r:.40}, expected a name; {_REMEDY}")
            images = [_opened(archive, f"{shot}.png", "RGB", side) for shot in range(shots)]
            labels = [_opened(archive, f"{shot}-label.png", "L", side) for shot in range(shots)]
            whole = torch.stack([planes(image) for image in images])
            marked = torch.stack([torch.from_numpy(label) for label in labels])
            _check_labels(path, whole, marked, negatives)
            if about.get("digest", _digest(whole, marked)) != _digest(whole, marked):  # older files have none
                raise DataError(f"{path}: has a checksum that is not of what it holds; {_REMEDY}")
            return StoredSupport(name, whole, marked, None if window is None else int(window), closer, negatives)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected a support that `cyctr support save` wrote") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder; expected a file that `cyctr support save` wrote: make one of it") from error
    except DataError:
        raise
    except Exception as error:  # a damaged archive is met with whatever its parts trip over
        raise DataError(f"{path}: is no support of ours, or damaged ({type(error).__name__}); {_REMEDY}") from error


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # of a fixed date: the same support gives the same bytes


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    check_bytes(f"{archive.filename}: {name}", archive.getinfo(name).file_size, SUPPORT_BYTES, "a part of a support")
    return archive.read(name)


def _opened(archive: zipfile.ZipFile, name: str, mode: str, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with PngImageFile(io.BytesIO(_content(archive, name))) as image:
        if image.mode != mode:
            raise DataError(f"{archive.filename}: {name} is {image.mode}, expected {mode}; save the support again")
        if image.width != image.height or image.width > side:
            raise DataError(
                f"{archive.filename}: {name} is {image.height} x {image.width}, expected a square of at most {side} "
                "pixels a side; save the support again"
            )
        return np.array(image)


def _check_labels(path: str | Path, images: Tensor, labels: Tensor, negatives: int) -> None:
    """Raises DataError for labels of another size than their images, of other values, or that mark what they should not."""
    remedy = "save the support again"
    if labels.shape[1:] != images.shape[2:]:
        sizes = f"{tuple(labels.shape[1:])}, images are {tuple(images.shape[2:])}"
        raise DataError(f"{path}: labels are {sizes}; expected one size: {remedy}")
    for shot, label in enumerate(labels):
        is_marked = bool((label == 1).any())
        if shot >= len(labels) - negatives:
            if is_marked:
                raise DataError(f"{path}: label {shot + 1} of {len(labels)} is of a negative and marks something; {remedy}")
        elif not is_marked:
            raise DataError(
                f"{path}: label {shot + 1} of {len(labels)} marks nothing; expected at least one pixel of 1: {remedy}"
            )
        strange = label[(label > 1) & (label != IGNORE)]
        if len(strange):
            raise DataError(f"{path}: label {shot + 1} holds {int(strange[0])}; expected 0, 1 and {IGNORE}: {remedy}")


def _digest(images: Tensor, labels: Tensor) -> str:
    return hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()[:16]


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def pictured(stored: StoredSupport) -> Pixels:
    """The labelled images side by side, each with what is marked."""
    tiles = [
        tile(to_pixels(image), (label == 1).numpy(), _SIDE) for image, label in zip(stored.images, stored.labels, strict=True)
    ]
    gap = np.full((_SIDE, _GAP, 3), PAPER, np.uint8)
    return np.concatenate([part for one in tiles for part in (gap, one)][1:], 1)
