"""The lists of a COCO JSON -> the marked images, checked, and a line for each entry that was left out."""

import math
import posixpath
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.datasets.index import Integers
from cyctr.errors import DataError
from cyctr.limits import IMAGE_PIXELS, PROBLEMS, REACH, WRONG, check_outline


@dataclass(slots=True)
class MarkedImage:
    """An image of the JSON: its file, its (height, width), and its marks as (title, class, is a crowd, outline)."""

    file: str
    size: tuple[int, int]
    marks: list[tuple[str, int, bool, Any]] = field(default_factory=list)


Shape = list[float] | dict[str, Any]


class Problems(list[str]):
    """What is wrong with entries of a JSON: the first of them, since one may be made of nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._wrong = path, 0

    def append(self, problem: str) -> None:
        self._wrong += 1
        if self._wrong > WRONG:
            raise DataError(f"{self._path}: has more than {WRONG:,} wrong entries, such as: {self[0]}; export it again")
        if self._wrong <= PROBLEMS:
            super().append(problem)
        elif self._wrong == PROBLEMS + 1:
            super().append(f"more than {PROBLEMS:,} entries are wrong; the others are not told")


def read_marks(document: dict[str, Any], path: Path) -> tuple[list[str], list[MarkedImage], list[str]]:
    """The names of the classes, the images in which something is marked, by id, and why things were left out.

    Args:
        document: has the lists images, annotations and categories; the second is taken out, for it may fill the memory.
        path: of the JSON.
    """
    problems = Problems(path)
    names, numbers = _read_categories(document["categories"], problems)
    pictures = _read_images(document["images"], problems)
    _assign(document.pop("annotations"), numbers, pictures, problems)
    marked = [picture for _, picture in sorted(pictures.items()) if picture is not None and picture.marks]
    return names, marked, problems


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


def _read_images(listed: list[Any], problems: list[str]) -> dict[int, MarkedImage | None]:
    """The images by id; None for one that was left out."""
    pictures: dict[int, MarkedImage | None] = {}
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
            pictures[number] = MarkedImage(file, (height, width))
    return pictures


def _inside(file: str) -> str:
    """A file's name as a path that stays in the folder of the images: of one that leads out of it, the last part."""
    path = posixpath.normpath(file.replace("\\", "/"))
    leads_out = path.startswith(("/", "../")) or PureWindowsPath(path).drive
    return path.rpartition("/")[2] if leads_out else path


def _assign(
    annotations: list[Any], numbers: dict[int, int | None], pictures: dict[int, MarkedImage | None], problems: list[str]
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
        _check_polygon(polygon, REACH * max(size))
    return outline


def _check_polygon(polygon: object, farthest: int) -> None:
    """Raises DataError for what is no outline; it is drawn in steps, so one far outside of its image would take forever."""
    remedy = "expected x, y of 3 points or more: draw it again, or remove it"
    if not isinstance(polygon, list):
        raise DataError(f"has a polygon that is {polygon!r:.40}, not a list; {remedy}")
    if len(polygon) < 6 or len(polygon) % 2:
        raise DataError(f"has a polygon of {len(polygon)} numbers; {remedy}")
    try:
        fine = math.isfinite(sum(polygon)) and min(polygon) >= -farthest and max(polygon) <= farthest
    except (TypeError, OverflowError):
        fine = False
    if not fine:
        strange = next((x for x in polygon if not isinstance(x, int | float) or not abs(x) <= farthest), None)
        raise DataError(
            f"has a polygon with {strange!r:.40} among its numbers; expected pixels from {-farthest} to {farthest}, "
            "twice the longer side: draw it again, or remove it"
        )
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
            runs = uncompressed(np.frombuffer(counts.encode("ascii"), np.uint8))
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


def uncompressed(text: NDArray[np.uint8]) -> Integers:
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
