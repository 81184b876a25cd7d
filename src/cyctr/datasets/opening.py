"""Any dataset by its place: which kind it is, and the options that kind takes."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from cyctr.datasets import pascal
from cyctr.datasets.coco import open_coco
from cyctr.datasets.dataset import Dataset, OnProblem, refuse
from cyctr.datasets.fss import class_folder, open_fss, pair_files
from cyctr.datasets.listing import subfolders
from cyctr.datasets.own_folder import ANNOTATIONS, IMAGES, MASKS, open_folder
from cyctr.datasets.synthetic_pool import open_synthetic
from cyctr.errors import ConfigError, DataError

Kind = Literal["pascal", "coco", "fss", "folder", "synthetic"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AUTO = "auto"
SYNTHETIC: Literal["synthetic"] = "synthetic"
_TAKERS: Mapping[str, Kind] = {  # which kind an option is for
    "year": "coco",
    "coco_split": "coco",
    "test_classes": "folder",
    "folds": "folder",
    "split_seed": "folder",
}


def open_dataset(
    root: Path,
    kind: str = AUTO,
    *,
    year: int | None = None,
    coco_split: str = "interleaved",
    test_classes: Sequence[str] | None = None,
    folds: int | None = None,
    split_seed: int = 0,
    complain: OnProblem = refuse,
) -> Dataset:
    """The dataset in a folder.

    Args:
        root: the folder; the word "synthetic", where there is no such folder, stands for the drawn classes.
        kind: one of `KINDS`, or "auto" for what `detect` says.
        year: of COCO, where the folder holds both.
        coco_split: which classes COCO's fold i tests: i, i + 4, ... ("interleaved") or the i-th block of 20 ("contiguous").
        test_classes: of a folder of your own, those that are only met in the test.
        folds: of a folder of your own, into how many folds its classes are dealt.
        split_seed: decides how they are dealt.
        complain: told of each problem.
    """
    found = resolve(root, kind)
    given = {"year": year, "coco_split": coco_split, "test_classes": test_classes, "folds": folds, "split_seed": split_seed}
    usual = inspect.signature(open_dataset).parameters
    for option, taker in _TAKERS.items():
        if found != taker and given[option] != usual[option].default:
            raise ConfigError(
                f"{option} is {given[option]!r}, but {root} is of kind {found}, and only {taker} takes it; leave it out"
            )
    openers: Mapping[Kind, Callable[[], Dataset]] = {
        "pascal": lambda: pascal.open_pascal(_voc(root) or root, complain=complain),
        "coco": lambda: open_coco(root, year, coco_split, complain),
        "fss": lambda: open_fss(root, complain),
        "folder": lambda: open_folder(root, test_classes, folds, split_seed, complain),
        "synthetic": open_synthetic,
    }
    return openers[found]()


def resolve(root: Path, kind: str = AUTO) -> Kind:
    """The kind asked for, or the one that is there."""
    chosen = next((known for known in KINDS if known == kind), None)
    if chosen is None and kind != AUTO:
        raise ConfigError(f"kind is {kind!r}; expected {', '.join(KINDS)} or {AUTO}")
    try:
        if chosen == SYNTHETIC or (chosen is None and str(root) == SYNTHETIC and not root.exists()):
            return SYNTHETIC
        if not root.exists():
            raise DataError(f"{root}: no such folder; expected a dataset: check the path, or make one with `cyctr prepare`")
        if not root.is_dir():
            raise DataError(f"{root}: is a file; expected the folder of a dataset: give the folder, or unpack the archive")
        return chosen or detect(root)
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror}); expected a folder you may read") from error


def detect(root: Path) -> Kind:
    """Which kind of dataset a folder looks like; a folder of your own where it looks like no other."""
    if _voc(root) is not None:
        return "pascal"
    if any(root.glob("annotations/instances_*20[0-9][0-9].json")):
        return "coco"
    if not any((root / own).exists() for own in (IMAGES, MASKS, ANNOTATIONS)) and _has_pairs(class_folder(root)):
        return "fss"
    return "folder"


def _voc(root: Path) -> Path | None:
    """The VOC2012 folder: this one, or the one inside."""
    for place in (root / inside for inside in pascal.PLACES):
        if (place / pascal.MASKS).is_dir() or (place / pascal.LISTS).is_dir():
            return place
    return None


def _has_pairs(place: Path) -> bool:
    """Whether a class folder holds N.jpg and N.png, with a number for N."""
    for folder in subfolders(place):
        images, masks = pair_files(folder)
        if any(stem.isdecimal() for stem in images.keys() & masks.keys()):
            return True
    return False
