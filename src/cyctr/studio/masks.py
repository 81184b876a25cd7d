"""The masks of a project: PNG files that say whose they are, written whole, and patched where the page paints."""

import io
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo

from cyctr.errors import CyctrError
from cyctr.limits import IMAGE_PIXELS
from cyctr.storage import write_atomically
from cyctr.studio.project import MASKS, Project
from cyctr.studio.records import Mask, Origin, Photo
from cyctr.studio.refusals import FullError, RefusedError, StaleError, TooLargeError
from cyctr.studio.trust import share, whole_number
from cyctr.words import one_line

Bools = NDArray[np.bool_]

_REMEMBERED = 2**27  # bytes of masks that are kept unpacked
_PHOTO, _ORIGIN, _REVISION, _CONFIDENCE = "cyctr:photo", "cyctr:origin", "cyctr:revision", "cyctr:confidence"
_QUICK = 1  # of nine steps of zlib: masks pack well with any
_HEADER = 4096  # bytes in which the texts of a mask's file lie


@dataclass(frozen=True)
class Patch:
    """A rectangle of a mask.

    Attributes:
        left: of its first column.
        top: of its first row.
        values: (h, w).
    """

    left: int
    top: int
    values: Bools


class Masks:
    """Reads and writes the masks of a project. Threads may share it."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[str, int], tuple[int, Bools]] = OrderedDict()

    def path(self, photo: Photo, class_id: int, known: Mask | None) -> Path:
        """Where a mask belongs: with the examples, or with all others."""
        with_examples, others = self._project.places(class_id)
        shows = photo.example and known is not None and known.origin == "person" and known.area > 0
        return (with_examples if shows else others) / f"{photo.file}.png"

    def read(self, photo: Photo, class_id: int) -> tuple[Bools, Mask] | None:
        """The mask of a class in a photo, not to be changed; none where there is none."""
        with self._lock:
            known = self._project.store.mask(photo.id, class_id)
            if known is None:
                return None
            kept = self._kept.get((photo.id, class_id))
            if kept is not None and kept[0] == known.revision:
                self._kept.move_to_end((photo.id, class_id))
                return kept[1], known
            path = self._there(photo, class_id, known)
            if path is None:
                self._project.store.drop_mask(photo.id, class_id)  # somebody has removed the file
                return None
            mask = decoded(path.read_bytes(), str(path))
            if mask.shape != photo.size:
                raise RefusedError(f"{path}: mask is {mask.shape}, photo is {photo.size}; remove one of them")
            self._keep(photo.id, class_id, known.revision, mask)
            return mask, known

    def patch(self, photo: Photo, class_id: int, patch: Patch, base: int) -> Mask:
        """Puts a rectangle in a mask, which is a person's from then on.

        Args:
            photo: looked at.
            class_id: the class.
            patch: what it shows from now on.
            base: the revision that the page has; 0 for none.

        Raises:
            StaleError: the mask has another revision.
        """
        height, width = patch.values.shape
        if patch.left < 0 or patch.top < 0 or patch.left + width > photo.size[1] or patch.top + height > photo.size[0]:
            corner = f"{patch.left},{patch.top}, {width} x {height}"
            raise RefusedError(f"the rectangle is {corner}; expected one inside {photo.size[1]} x {photo.size[0]}")
        with self._lock:
            there = self.read(photo, class_id)
            self._check(there, base)
            mask = np.zeros(photo.size, np.bool_) if there is None else there[0].copy()
            mask[patch.top : patch.top + height, patch.left : patch.left + width] = patch.values
            return self._write(photo, class_id, mask, "person", None)

    def put(self, photo: Photo, class_id: int, mask: Bools, origin: Origin, confidence: float | None = None) -> Mask:
        """Writes a whole mask."""
        with self._lock:
            return self._write(photo, class_id, mask, origin, confidence)

    def put_found(self, photo: str, class_id: int, mask: Bools, confidence: float) -> Mask | None:
        """Writes what the network found, unless a person has decided meanwhile; none then."""
        with self._lock:
            now = self._project.store.photo(photo)
            known = self._project.store.mask(photo, class_id)
            decided = now.state == "accepted" or now.gone or (known is not None and known.origin == "person")
            if decided or class_id not in self._project.classes or mask.shape != now.size:
                return None
            return self._write(now, class_id, mask, "found", round(confidence, 4))

    def remove(self, photo: Photo, class_id: int, base: int | None) -> None:
        """Removes a mask."""
        with self._lock:
            known = self._project.store.mask(photo.id, class_id)
            if base is not None:
                self._check(None if known is None else (np.zeros((1, 1), np.bool_), known), base)
            for place in self._project.places(class_id):
                (place / f"{photo.file}.png").unlink(missing_ok=True)
                _remove_empty(place)
            self._project.store.drop_mask(photo.id, class_id)
            self._kept.pop((photo.id, class_id), None)

    def remove_class(self, class_id: int) -> None:
        """Removes all masks of a class."""
        with self._lock:
            for place in self._project.places(class_id):
                if place.is_dir():
                    for path in place.glob("*.png"):
                        path.unlink()
                    _remove_empty(place)
            self._kept.clear()

    def place(self, photo: Photo) -> None:
        """Moves the masks of a photo where they belong, when it has become an example or is one no longer."""
        with self._lock:
            for class_id, known in self._project.store.masks([photo.id])[photo.id].items():
                if class_id in self._project.classes:
                    self._move(photo, class_id, known)

    def check_revisions(self, photo: Photo, base: dict[int, int]) -> None:
        """Raises StaleError where a mask has another revision than the page has."""
        for class_id, revision in base.items():
            known = self._project.store.mask(photo.id, class_id)
            self._check(None if known is None else (np.zeros((1, 1), np.bool_), known), revision)

    def heal(self) -> None:
        """Learns from the files what a process that was killed had no time to note, and what somebody has removed."""
        store = self._project.store
        known = {(mask.photo, mask.class_id): mask for mask in store.every_mask()}
        for class_id in self._project.classes:
            there: dict[str, list[Path]] = {}
            for place in self._project.places(class_id):
                for path in _pngs(place):
                    there.setdefault(path.stem, []).append(path)
            for file, paths in there.items():
                self._heal_one(class_id, file, paths, known)
        for photo, class_id in known:  # those whose file is gone
            store.drop_mask(photo, class_id)

    def _heal_one(self, class_id: int, file: str, paths: list[Path], known: dict[tuple[str, int], Mask]) -> None:
        store = self._project.store
        photo = store.photo_of(file)
        if photo is None:
            return None
        noted = known.pop((photo.id, class_id), None)
        if len(paths) == 1 and noted is not None and paths[0].stat().st_mtime_ns == noted.changed:
            if paths[0] != self.path(photo, class_id, noted):
                self._move(photo, class_id, noted)
            return None
        about = {path: texts(path) for path in paths}
        newest = max(paths, key=lambda path: whole_number(about[path].get(_REVISION)))
        revision = whole_number(about[newest].get(_REVISION))
        if noted is not None and revision == noted.revision:  # copied, or moved by another program
            store.put_mask(replace(noted, changed=newest.stat().st_mtime_ns))
            return self._move(photo, class_id, noted)
        try:
            mask = decoded(newest.read_bytes(), str(newest))
        except (CyctrError, OSError) as error:
            self._project.problems.append(one_line(error))
            return None
        origin: Origin = "found" if about[newest].get(_ORIGIN) == "found" else "person"
        sure, changed = share(about[newest].get(_CONFIDENCE)), newest.stat().st_mtime_ns
        store.at_least(revision)
        made = Mask(photo.id, class_id, origin, store.next_revision(), sure, int(mask.sum()), changed)
        store.put_mask(made)
        if newest.parent.parent.name == MASKS and not photo.example:
            store.update(photo.id, example=1)
            photo = replace(photo, example=True)
        for path in paths:
            if path != newest:
                path.unlink()
        return self._move(photo, class_id, made)

    def _write(self, photo: Photo, class_id: int, mask: Bools, origin: Origin, confidence: float | None) -> Mask:
        """The file first, then the note: what happens between the two is healed by the file."""
        store = self._project.store
        revision, area = store.next_revision(), int(np.count_nonzero(mask))
        made = Mask(photo.id, class_id, origin, revision, confidence, area, 0)
        path = self.path(photo, class_id, made)
        about = {_PHOTO: photo.name, _ORIGIN: origin, _REVISION: str(revision)}
        if confidence is not None:
            about[_CONFIDENCE] = str(confidence)
        try:
            write_atomically(path, encoded(mask, about))
            made = replace(made, changed=path.stat().st_mtime_ns)
        except OSError as error:
            raise FullError(
                f"{path}: cannot be written ({error.strerror}); make room on the disk, it is tried again"
            ) from error
        store.put_mask(made)
        for place in self._project.places(class_id):
            other = place / path.name
            if other != path and other.exists():
                other.unlink()
                _remove_empty(place)
        self._keep(photo.id, class_id, revision, mask)
        return made

    def _there(self, photo: Photo, class_id: int, known: Mask) -> Path | None:
        path = self.path(photo, class_id, known)
        candidates = [path, *(place / path.name for place in self._project.places(class_id))]
        return next((one for one in candidates if one.is_file()), None)

    def _move(self, photo: Photo, class_id: int, known: Mask) -> None:
        there, path = self._there(photo, class_id, known), self.path(photo, class_id, known)
        if there is not None and there != path:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(there, path)
            _remove_empty(there.parent)

    def _check(self, there: tuple[Bools, Mask] | None, base: int) -> None:
        revision = 0 if there is None else there[1].revision
        if base != revision:
            raise StaleError(f"the mask was changed elsewhere (revision {revision}, the page has {base})", revision=revision)

    def _keep(self, photo: str, class_id: int, revision: int, mask: Bools) -> None:
        self._kept[photo, class_id] = (revision, mask)
        self._kept.move_to_end((photo, class_id))
        while len(self._kept) > 1 and sum(one.nbytes for _, one in self._kept.values()) > _REMEMBERED:
            self._kept.popitem(last=False)


def encoded(mask: Bools, about: dict[str, str] | None = None) -> bytes:
    """A grey PNG of 0 and 255, with texts in it."""
    info = PngInfo()
    for name, text in (about or {}).items():
        info.add_itxt(name, text)
    content = io.BytesIO()
    Image.fromarray(mask.view(np.uint8) * np.uint8(255)).save(content, "PNG", pnginfo=info, compress_level=_QUICK)
    return content.getvalue()


def decoded(content: bytes, name: str, size: tuple[int, int] | None = None) -> Bools:
    """The mask in a PNG: grey or colour of 0 and 255 only, opaque.

    Args:
        content: of the file.
        name: what a message calls it.
        size: (height, width) that it must have.

    Raises:
        DataError: it is something else.
    """
    try:
        with PngImageFile(io.BytesIO(content)) as image:
            if image.width * image.height > IMAGE_PIXELS:
                raise TooLargeError(f"{name}: has {image.width * image.height:,} pixels; expected at most {IMAGE_PIXELS:,}")
            if size is not None and (image.height, image.width) != size:
                raise RefusedError(f"{name}: is {image.width} x {image.height}; expected {size[1]} x {size[0]}")
            if image.mode not in ("1", "L", "RGB", "RGBA"):
                raise RefusedError(f"{name}: holds {image.mode} pixels; expected grey of 0 and 255")
            values = np.asarray(image.convert("L") if image.mode == "1" else image)
    except RefusedError:
        raise
    except (OSError, SyntaxError, ValueError, struct.error, zlib.error, Image.DecompressionBombError) as error:
        raise RefusedError(f"{name}: is no PNG, or damaged ({error!s:.80}); expected a grey PNG of 0 and 255") from error
    if values.ndim == 3:
        if values.shape[2] == 4 and (values[..., 3] != 255).any():
            raise RefusedError(f"{name}: is transparent in places; expected grey of 0 and 255")
        if (values[..., :3] != values[..., :1]).any():
            raise RefusedError(f"{name}: holds colours; expected grey of 0 and 255")
        values = values[..., 0]
    mask = values == 255
    if not (mask | (values == 0)).all():
        raise RefusedError(f"{name}: holds the value {int(values[~mask].max())}; expected 0 and 255")
    return mask


def texts(path: Path) -> dict[str, str]:
    """The texts in a mask's file, read without its pixels; none of a file that is no PNG."""
    with path.open("rb") as file:
        return dict(_texts(file.read(_HEADER)))


def _texts(content: bytes) -> Iterator[tuple[str, str]]:
    place = 8
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"IDAT":
            return
        if kind == b"iTXt":
            name, _, rest = content[place + 8 : place + 8 + length].partition(b"\0")
            parts = rest[2:].split(b"\0", 2)
            if len(parts) == 3:
                yield name.decode("latin-1"), parts[2].decode(errors="replace")
        place += length + 12


def _pngs(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if path.suffix == ".png" and path.name[0] != "." and path.is_file()]


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # others are in it
        return
