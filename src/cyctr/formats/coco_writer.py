"""Masks as one JSON in COCO's format, put together from a record of each image: a run may stop and go on."""

import importlib
import json
import posixpath
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from cyctr import json_files
from cyctr.errors import ConfigError, DataError
from cyctr.formats.contours import contours
from cyctr.formats.writing import Found, by_class, check_key, size_of, unwritable
from cyctr.storage import write_pieces_atomically
from cyctr.words import listed, one_line

RECORDS, ANNOTATIONS = ".coco.jsonl", "annotations.json"
_FORMAT = 1

Mask = NDArray[np.bool_]


class CocoWriter:
    """annotations.json with the outline of each class in each image; until `finish` a line for each image in .coco.jsonl.

    An outline is a compressed RLE, which is exact, or a list of polygons, which cannot express holes: they are filled.
    Nothing is kept in memory but the names of the images and where their lines begin.

    Args:
        folder: where.
        classes: their ids count from 1.
        instances: an annotation for each connected region instead of one for each class; pixels that touch in a corner
            are connected.
        polygons: instead of RLE.
    """

    shared: tuple[str, ...] = (ANNOTATIONS, RECORDS)
    writes_probabilities: bool = False

    def __init__(self, folder: Path, classes: Sequence[str], instances: bool, polygons: bool) -> None:
        self._folder, self._classes = folder, classes
        self._instances, self._polygons = instances, polygons
        self._rle = None if polygons else _run_lengths()
        self._lock = threading.Lock()
        self._starts: dict[str, int] = {}
        self._end = 0
        self._read()

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        height, width = size_of(key, image, chosen)
        record = {
            "key": check_key(key),
            "file_name": key if image is None else posixpath.join(posixpath.dirname(key), image.name),
            "height": height,
            "width": width,
            "annotations": [annotation for one in chosen.values() for annotation in self._annotations(one)],
        }
        with self._lock:
            self._append(key, record)
        return [RECORDS]

    def done(self, key: str) -> bool:
        return check_key(key) in self._starts

    def finish(self) -> list[str]:
        path = self._folder / ANNOTATIONS
        try:
            with self._lock:
                write_pieces_atomically(path, self._document())
        except OSError as error:
            raise unwritable(path, error) from error
        return [ANNOTATIONS]

    def _annotations(self, found: Found) -> Iterator[dict[str, Any]]:
        for mask, (top, left) in self._pieces(found.mask):
            height, width = mask.shape
            yield {
                "category_id": self._classes.index(found.name) + 1,
                "segmentation": self._outline(mask, (top, left), found.mask.shape),
                "bbox": [left, top, width, height],
                "area": int(np.count_nonzero(mask)),
                "iscrowd": 0,
                "score": float(found.confidence),
            }

    def _pieces(self, mask: Mask) -> Iterator[tuple[Mask, tuple[int, int]]]:
        """The mask cut to what it covers, or its connected regions; each with the row and column where it begins."""
        rows, columns = (np.flatnonzero(mask.any(axis)).tolist() for axis in (1, 0))
        if not rows:
            return
        top, left = rows[0], columns[0]
        cut = mask[top : rows[-1] + 1, left : columns[-1] + 1]
        if not self._instances:
            yield cut, (top, left)
            return
        numbers, _ = ndimage.label(cut, np.ones((3, 3)))
        for number, (vertical, horizontal) in enumerate(ndimage.find_objects(numbers), 1):
            yield numbers[vertical, horizontal] == number, (top + vertical.start, left + horizontal.start)

    def _outline(self, mask: Mask, corner: tuple[int, int], size: tuple[int, ...]) -> dict[str, Any] | list[list[int]]:
        if self._rle is None:
            return [(ring + np.array(corner[::-1])).ravel().tolist() for ring in contours(mask)]
        height, width = size
        packed = self._rle.frPyObjects({"counts": _runs(mask, corner, (height, width)), "size": [height, width]}, height, width)
        return {"size": [height, width], "counts": packed["counts"].decode()}

    def _read(self) -> None:
        """Learns what an earlier run has written: all lines that are whole."""
        path = self._folder / RECORDS
        try:
            lines = json_files.read_lines(path)
            first, header = next(lines, (b"", None))
            if not first.endswith(b"\n"):  # it ended before it began
                return
            self._check(header if isinstance(header, dict) else {})
            self._end = end = len(first)
            for line, value in lines:
                start, end = end, end + len(line)
                if not line.endswith(b"\n"):  # a piece of a long line, or one that was cut off
                    continue
                if (record := _record(value)) is not None:
                    self._starts[record["key"]] = start
                self._end = end
        except FileNotFoundError:
            if (self._folder / ANNOTATIONS).exists():
                raise DataError(
                    f"{one_line(self._folder / ANNOTATIONS)}: is there, and it would be replaced; "
                    "choose another place, or move it away"
                ) from None
        except OSError as error:
            raise DataError(f"{one_line(path)}: cannot be read ({error.strerror}); choose another place") from error

    def _check(self, header: dict[str, Any]) -> None:
        """Refuses to go on with what was written in another way."""
        path = one_line(self._folder / RECORDS)
        remedy = "choose another place, or remove the file"
        if header.get("format") != _FORMAT:
            raise DataError(f"{path}: does not begin like a record of images; {remedy}")
        if header.get("classes") != list(self._classes):
            raise DataError(
                f"{path}: is of the classes {_earlier(header)}; expected those of this run in the same order: {remedy}"
            )
        for choice, now in (("instances", self._instances), ("polygons", self._polygons)):
            if header.get(choice) != now:
                raise DataError(
                    f"{path}: was begun {'with' if header.get(choice) else 'without'} {choice}; do the same, or {remedy}"
                )

    def _append(self, key: str, record: dict[str, Any]) -> None:
        path = self._folder / RECORDS
        line = json_files.sealed([record])
        try:
            if not self._end:
                self._folder.mkdir(parents=True, exist_ok=True)
                path.touch()
            with path.open("r+b") as file:
                file.truncate(self._end)  # of a line that an earlier run did not complete
                file.seek(self._end)
                header = b"" if self._end else f"{json.dumps(self._header())}\n".encode()
                file.write(header + line)
        except OSError as error:
            raise unwritable(path, error) from error
        self._starts[key] = self._end + len(header)
        self._end += len(header) + len(line)

    def _header(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "classes": list(self._classes),
            "instances": self._instances,
            "polygons": self._polygons,
        }

    def _document(self) -> Iterator[bytes]:
        """annotations.json in pieces. Ids count from 1, the images by key: they do not depend on the order of the run."""
        categories = [{"id": number, "name": name, "supercategory": ""} for number, name in enumerate(self._classes, 1)]
        start = {"info": {"description": "Masks found by cyctr"}, "licenses": [], "categories": categories}
        yield json.dumps(start)[:-1].encode()
        yield b', "images": ['
        yield from _joined(
            {"id": number, **{part: record[part] for part in ("file_name", "height", "width")}}
            for number, record in enumerate(self._records(), 1)
        )
        yield b'], "annotations": ['
        yield from _joined(self._numbered())
        yield b"]}\n"

    def _numbered(self) -> Iterator[dict[str, Any]]:
        number = 0
        for image, record in enumerate(self._records(), 1):
            for annotation in record["annotations"]:
                number += 1
                yield {"id": number, "image_id": image, **annotation}

    def _records(self) -> Iterator[dict[str, Any]]:
        if not self._starts:
            return
        with (self._folder / RECORDS).open("rb") as file:
            for key in sorted(self._starts):
                file.seek(self._starts[key])
                record = _record(json_files.parse_line(file.readline()))
                if record is None:
                    raise DataError(f"{one_line(self._folder / RECORDS)}: was changed while it was read; run the command again")
                yield record


