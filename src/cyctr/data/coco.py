"""COCO-20^i, and any other COCO export: the masks of an instances JSON, drawn once, then kept in the user's cache."""

import hashlib
import importlib
import io
import json
import math
import os
import posixpath
import re
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cyctr.data import folds
from cyctr.data.dataset import Complain, Dataset, Pixels, Progress, Split, refuse
from cyctr.data.index import Index, Integers, Survey, fingerprint, survey_all
from cyctr.errors import DataError
from cyctr.imaging import LARGEST, image_size, read_image
from cyctr.storage import cache_folder, write_atomically
from cyctr.types import IGNORE

CLASSES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
    *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone"),
    *("microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear"),
    *("hair drier", "toothbrush"),
)
SMALLEST = 2 * 32 * 32
YEARS = (2014, 2017)

_FORMAT = 1
_FARTHEST = 1e6  # a polygon is walked in steps of a fifth of a pixel, so a point far outside would take forever
_TEXTS = ("names", "files", "problems")
_ARRAYS = ("sizes", "image", "number", "pixels", "bounds", "runs")
_READING = threading.Lock()


class CocoPool:
    """The annotated images of an instances JSON, by image id; an image without annotations is not in the list.

    Opening costs nothing: the JSON is read where a key, a label or the index is first asked for, and compiled into a file
    in the user's cache that later openings read instead. What is wrong with it, and which images are missing, is told then,
    once: to `index`'s `complain` if that asked first and goes on, else to the pool's own.
    """

    def __init__(
        self, annotations: Path, images: Path, name: str, complain: Complain = refuse, classes: tuple[str, ...] | None = None
    ) -> None:
        """A pool that reads nothing yet.

        Args:
            annotations: the JSON.
            images: the folder that its file names start from.
            name: what the file in the cache is called, so that people can tell it from others.
            complain: told of each problem.
            classes: the names that the categories must have; None takes any.
        """
        self.annotations, self.images = annotations, images
        self._name, self._complain, self._expected = name, complain, classes
        self._content: _Content | None = None

    def classes(self, progress: Progress | None = None) -> tuple[str, ...]:
        """The names of the JSON's categories, by category id; a class's number is its place here."""
        return self._read(progress).names

    @property
    def keys(self) -> Sequence[str]:
        """A name for each image, in list order: its file name without the ending."""
        return self._read().keys

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        pixels = read_image(self._path(i))
        self._check_size(i, (pixels.shape[0], pixels.shape[1]))
        return pixels

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where only a crowd of it is, 0 elsewhere."""
        content = self._read()
        height, width = content.sizes[i].tolist()
        rows = content.rows(i)
        label = np.zeros((height, width), np.uint8)
        for row in rows.start + np.flatnonzero(content.number[rows] == number):
            start, middle, end = content.bounds[row].tolist()
            for first, last, value in ((middle, end, IGNORE), (start, middle, 1)):
                if first < last:
                    runs = _uncompressed(content.runs[first:last])
                    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T
                    np.copyto(label, value, where=inside)
        return label

    def index(self, progress: Progress | None = None, complain: Complain = refuse) -> Index:
        """Which class covers how many pixels of which image; a `complain` that goes on also has all image sizes checked."""
        content = self._read(progress, complain)
        if complain is refuse:
            return content.index

        def survey(i: int) -> Survey:
            self._check_size(i, image_size(self._path(i)))
            rows = content.rows(i)
            height, width = content.sizes[i].tolist()
            return Survey((height, width), dict(zip(content.number[rows].tolist(), content.pixels[rows].tolist(), strict=True)))

        return survey_all(len(content.files), survey, progress, complain)

    def _path(self, i: int) -> Path:
        return self.images / self._read().files[i]

    def _check_size(self, i: int, size: tuple[int, int]) -> None:
        height, width = self._read().sizes[i].tolist()
        if size != (height, width):
            raise DataError(
                f"{self._path(i)}: image is {size[0]} x {size[1]}, {self.annotations.name} says {height} x {width} "
                "(height x width); put the image there that was annotated, or export the annotations again"
            )

    def _read(self, progress: Progress | None = None, complain: Complain = refuse) -> "_Content":
        if self._content is None:
            with _READING:
                if self._content is None:
                    self._content = self._open(progress, self._complain if complain is refuse else complain)
        return self._content

    def _open(self, progress: Progress | None, complain: Complain) -> "_Content":
        try:
            if self.annotations.exists() and not self.images.is_dir():
                raise DataError(
                    f"{self.images}: no such folder; expected the images that {self.annotations.name} names: put them there"
                )
            content = _compiled(self.annotations, self._name, progress)
            if self._expected is not None and content.names != self._expected:
                raise DataError(
                    f"{self.annotations}: its {len(content.names)} categories are not COCO's {len(self._expected)}; "
                    "download COCO's annotations, or open these as a dataset of your own"
                )
        except DataError as error:
            complain(str(error))
            return _Content.of([], [], [], [])
        for problem in content.problems:
            complain(f"{self.annotations}: {problem}")
        if not content.files and not content.problems:
            complain(f"{self.annotations}: holds no annotation; expected objects outlined by polygons or RLE: export them too")
        return content.only(self._present(content, complain))

    def _present(self, content: "_Content", complain: Complain) -> NDArray[np.bool_]:
        """Which files exist: each folder is listed once, as asking for every file takes long on a network drive."""
        listings: dict[str, set[str]] = {}
        present = np.ones(len(content.files), bool)
        for i, file in enumerate(content.files):
            folder, name = posixpath.split(file)
            if folder not in listings:
                try:
                    listings[folder] = set(os.listdir(self.images / folder))
                except (OSError, ValueError):  # a name no system has
                    listings[folder] = set()
            if name not in listings[folder]:
                present[i] = False
                complain(f"{self.images / file}: no such file, but {self.annotations.name} names it; add it, or mend the JSON")
        return present


def open_coco(
    root: Path,
    year: int | None = None,
    split: Literal["interleaved", "contiguous"] = "interleaved",
    complain: Complain = refuse,
) -> Dataset:
    """COCO-20^i of a COCO folder; each JSON is read when its pool is first used, so the test needs only val's.

    Args:
        root: holds annotations/instances_{train,val}{year}.json, and the images in {train,val}{year} or images/...
        year: 2014 or 2017; None takes the one that is there.
        split: which classes fold i tests: i, i + 4, ... or the i-th block of 20.
        complain: told of each problem.
    """
    if split not in ("interleaved", "contiguous"):
        raise DataError(f"split is {split!r}; expected interleaved or contiguous")
    year = _choose_year(root, year)
    parts: dict[Split, str] = {"train": "train", "test": "val"}
    pools = {}
    for side, part in parts.items():
        places = [root / f"{part}{year}", root / "images" / f"{part}{year}"]
        images = next((folder for folder in places if folder.is_dir()), places[0])
        pools[side] = CocoPool(_annotations(root, part, year), images, f"coco-{year}-{part}", complain, CLASSES)
    make = folds.interleaved if split == "interleaved" else folds.contiguous
    return Dataset(f"coco-{year}", CLASSES, pools, make(len(CLASSES)), SMALLEST)


def open_coco_json(
    annotations: Path, images: Path, name: str, complain: Complain = refuse, progress: Progress | None = None
) -> tuple[tuple[str, ...], CocoPool]:
    """The class names, by category id, and the pool of an instances JSON of your own.

    Args:
        annotations: the JSON; it is read now.
        images: the folder that its file names start from.
        name: of the dataset.
        complain: told of each problem.
        progress: told how many images are drawn, the first time.
    """
    pool = CocoPool(annotations, images, name, complain)
    return pool.classes(progress), pool


def _annotations(root: Path, part: str, year: int) -> Path:
    return root / "annotations" / f"instances_{part}{year}.json"


def _choose_year(root: Path, year: int | None) -> int:
    if year is not None and year not in YEARS:
        raise DataError(f"year is {year}; COCO has {' and '.join(map(str, YEARS))}")
    there = [each for each in YEARS if any(_annotations(root, part, each).is_file() for part in ("train", "val"))]
    if year is None and len(there) > 1:
        raise DataError(f"{root}: holds COCO of {' and '.join(map(str, there))}; choose one with --year")
    if not there or (year is not None and year not in there):
        wanted = year or YEARS[-1]
        raise DataError(
            f"{root / 'annotations'}: holds no instances_train{wanted}.json or instances_val{wanted}.json; "
            f"unpack annotations_trainval{wanted}.zip from cocodataset.org in {root}"
        )
    return year or there[0]


@dataclass(frozen=True, eq=False)
class _Content:
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
        images: Sequence["_Picture"],
        pairs: Sequence[tuple[int, int, int, bytes, bytes]],
        problems: Sequence[str],
    ) -> "_Content":
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

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(posixpath.splitext(file)[0] for file in self.files)

    @cached_property
    def index(self) -> Index:
        some = self.pixels > 0
        return Index(self.sizes, self.image[some], self.number[some], self.pixels[some])

    def rows(self, i: int) -> slice:
        """The pairs of image i."""
        i = range(len(self.files))[i]
        start, end = np.searchsorted(self.image, (i, i + 1)).tolist()
        return slice(start, end)

    def only(self, wanted: NDArray[np.bool_]) -> "_Content":
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


def _compiled(path: Path, name: str, progress: Progress | None) -> _Content:
    """The content of a JSON: from the cache if the file is still the same, else read, and kept for the next time."""
    try:
        key = fingerprint("coco", _FORMAT, files=[path])
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a COCO instances JSON") from error
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    kept = cache_folder() / "coco" / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}-{place}.npz"
    found = _load(kept, key)
    if found is not None:
        return found
    made = _compile(path, progress)
    words = json.dumps({"key": key} | {part: getattr(made, part) for part in _TEXTS})
    buffer = io.BytesIO()
    np.savez(buffer, words=np.frombuffer(words.encode(), np.uint8), **{part: getattr(made, part) for part in _ARRAYS})
    try:
        write_atomically(kept, buffer.getvalue())
    except OSError as error:
        warnings.warn(
            f"{kept}: the drawn masks cannot be kept ({error.strerror}), so {path.name} will be read again next time; "
            "set CYCTR_CACHE to a folder of yours",
            stacklevel=2,
        )
    return made


def _load(path: Path, key: str) -> _Content | None:
    try:
        # given the path, np.load would leave a damaged file open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            words = json.loads(arrays["words"].tobytes())
            if words["key"] != key:
                return None
            parts: dict[str, Any] = {part: tuple(words[part]) for part in _TEXTS} | {part: arrays[part] for part in _ARRAYS}
            return _Content(**parts)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # damage meets zipfile, numpy and json with whatever they trip over
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged"
        warnings.warn(f"{path}: the kept masks cannot be read ({reason}), so they are drawn again; delete it", stacklevel=3)
        return None


@dataclass(slots=True)
class _Picture:
    """An image of the JSON: its file, its (height, width), and what is marked in it: (title, class, is a crowd, outline)."""

    file: str
    size: tuple[int, int]
    marks: list[tuple[str, int, bool, Any]] = field(default_factory=list)


_Shape = list[float] | dict[str, Any]


def _compile(path: Path, progress: Progress | None) -> _Content:
    """Draws all masks of a JSON, those of one class in one image as one."""
    masks = _drawing()
    document = _parse(path)
    problems: list[str] = []
    names, numbers = _read_categories(document["categories"], problems)
    pictures = _read_images(document["images"], problems)
    _assign(document.pop("annotations"), numbers, pictures, problems)
    marked = [picture for _, picture in sorted(pictures.items()) if picture is not None and picture.marks]
    kept: list[_Picture] = []
    pairs: list[tuple[int, int, int, bytes, bytes]] = []
    for done, picture in enumerate(marked, 1):
        shapes: dict[int, tuple[list[_Shape], list[_Shape]]] = {}
        for title, number, crowd, outline in picture.marks:
            try:
                found = _shapes(outline, picture.size)
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
    return _Content.of(names, kept, pairs, problems)


def _parse(path: Path) -> dict[str, Any]:
    remedy = "expected a COCO instances JSON: export or download it again"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a COCO instances JSON") from error
    except (ValueError, RecursionError) as error:
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


def _read_images(listed: list[Any], problems: list[str]) -> dict[int, _Picture | None]:
    """The images by id; None for one that was left out."""
    pictures: dict[int, _Picture | None] = {}
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
        file = posixpath.normpath(file.replace("\\", "/"))
        key = posixpath.splitext(file)[0]
        if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > LARGEST:
            problems.append(
                f"image {number}, {file}, is {height!r:.40} x {width!r:.40} (height x width); "
                f"expected whole numbers, and at most {LARGEST} pixels: correct its size"
            )
        elif key in ids:
            problems.append(f"images {ids[key]} and {number} are both called {key}; rename or remove one")
        else:
            ids[key] = number
            pictures[number] = _Picture(file, (height, width))
    return pictures


def _assign(
    annotations: list[Any], numbers: dict[int, int | None], pictures: dict[int, _Picture | None], problems: list[str]
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


def _shapes(outline: object, size: tuple[int, int]) -> list[_Shape]:
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


def _shape_of_rle(outline: dict[str, Any], size: tuple[int, int]) -> _Shape:
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


def _draw(masks: Any, shapes: list[_Shape], size: tuple[int, int]) -> tuple[int, bytes]:
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
