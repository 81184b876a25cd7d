"""FSS-1000: a thousand classes of ten images, each image with the mask of its one object."""

import difflib
import importlib.resources
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cyctr.config import PROTOCOLS
from cyctr.datasets.dataset import Dataset, Fold, OnProblem, refuse
from cyctr.datasets.listing import read_names, subfolders
from cyctr.datasets.pools import ClassMaskPool
from cyctr.errors import DataError
from cyctr.images.imaging import read_image
from cyctr.seeding import Stream
from cyctr.types import Pixels

INNER = "fewshot_data"
TEST_LIST = "fss_test_set.txt"
TRAIN, VALIDATION = 520, 240
CUSTOMS = {name: {"episodes": 2400} for name in PROTOCOLS}
"""Each test image is the query once."""
_IMAGE_ENDINGS = (".jpg", ".jpeg")


def open_fss(root: Path, complain: OnProblem = refuse) -> Dataset:
    """FSS-1000 of a folder with CLASS/N.jpg and CLASS/N.png, or with a folder `fewshot_data` of these.

    The 240 test classes are those the authors published; a file fss_test_set.txt in the folder or beside it has
    precedence. How they divided the other 760 into 520 for training and 240 for validation was never published: it is
    drawn here from a fixed seed over their sorted names, in that proportion where there are fewer.

    Args:
        root: the folder.
        complain: told of each problem.
    """
    place = class_folder(root)
    found = {folder.name: _pairs(folder, complain) for folder in subfolders(place)}
    classes = tuple(name for name, pairs in found.items() if pairs)
    if not classes:
        raise DataError(f"{place}: holds no class of FSS-1000; expected folders CLASS with 1.jpg, 1.png, 2.jpg, ...")
    rows = [(f"{name}/{stem}", *found[name][stem], number) for number, name in enumerate(classes) for stem in found[name]]
    pool = ClassMaskPool(
        place,
        tuple(key for key, _, _, _ in rows),
        tuple(image for _, image, _, _ in rows),
        tuple({number: mask} for _, _, mask, number in rows),
        read_soft_mask,
    )
    folds = (_fold(root, place, classes, complain),)
    return Dataset("fss", classes, {"train": pool, "test": pool}, folds, customs=CUSTOMS)


def class_folder(root: Path) -> Path:
    """Where the class folders lie: in the folder itself, or in the `fewshot_data` that the authors' archive unpacks to."""
    for place in (root / INNER / INNER, root / INNER):
        if place.is_dir():
            return place
    return root


def read_soft_mask(path: Path) -> Pixels:
    """(H, W): 1 where a mask, grey or in colour and soft at its edges, is brighter than half; else 0."""
    brightness = read_image(path) @ np.array([19595, 38470, 7471], np.uint32)  # of ITU-R 601, in 1 / 65536
    return (brightness + 32768 >> 16 >= 128).astype(np.uint8)


def pair_files(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """The images and the masks of a class, by name without ending, sorted by number."""
    try:
        files = sorted((path for path in folder.iterdir() if path.name[0] != "."), key=_counting)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); expected a folder you may read") from error
    images = {path.stem: path for path in files if path.suffix.lower() in _IMAGE_ENDINGS}
    masks = {path.stem: path for path in files if path.suffix.lower() == ".png"}
    return images, masks


def _pairs(folder: Path, complain: OnProblem) -> dict[str, tuple[Path, Path]]:
    """Image and mask of each number."""
    images, masks = pair_files(folder)
    if not images and not masks:
        complain(f"{folder}: holds no images; expected 1.jpg, 1.png, 2.jpg, ...: fill or remove it")
    for stem in [stem for stem in images if stem not in masks]:
        complain(f"{images[stem]}: has no mask; expected {stem}.png beside it: add one, or remove the image")
    for stem in [stem for stem in masks if stem not in images]:
        complain(f"{masks[stem]}: belongs to no image; expected {stem}.jpg beside it: add it, or remove the mask")
    return {stem: (images[stem], masks[stem]) for stem in images if stem in masks}


def _fold(root: Path, place: Path, classes: Sequence[str], complain: OnProblem) -> Fold:
    own = [path for folder in (root, place, place.parent, root.parent) if (path := folder / TEST_LIST).is_file()]
    names = read_names(own[0]) if own else published_test_classes()
    test = _find(names, classes, own[0] if own else None, place, complain)
    rest = sorted((name, number) for number, name in enumerate(classes) if number not in test)
    share = round(len(rest) * VALIDATION / (TRAIN + VALIDATION))
    validation = {rest[i][1] for i in Stream("fss", "validation").choose(len(rest), share)}
    train = tuple(number for _, number in rest if number not in validation)
    return Fold(train, tuple(sorted(test)), tuple(sorted(validation)))


def published_test_classes() -> list[str]:
    """The names of the 240 test classes, as the authors list them."""
    return (importlib.resources.files("cyctr.datasets") / "lists" / "fss_test.txt").read_text("utf-8").split()


def _find(names: Sequence[str], classes: Sequence[str], source: Path | None, place: Path, complain: OnProblem) -> set[int]:
    """The numbers of classes with these names; signs and capitals may differ, as they do between copies of the dataset."""
    numbers = {_letters(name): number for number, name in enumerate(classes)}
    numbers |= {name: number for number, name in enumerate(classes)}
    test, missing = set(), []
    for name in names:
        number = numbers.get(name, numbers.get(_letters(name)))
        if number is None:
            missing.append(name)
        else:
            test.add(number)
    if missing:
        others = [name for number, name in enumerate(classes) if number not in test]
        shown = ", ".join(_with_guess(name, others) for name in missing[:5]) + (", ..." if len(missing) > 5 else "")
        complain(
            f"{place}: lacks {len(missing)} of the {len(names)} test classes in {source or 'the published list'} ({shown}); "
            f"add or rename the folders, or list the test classes you have in {place / TEST_LIST}"
        )
    return test


def _with_guess(name: str, others: Sequence[str]) -> str:
    similar = difflib.get_close_matches(name, others, 1, cutoff=0.8)
    return f"{name}: do you call it {similar[0]}?" if similar else name


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _counting(path: Path) -> tuple[int, int, str]:
    """Sorts 2 before 10."""
    return (0, int(path.stem), path.name) if path.stem.isdecimal() else (1, 0, path.name)
