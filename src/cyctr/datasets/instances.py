"""An instances JSON of COCO's format -> its masks, drawn: read and checked once, then kept in the user's cache."""

import importlib
import json
import math
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr import json_files
from cyctr.datasets.dataset import OnProgress
from cyctr.datasets.derived import Arrays, cache_file, cached_arrays
from cyctr.datasets.index import Index, Integers, fingerprint
from cyctr.errors import DataError
from cyctr.limits import IMAGE_PIXELS, check_outline
from cyctr.types import IGNORE, Pixels

_FORMAT = 2  # what is kept of earlier versions may name files outside the folder
_FARTHEST = 1e6  # a polygon is walked in steps of a fifth of a pixel, so a point far outside would take forever
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
        images: Sequence["Picture"],
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
        """The content of which these are the arrays."""
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
                    runs = _uncompressed(self.runs[first:last])
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


@dataclass(slots=True)
class Picture:
    """An image of the JSON: its file, its (height, width), and what is marked in it: (title, class, is a crowd, outline)."""

    file: str
    size: tuple[int, int]
    marks: list[tuple[str, int, bool, Any]] = field(default_factory=list)


Shape = list[float] | dict[str, Any]


def _compile(path: Path, progress: OnProgress | None) -> Content:
    """Draws all masks of a JSON, those of one class in one image as one."""
    masks = _drawing()
    names, marked, problems = read_marks(_parse(path))
    kept: list[Picture] = []
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


def read_marks(document: dict[str, Any]) -> tuple[list[str], list[Picture], list[str]]:
    """The names of the classes, the images in which something is marked, by id, and why things were left out.

    Args:
        document: has the lists images, annotations and categories; the second is taken out, for it may fill the memory.
    """
    problems: list[str] = []
    names, numbers = _read_categories(document["categories"], problems)
    pictures = _read_images(document["images"], problems)
    _assign(document.pop("annotations"), numbers, pictures, problems)
    marked = [picture for _, picture in sorted(pictures.items()) if picture is not None and picture.marks]
    return names, marked, problems


def _parse(path: Path) -> dict[str, Any]:
    remedy = "expected a COCO instances JSON: export or download it again"
    try:
        document = json_files.read(path)
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


def _read_categories(listed: list[Any], problems: list[str]) -> tuple[list[str], dict[int, int | None]]:
    """The names by category id, and the number of each id; None for one that was left out."""
    numbers: dict[int, int | None] = {}
    ids: dict[str, int] = {}
    for place, category in enumerate(listed):
        number, name = (category.get("id"), category.get("name")) if isinstance(category, dict) else (None, None)
        if type(number) is not int or not isinstance(name, str) or not name:
            problems.append(
                f"categories[{place}] has the id {number!r:.40} and the name {name!r:.40}; expected a whole number and a text"
            )
            continue
        if number in numbers:
            problems.append(f"category {number} is listed twice; give {name} another id")
            continue
        numbers[number] = None
        if name in ids:
            problems.append(f"categories {ids[name]} and {number} are both called {name}; rename one, or merge them")
        else:
            ids[name] = number
    names = sorted(ids, key=lambda name: ids[name])
    return names, numbers | {ids[name]: number for number, name in enumerate(names)}


def _read_images(listed: list[Any], problems: list[str]) -> dict[int, Picture | None]:
    """The images by id; None for one that was left out."""
    pictures: dict[int, Picture | None] = {}
    ids: dict[str, int] = {}
    for place, image in enumerate(listed):
        known = image if isinstance(image, dict) else {}
        number, file, height, width = (known.get(part) for part in ("id", "file_name", "height", "width"))
        if type(number) is not int or not isinstance(file, str) or not file:
            problems.append(
                f"images[{place}] has the id {number!r:.40} and the file_name {file!r:.40}; expected a whole number and a text"
            )
            continue
        if number in pictures:
            problems.append(f"image {number} is listed twice; give {file} another id")
            continue
        pictures[number] = None
        file = _inside(file)
        key = posixpath.splitext(file)[0]
        if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > IMAGE_PIXELS:
            problems.append(
                f"image {number}, {file}, is {height!r:.40} x {width!r:.40} (height x width); "
                f"expected whole numbers, and at most {IMAGE_PIXELS} pixels: correct its size"
            )
        elif key in ids:
            problems.append(f"images {ids[key]} and {number} are both called {key}; rename or remove one")
        else:
            ids[key] = number
            pictures[number] = Picture(file, (height, width))
    return pictures


def _inside(file: str) -> str:
    """A file's name as a path that stays in the folder of the images: of one that leads out of it, the last part."""
    path = posixpath.normpath(file.replace("\\", "/"))
    leads_out = path.startswith(("/", "../")) or PureWindowsPath(path).drive
    return path.rpartition("/")[2] if leads_out else path


