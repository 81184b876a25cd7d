"""Masks of VOC and SBD -> one mask and one image for each id, and what became of them."""

import filecmp
import importlib
import importlib.resources
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from cyctr.datasets.archives import reason
from cyctr.datasets.pascal import CLASSES, IMAGES, MASKS
from cyctr.errors import DataError
from cyctr.images.imaging import image_size, read_values, write_values
from cyctr.limits import MAT_BYTES, check_bytes
from cyctr.types import IGNORE, Pixels

_KNOWN_VALUES = np.isin(np.arange(256), [*range(len(CLASSES) + 1), IGNORE])


class Fate(Enum):
    """What became of a file."""

    WRITTEN = "written"
    COPIED = "copied"
    KEPT = "already there"
    LEFT = "left as it was, though it differs"
    MISSING = "not made"


def read_sbd_mask(path: Path, load_mat: Callable[..., Mapping[str, Any]]) -> Pixels:
    """(H, W) class values of one of SBD's .mat files.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        check_bytes(path, path.stat().st_size, MAT_BYTES, "a mask of SBD")  # unpacked, it may be a thousand times as large
        values = np.asarray(load_mat(str(path), variable_names=("GTcls",))["GTcls"][0, 0]["Segmentation"])
    except DataError:
        raise
    except Exception as error:  # scipy's reader meets damage with whatever it trips over
        raise DataError(f"{path}: cannot be read as SBD's GTcls ({reason(error)}); unpack it again") from error
    if values.ndim != 2 or not values.size or not np.can_cast(values.dtype, np.int64, "same_kind"):
        raise DataError(f"{path}: its Segmentation is {values.dtype} {values.shape}, expected whole numbers (height, width)")
    if values.min() < 0 or values.max() > IGNORE:
        raise DataError(f"{path}: holds values from {values.min()} to {values.max()}, expected 0 to 255")
    return values.astype(np.uint8)


@dataclass(frozen=True)
class Made:
    """The fate of one id's mask and image; for a mask that was not written also the faults, by heading."""

    mask: Fate | None
    image: Fate | None
    problems: dict[str, str]


@dataclass(frozen=True)
class Maker:
    """Makes the files of one id; safe to call from many threads.

    Attributes:
        output: the folder of the layout.
        force: replace what differs.
        load_mat: scipy's reader.
        masks: where the mask of each id comes from.
        images: VOC's images.
        there: images the output already has; None where it is VOC's own folder, which needs none.
    """

    output: Path
    force: bool
    load_mat: Callable[..., Mapping[str, Any]]
    masks: Mapping[str, Path]
    images: Mapping[str, Path]
    there: Mapping[str, Path] | None

    def make(self, name: str) -> Made:
        """Links the image of an id, and writes its mask."""
        linked = self._put_image(name)
        if name not in self.masks:
            return Made(None, linked, {})
        try:
            values = self._read_mask(self.masks[name])
            size = image_size(self.images[name]) if name in self.images else values.shape
        except DataError as error:
            return Made(None, linked, {"ids with an unreadable file": str(error)})
        if problems := _find_fault(values, size):
            return Made(None, linked, problems)
        target = self.output / MASKS / f"{name}.png"
        fate = fate_of(target, _holds(target, values), self.force)
        if fate is Fate.WRITTEN:
            write_values(target, values)
        return Made(fate, linked, {})

    def _read_mask(self, path: Path) -> Pixels:
        return read_sbd_mask(path, self.load_mat) if path.suffix == ".mat" else read_values(path)

    def _put_image(self, name: str) -> Fate | None:
        if self.there is None or name not in self.images:
            return None
        source = self.images[name]
        target = self.output / IMAGES / source.name
        if name in self.there and self.there[name].name != target.name:
            return Fate.KEPT  # the image, in another format: a second one would only confuse
        try:
            same = target.exists() and (target.samefile(source) or filecmp.cmp(source, target, shallow=False))
            fate = fate_of(target, same, self.force)
            return _link(source, target) if fate is Fate.WRITTEN else fate
        except OSError as error:
            raise unwritable(target, error) from error


def _find_fault(values: Pixels, size: tuple[int, ...]) -> dict[str, str]:
    """The faults of a mask, by heading; `size` is the (height, width) of its image."""
    found = {}
    if values.shape != size:
        found["masks of another size than the image"] = (
            f"mask is {values.shape[0]} x {values.shape[1]}, image is {size[0]} x {size[1]}, height x width"
        )
    if not _KNOWN_VALUES[values].all():
        strange = np.unique(values[~_KNOWN_VALUES[values]]).tolist()
        shown = ", ".join(map(str, strange[:5]))
        found["masks with strange values"] = f"{shown}; expected 0 to {len(CLASSES)}, and {IGNORE}"
    return found


def fate_of(path: Path, same: bool, force: bool) -> Fate:
    """The fate of a file; `same`: it is there, as it should be."""
    if same:
        return Fate.KEPT
    return Fate.LEFT if os.path.lexists(path) and not force else Fate.WRITTEN


def _holds(path: Path, values: Pixels) -> bool:
    try:
        return np.array_equal(read_values(path), values)
    except DataError:
        return False


def _link(source: Path, target: Path) -> Fate:
    """Puts a link to `source` at `target`, or a copy where links cannot be made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    fate = Fate.WRITTEN
    try:
        draft.unlink(missing_ok=True)
        try:
            draft.symlink_to(source.resolve())
        except (OSError, NotImplementedError):
            shutil.copyfile(source, draft)
            fate = Fate.COPIED
        os.replace(draft, target)
    finally:
        with suppress(OSError):
            draft.unlink()
    return fate


def unwritable(path: Path, error: OSError) -> DataError:
    """The error for a file that cannot be written."""
    path = Path(error.filename) if isinstance(error.filename, str) else path
    return DataError(f"{path}: cannot be written ({reason(error)}); make room for it, or choose another folder", "output")


def mat_reader() -> Callable[..., Mapping[str, Any]]:
    """The function of scipy that reads .mat files."""
    try:
        reader: Callable[..., Mapping[str, Any]] = importlib.import_module("scipy.io").loadmat
    except ImportError as error:
        raise DataError("scipy is not installed, and SBD's masks are .mat files; run: pip install scipy") from error
    return reader
