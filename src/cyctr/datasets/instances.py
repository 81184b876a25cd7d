"""An instances JSON of COCO's format -> its masks, drawn: read and checked once, then kept in the user's cache."""

import importlib
import json
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr import json_files
from cyctr.datasets.coco_json import MarkedImage, Shape, read_marks, shapes_of, uncompressed
from cyctr.datasets.dataset import OnProgress
from cyctr.datasets.derived import Arrays, cache_file, cached_arrays
from cyctr.datasets.index import Index, Integers, fingerprint
from cyctr.errors import DataError
from cyctr.limits import JSON_GROWTH
from cyctr.types import IGNORE, Pixels

_FORMAT = 2  # files of earlier versions may name images outside the folder
_ARRAYS = ("sizes", "image", "number", "pixels", "bounds", "runs")


@dataclass(frozen=True, eq=False)
class Content:
    """What a JSON says, with its masks drawn.

    Attributes:
        names: of the classes.
        files: of the n images, with / between folders.
        problems: why something was left out.
        sizes: (n, 2) height and width of each image.
        image: (P,) the image of each (image, class) pair, increasing.
        number: (P,) its class, increasing within an image.
        pixels: (P,) how many pixels its instances cover; 0 where there is only a crowd.
        bounds: (P, 3) its instances are `runs` from the first to the second, its crowds from the second to the third.
        runs: compressed RLE.
    """

    names: tuple[str, ...]
    files: tuple[str, ...]
    problems: tuple[str, ...]
    sizes: Integers
    image: Integers
    number: Integers
    pixels: Integers
    bounds: Integers
    runs: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        images: Sequence["MarkedImage"],
        pairs: Sequence[tuple[int, int, int, bytes, bytes]],
        problems: Sequence[str],
    ) -> "Content":
        """The content of images in order, and of (image, class, pixels, instances, crowds) in order."""
        table = np.array([pair[:3] for pair in pairs], np.int64).reshape(-1, 3)
        lengths = np.array([(len(instances), len(crowds)) for *_, instances, crowds in pairs], np.int64).reshape(-1, 2)
        ends = lengths.cumsum().reshape(-1, 2)
        return cls(
            tuple(names),
            tuple(image.file for image in images),
            tuple(problems),
            np.array([image.size for image in images], np.int64).reshape(-1, 2),
            table[:, 0],
            table[:, 1],
            table[:, 2],
            np.column_stack((ends[:, 0] - lengths[:, 0], ends)),
            np.frombuffer(b"".join(part for pair in pairs for part in pair[3:]), np.uint8),
        )

    @classmethod
    def unpacked(cls, arrays: Arrays) -> "Content":
        """The content that `packed` has made these arrays of."""
        names, files, problems = map(tuple, json_files.parse(arrays["texts"].tobytes()))
        return cls(names, files, problems, *(arrays[part] for part in _ARRAYS))

    def packed(self) -> Arrays:
        """All of it as arrays, the texts in one."""
        texts = json.dumps((self.names, self.files, self.problems)).encode()
        return {"texts": np.frombuffer(texts, np.uint8)} | {part: getattr(self, part) for part in _ARRAYS}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(posixpath.splitext(file)[0] for file in self.files)

    @cached_property
    def index(self) -> Index:
        some = self.pixels > 0
        return Index(self.sizes, self.image[some], self.number[some], self.pixels[some])

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where only a crowd of it is, 0 elsewhere."""
        i = range(len(self.files))[i]
        height, width = self.sizes[i].tolist()
        label = np.zeros((height, width), np.uint8)
        first_row, end_row = np.searchsorted(self.image, (i, i + 1)).tolist()
        for row in first_row + np.flatnonzero(self.number[first_row:end_row] == number):
            start, middle, end = self.bounds[row].tolist()
            for first, last, value in ((middle, end, IGNORE), (start, middle, 1)):
                if first < last:
                    runs = uncompressed(self.runs[first:last])
                    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
                    np.copyto(label, value, where=inside)
        return label

    def only(self, wanted: NDArray[np.bool_]) -> "Content":
        """The same of some of the images."""
        if wanted.all():
            return self
        kept = wanted[self.image]
        return replace(
            self,
            files=tuple(file for file, stays in zip(self.files, wanted.tolist(), strict=True) if stays),
            sizes=self.sizes[wanted],
            image=(wanted.cumsum() - 1)[self.image[kept]],
            number=self.number[kept],
            pixels=self.pixels[kept],
            bounds=self.bounds[kept],
        )


def read_json(path: Path, name: str, progress: OnProgress | None) -> Content:
    """The content of a JSON: from the cache if the file is still the same, else read, and kept for the next time."""
    try:
        key = fingerprint("coco", _FORMAT, files=[path])
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a COCO instances JSON") from error
    title = re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    kept = cache_file("coco", str(path.resolve()), f"{title}-")
    return Content.unpacked(cached_arrays(kept, key, ("texts", *_ARRAYS), lambda: _compile(path, progress).packed()))


def _compile(path: Path, progress: OnProgress | None) -> Content:
    """Draws all masks of a JSON, those of one class in one image as one."""
    masks = _drawing()
    names, marked, problems = read_marks(_parse(path), path)
    kept: list[MarkedImage] = []
    pairs: list[tuple[int, int, int, bytes, bytes]] = []
    for done, picture in enumerate(marked, 1):
        shapes: dict[int, tuple[list[Shape], list[Shape]]] = {}
        for title, number, crowd, outline in picture.marks:
            try:
                found = shapes_of(outline, picture.size)
            except DataError as error:
                problems.append(f"{title}, in {picture.file}, {error}")
            else:
                shapes.setdefault(number, ([], []))[crowd].extend(found)
        picture.marks.clear()
        for number, (instances, crowds) in sorted(shapes.items()):
            pixels, drawn = _draw(masks, instances, picture.size)
            pairs.append((len(kept), number, pixels, drawn, _draw(masks, crowds, picture.size)[1]))
        if shapes:
            kept.append(picture)
        if progress is not None and (done % 64 == 0 or done == len(marked)):
            progress(done, len(marked))
    return Content.of(names, kept, pairs, problems)


def _parse(path: Path) -> dict[str, Any]:
    remedy = "expected a COCO instances JSON: export or download it again"
    try:
        document = json_files.read(path, growth=JSON_GROWTH)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a COCO instances JSON") from error
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({str(error)[:100]}); {remedy}") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: holds a {type(document).__name__}, not an object; {remedy}")
    for part in ("images", "annotations", "categories"):
        if not isinstance(document.get(part), list):
            raise DataError(f"{path}: has no list {part!r}; {remedy}")
    return document


def _draw(masks: Any, shapes: list[Shape], size: tuple[int, int]) -> tuple[int, bytes]:
    """How many pixels the union of shapes covers, and its compressed RLE; nothing of no shapes."""
    if not shapes:
        return 0, b""
    polygons = [shape for shape in shapes if isinstance(shape, list)]
    drawn = masks.frPyObjects(polygons, *size) if polygons else []
    drawn += [masks.frPyObjects(shape, *size) for shape in shapes if isinstance(shape, dict)]
    union = masks.merge(drawn) if len(drawn) > 1 else drawn[0]
    return int(masks.area(union)), union["counts"]


def _drawing() -> Any:
    """The functions of pycocotools that draw masks."""
    try:
        return importlib.import_module("pycocotools.mask")
    except ImportError as error:
        raise DataError("pycocotools is not installed, and it draws the masks of COCO; run: pip install pycocotools") from error
