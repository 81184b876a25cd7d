"""COCO-20^i, and any other COCO export: the masks of an instances JSON, drawn once, then kept in the user's cache."""

import os
import posixpath
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.datasets import folds
from cyctr.datasets.dataset import Dataset, OnProblem, OnProgress, Split, refuse
from cyctr.datasets.index import Index
from cyctr.datasets.instances import Content, read_json
from cyctr.errors import ConfigError, DataError
from cyctr.images.imaging import read_image
from cyctr.types import Pixels

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
CUSTOMS: dict[str, dict[str, Any]] = {
    "cyctr": {"episodes": 5000},
    "released": {"episodes": 5000},
    "pfenet": {"episodes": 20000},
    "hsnet": {"order": "classes"},
}
YEARS = (2014, 2017)
SPLITS = {"interleaved": folds.interleaved, "contiguous": folds.contiguous}
_READING = threading.Lock()


class CocoPool:
    """The annotated images of an instances JSON, by image id; an image without annotations is not in the list.

    Opening costs nothing: the JSON is read where a key, a label or the index is first asked for, and compiled into a file
    in the user's cache that later openings read instead. Its faults, and which images are missing, are told then,
    once: to `index`'s `complain` if that asked first and goes on, else to the pool's own.
    """

    def __init__(
        self, annotations: Path, images: Path, name: str, complain: OnProblem = refuse, classes: tuple[str, ...] | None = None
    ) -> None:
        """A pool that reads nothing yet.

        Args:
            annotations: the JSON.
            images: the folder that its file names start from.
            name: a part of the name of the file in the cache, for people.
            complain: told of each problem.
            classes: the names that the categories must have; None takes any.
        """
        self.annotations, self.images = annotations, images
        self._name, self._complain, self._expected = name, complain, classes
        self._content: Content | None = None

    def classes(self, progress: OnProgress | None = None) -> tuple[str, ...]:
        """The names of the JSON's categories, by category id; a class's number is its place here."""
        return self._read(progress).names

    @property
    def keys(self) -> Sequence[str]:
        """A name for each image, in list order: its file name without the ending."""
        return self._read().keys

    def image(self, i: int) -> Pixels:
        """(H, W, 3) RGB of image i."""
        content = self._read()
        path = self.images / content.files[i]
        pixels = read_image(path)
        size, (height, width) = pixels.shape[:2], content.sizes[i].tolist()
        if size != (height, width):
            raise DataError(
                f"{path}: image is {size[0]} x {size[1]}, {self.annotations.name} says {height} x {width} "
                "(height x width); put the image there that was annotated, or export the annotations again"
            )
        return pixels

    def label(self, i: int, number: int) -> Pixels:
        """(H, W) of image i: 1 where class `number` is, 255 where only a crowd of it is, 0 elsewhere."""
        return self._read().label(i, number)

    def index(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Index:
        """Which class covers how many pixels of which image; the images themselves are not looked at."""
        return self._read(progress, complain).index

    def _read(self, progress: OnProgress | None = None, complain: OnProblem = refuse) -> Content:
        if self._content is None:
            with _READING:
                if self._content is None:
                    self._content = self._open(progress, self._complain if complain is refuse else complain)
        return self._content

    def _open(self, progress: OnProgress | None, complain: OnProblem) -> Content:
        try:
            if self.annotations.exists() and not self.images.is_dir():
                raise DataError(
                    f"{self.images}: no such folder; expected the images that {self.annotations.name} names: put them there"
                )
            content = read_json(self.annotations, self._name, progress)
            if self._expected is not None and content.names != self._expected:
                raise DataError(
                    f"{self.annotations}: its {len(content.names)} categories are not COCO's {len(self._expected)}; "
                    "download COCO's annotations, or open these as a dataset of your own"
                )
        except DataError as error:
            complain(str(error))
            return Content.of([], [], [], [])
        for problem in content.problems:
            complain(f"{self.annotations}: {problem}")
        if not content.files and not content.problems:
            complain(f"{self.annotations}: holds no annotation; expected objects outlined by polygons or RLE: export them too")
        return content.only(self._present(content, complain))

    def _present(self, content: Content, complain: OnProblem) -> NDArray[np.bool_]:
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


def open_coco(root: Path, year: int | None = None, split: str = "interleaved", complain: OnProblem = refuse) -> Dataset:
    """COCO-20^i of a COCO folder; each JSON is read when its pool is first used, so the test needs only val's.

    Args:
        root: holds annotations/instances_{train,val}{year}.json, and the images in {train,val}{year} or images/...
        year: 2014 or 2017; None takes the one that is there.
        split: which classes fold i tests: i, i + 4, ... or the i-th block of 20.
        complain: told of each problem.
    """
    if split not in SPLITS:
        raise ConfigError(f"coco_split is {split!r}; expected {' or '.join(SPLITS)}")
    year = _choose_year(root, year)
    parts: dict[Split, str] = {"train": "train", "test": "val"}
    pools = {}
    for side, part in parts.items():
        places = [root / f"{part}{year}", root / "images" / f"{part}{year}"]
        images = next((folder for folder in places if folder.is_dir()), places[0])
        pools[side] = CocoPool(_annotations(root, part, year), images, f"coco-{year}-{part}", complain, CLASSES)
    return Dataset(f"coco-{year}", CLASSES, pools, SPLITS[split](len(CLASSES)), SMALLEST, CUSTOMS)


def open_coco_json(
    annotations: Path, images: Path, name: str, complain: OnProblem = refuse, progress: OnProgress | None = None
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
        raise ConfigError(f"year is {year}; COCO has {' and '.join(map(str, YEARS))}")
    there = [each for each in YEARS if any(_annotations(root, part, each).is_file() for part in ("train", "val"))]
    if year is None and len(there) > 1:
        raise DataError(f"{root}: holds COCO of {' and '.join(map(str, there))}; choose one", "year")
    if not there or (year is not None and year not in there):
        wanted = year or YEARS[-1]
        raise DataError(
            f"{root / 'annotations'}: holds no instances_train{wanted}.json or instances_val{wanted}.json; "
            f"unpack annotations_trainval{wanted}.zip from cocodataset.org in {root}"
        )
    return year or there[0]