def _assign(
    annotations: list[Any], numbers: dict[int, int | None], pictures: dict[int, Picture | None], problems: list[str]
) -> None:
    """Hands each annotation to its image; those of what was left out go with it."""
    for place, annotation in enumerate(annotations):
        if not isinstance(annotation, dict):
            problems.append(f"annotations[{place}] is {annotation!r:.40}; expected an object")
            continue
        title = f"annotation {annotation['id']!r:.40}" if "id" in annotation else f"annotations[{place}]"
        image, category = annotation.get("image_id"), annotation.get("category_id")
        if type(image) is not int or image not in pictures:
            problems.append(f"{title} is for image {image!r:.40}, which is not listed; remove it, or list the image")
        elif type(category) is not int or category not in numbers:
            problems.append(f"{title} has category {category!r:.40}, which is not listed; remove it, or list the category")
        else:
            picture, number = pictures[image], numbers[category]
            if picture is not None and number is not None:
                crowd = bool(annotation.get("iscrowd"))
                picture.marks.append((title, number, crowd, annotation.get("segmentation")))


def shapes_of(outline: object, size: tuple[int, int]) -> list[Shape]:
    """The polygons of an annotation, or its one RLE, fit to be drawn."""
    if isinstance(outline, dict):
        return [_shape_of_rle(outline, size)]
    if not isinstance(outline, list) or not outline:
        raise DataError("has no segmentation; expected polygons or RLE: outline the object, or remove the annotation")
    for polygon in outline:
        _check_polygon(polygon)
    return outline


def _check_polygon(polygon: object) -> None:
    remedy = "expected x, y of 3 points or more: draw it again, or remove it"
    if not isinstance(polygon, list):
        raise DataError(f"has a polygon that is {polygon!r:.40}, not a list; {remedy}")
    if len(polygon) < 6 or len(polygon) % 2:
        raise DataError(f"has a polygon of {len(polygon)} numbers; {remedy}")
    try:
        fine = math.isfinite(sum(polygon)) and min(polygon) >= -_FARTHEST and max(polygon) <= _FARTHEST
    except (TypeError, OverflowError):
        fine = False
    if not fine:
        strange = next((x for x in polygon if not isinstance(x, int | float) or not abs(x) <= _FARTHEST), None)
        raise DataError(f"has a polygon with {strange!r:.40} among its numbers; {remedy}")
    check_outline(np.array(polygon, np.float64).reshape(-1, 2))


def _shape_of_rle(outline: dict[str, Any], size: tuple[int, int]) -> Shape:
    """An RLE as pycocotools needs it: it neither checks the runs nor bears empty ones, and writes where they lead it."""
    remedy = "export it again, or remove it"
    given = outline.get("size")
    if given != list(size):
        found = f"{given[0]} x {given[1]}" if isinstance(given, list) and len(given) == 2 else f"{given!r:.40}"
        raise DataError(f"has an RLE of size {found}, but the image is {size[0]} x {size[1]} (height x width); {remedy}")
    counts = outline.get("counts")
    try:
        if isinstance(counts, str):
            runs = _uncompressed(np.frombuffer(counts.encode("ascii"), np.uint8))
        elif isinstance(counts, list) and all(type(count) is int for count in counts):
            runs = np.array(counts, np.int64)
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise DataError(f"has an RLE whose counts cannot be read ({counts!r:.20}); {remedy}") from None
    total = size[0] * size[1]
    if (runs < 0).any() or runs.sum() != total:
        raise DataError(f"has an RLE whose counts do not add up to the {total} pixels of the image; {remedy}")
    if not runs[1:].all():  # two changes at one place are none
        changes, times = np.unique(runs.cumsum()[:-1], return_counts=True)
        changes = changes[(times % 2 == 1) & (changes < total)]
        runs = np.diff(changes, prepend=0, append=total)
    return {"size": list(size), "counts": runs}


def _uncompressed(text: NDArray[np.uint8]) -> Integers:
    """The runs of a compressed RLE: 5 bits a character, low ones first; from the 4th run on, what the last but one lacks."""
    codes = text.astype(np.int64) - 48
    if not codes.size or codes.min() < 0 or codes.max() > 63 or codes[-1] & 32:
        raise ValueError
    ends = np.flatnonzero(codes & 32 == 0)
    starts = np.append(0, ends[:-1] + 1)
    place = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 6:  # beyond 2^34
        raise ValueError
    runs: Integers = np.add.reduceat((codes & 31) << 5 * place, starts)
    runs -= (codes[ends] & 16 != 0) * (1 << 5 * (place[ends] + 1))
    runs[1::2] = runs[1::2].cumsum()
    runs[2::2] = runs[2::2].cumsum()
    return runs


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