def _runs(mask: Mask, corner: tuple[int, int], size: tuple[int, int]) -> list[int]:
    """Lengths of the runs outside and inside, in turn, down the columns of an image that shows a mask at a corner of it."""
    turns = np.diff(np.pad(mask.T, ((0, 0), (1, 1))).view(np.int8), axis=1)  # (w, h + 1) 1 before a run, -1 after it
    starts, ends = (
        (corner[1] + columns) * size[0] + corner[0] + rows for columns, rows in (np.nonzero(turns == turn) for turn in (1, -1))
    )
    apart = starts[1:] > ends[:-1]  # one that reaches the bottom may go on at the top
    bounds = np.column_stack((starts[np.append(True, apart)], ends[np.append(apart, True)])).ravel()
    runs = np.diff(bounds, prepend=0, append=size[0] * size[1]).tolist()
    return runs if runs[-1] else runs[:-1]


def _joined(values: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """The members of a list in JSON, one on a line."""
    between = "\n"
    for value in values:
        yield f"{between}{json.dumps(value)}".encode()
        between = ",\n"


def _earlier(header: dict[str, Any]) -> str:
    classes = header.get("classes")
    return listed([one_line(name) for name in classes]) if isinstance(classes, list) else "unknown"


def _record(value: Any) -> dict[str, Any] | None:
    """What the value of a line says of an image; none where it is damaged. Lines of earlier versions have no checksum."""
    values = [value] if isinstance(value, dict) else json_files.unsealed(value, 1)
    match values:
        case [{"key": str(), "file_name": str(), "height": int(), "width": int(), "annotations": list(annotations)}]:
            return values[0] if all(isinstance(one, dict) for one in annotations) else None
    return None


def _run_lengths() -> Any:
    try:
        return importlib.import_module("pycocotools.mask")
    except ImportError as error:
        need = 'pycocotools is not installed, and it packs the masks of COCO; run: pip install "cyctr[coco]"'
        raise ConfigError(need) from error
