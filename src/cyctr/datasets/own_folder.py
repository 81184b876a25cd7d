"""A folder of your own: images, and masks in one of three layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cyctr.datasets import folds as splits
from cyctr.datasets.coco import open_coco_json
from cyctr.datasets.dataset import Dataset, Fold, OnProblem, Pool, refuse
from cyctr.datasets.index import Index
from cyctr.datasets.listing import read_names, subfolders
from cyctr.datasets.pools import ClassMaskPool, LabelledPool
from cyctr.errors import ConfigError, DataError
from cyctr.images.counting import count_values
from cyctr.images.imaging import find_images, read_values
from cyctr.types import IGNORE, Pixels

IMAGES, MASKS, ANNOTATIONS, NAMES = "images", "masks", "annotations.json", "classes.txt"
LAYOUT = (
    f"{IMAGES}/STEM.jpg and one of {MASKS}/CLASS/STEM.png (a mask for each class), {MASKS}/STEM.png (values are classes) "
    f"and {ANNOTATIONS} (COCO)"
)
ONLY_CLASS = "object"
_BACKGROUND = ("background", "_background_")
_LOSSY = (".jpg", ".jpeg")

_MOST_IGNORED = 20  # times the pixels of the class; a border is less
Opened = tuple[tuple[str, ...], Pool]


def open_folder(
    root: Path,
    test_classes: Sequence[str] | None = None,
    folds: int | None = None,
    split_seed: int = 0,
    complain: OnProblem = refuse,
) -> Dataset:
    """Images of your own, in `images` or in the folder itself, and their masks.

    The masks are one of

    - masks/CLASS/STEM.png: a mask for each class that is in an image. See `read_class_mask` for its values.
    - masks/STEM.png: one mask for each image; its values are classes, 0 is background and 255 ignored. classes.txt names
      the values 1, 2, ... on a line each; without it they are called by their numbers. Where 255 is the only value
      beside 0, it is the object.
    - annotations.json, or one *.json of another name, here or in `annotations`: COCO's format.

    Args:
        root: the folder.
        test_classes: those that are only met in the test; one fold.
        folds: deals the classes into that many folds; each is tested in one. With neither, one fold tests every class.
        split_seed: decides how they are dealt.
        complain: told of each problem.
    """
    if test_classes is not None and folds is not None:
        raise ConfigError(f"test_classes are named, and folds is {folds}; expected one of the two: leave the other out")
    if test_classes is not None and not test_classes:
        raise ConfigError("test_classes is empty; name one class or more, or leave it out to test them all")
    classes, pool = _open(root, complain)
    return Dataset("folder", classes, {"train": pool, "test": pool}, _split(classes, test_classes, folds, split_seed))


def read_class_mask(path: Path) -> Pixels:
    """The mask of one class as (H, W): 1 where it is, 255 where nobody decided, 0 elsewhere.

    A file of 0 and one other value marks the class with that. Beside a 1, 255 means ignored. Any other file whose largest
    value is 255 is a picture in black and white, perhaps with soft edges: the class is where it is at least 128.
    """
    values = read_values(path)
    counts = count_values(values)
    marked = np.flatnonzero(counts[1:]) + 1
    if len(marked) <= 1:
        return (values > 0).astype(np.uint8)
    if marked.tolist() == [1, IGNORE]:
        if counts[IGNORE] > _MOST_IGNORED * counts[1]:
            raise DataError(
                f"{path}: holds {counts[IGNORE]:,} pixels of 255 (ignored) and {counts[1]:,} of 1 (the class); if 255 is the "
                "class, set the others to 0"
            )
        return values
    if marked[-1] != IGNORE:
        raise DataError(
            f"{path}: holds the values {marked[0]} and {marked[-1]}; expected one for the class and 0 elsewhere: "
            f"correct the mask, or give masks of many classes as {MASKS}/STEM.png"
        )
    return (values >= 128).astype(np.uint8)


def _split(classes: tuple[str, ...], test_classes: Sequence[str] | None, folds: int | None, seed: int) -> tuple[Fold, ...]:
    if not classes:  # as was complained of
        return splits.everything(0)
    if test_classes is not None:
        return splits.named(classes, test_classes)
    if folds is not None:
        return splits.seeded(len(classes), folds, seed)
    return splits.everything(len(classes))


def _open(root: Path, complain: OnProblem) -> Opened:
    """The classes and the images, by whichever layout is there."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected {LAYOUT}")
    folder = root / IMAGES if (root / IMAGES).is_dir() else root
    masks = root / MASKS
    class_folders = subfolders(masks) if masks.is_dir() else []
    mask_files = find_images(masks, complain) if masks.is_dir() else {}
    annotations = _annotations(root, alone=not class_folders and not mask_files)
    found = {f"{MASKS}/CLASS/": class_folders, f"{MASKS}/STEM.png": mask_files, ANNOTATIONS: annotations}
    layouts = [name for name, what in found.items() if what]
    if len(layouts) != 1:
        what = " and ".join(layouts) if layouts else "no masks"
        raise DataError(f"{root}: holds {what}; expected {LAYOUT}: {'keep one' if layouts else 'add one'}")
    if annotations is not None:
        return open_coco_json(annotations, folder, root.resolve().name, complain)
    images = find_images(folder, complain)
    if not images:
        raise DataError(f"{folder}: holds no images; expected {LAYOUT}")
    if class_folders:
        return _open_class_masks(root, images, class_folders, complain)
    return _open_labelled(root, images, mask_files, complain)


def _annotations(root: Path, alone: bool) -> Path | None:
    """The COCO file. Beside masks only one of the usual name is taken for it, for a folder may hold other JSON."""
    if (root / ANNOTATIONS).is_file():
        return root / ANNOTATIONS
    places = ("[!.]*.json", "annotations/[!.]*.json")
    found = (sorted(path for path in root.glob(place) if path.is_file() and not _is_result(path)) for place in places)
    files = next(filter(None, found), []) if alone else []
    if len(files) > 1:
        raise DataError(f"{root}: holds {files[0].name} and {files[1].name}; expected one: call the right one {ANNOTATIONS}")
    return files[0] if files else None


def _is_result(path: Path) -> bool:
    """Whether an evaluation wrote it, with the dataset's own folder for its output."""
    return path.name == "results.json" or path.match("results-*of*.json")


def _open_class_masks(root: Path, images: Mapping[str, Path], folders: Sequence[Path], complain: OnProblem) -> Opened:
    classes: list[str] = []
    masks: dict[str, dict[int, Path]] = {stem: {} for stem in images}
    for folder in folders:
        try:
            files = find_images(folder, complain)
        except DataError as error:
            complain(str(error))
            continue
        if not files:
            complain(f"{folder}: holds no masks; expected {folder.name}/STEM.png: add some, or remove the folder")
            continue
        for stem, path in _with_image(files, images, complain).items():
            masks[stem][len(classes)] = path
        classes.append(folder.name)
    for stem in [stem for stem, files_of in masks.items() if not files_of]:
        complain(f"{images[stem]}: has no mask; expected {root / MASKS}/CLASS/{stem}.png: add one, or remove the image")
    kept = _some([stem for stem, files_of in masks.items() if files_of], root)
    pool = ClassMaskPool(root, kept, tuple(images[s] for s in kept), tuple(masks[s] for s in kept), read_class_mask)
    return tuple(classes), pool


def _open_labelled(root: Path, images: Mapping[str, Path], files: Mapping[str, Path], complain: OnProblem) -> Opened:
    masks = _with_image(files, images, complain)
    for path in [path for path in masks.values() if path.suffix.lower() in _LOSSY]:
        complain(f"{path}: is a JPEG, which does not keep the values of classes; save the mask as PNG")
        del masks[path.stem]
    for stem in [stem for stem in images if stem not in files]:
        complain(f"{images[stem]}: has no mask; expected {root / MASKS / stem}.png: add one, or remove the image")
    kept = _some([stem for stem in images if stem in masks], root)
    names = class_names(root / NAMES, complain) if (root / NAMES).exists() else None
    values = tuple(range(1, len(names or ()) + 1))
    pool = LabelledPool(root, kept, tuple(images[s] for s in kept), tuple(masks[s] for s in kept), values)
    return (names, pool) if names and len(names) > 1 else _scan(pool, names, complain)


def _scan(pool: LabelledPool, names: tuple[str, ...] | None, complain: OnProblem) -> Opened:
    """Reads all masks, where only they can tell the classes: without names, and whether 255 is the only class."""
    raw = replace(pool, values=tuple(range(1, 256))).index(complain=complain)  # value v as class v - 1
    pixels = np.bincount(raw.number + 1, raw.pixels, minlength=256)
    values = tuple(np.flatnonzero(pixels).tolist())
    if values == (IGNORE,):
        files = tuple({0: path} for path in pool.masks)
        return names or (ONLY_CLASS,), ClassMaskPool(
            pool.root, pool.keys, pool.images, files, read_class_mask, known=_selected(raw, values)
        )
    if names is not None:
        return names, pool
    values = tuple(value for value in values if value != IGNORE)
    if not values:
        raise DataError(f"{pool.root / MASKS}: every mask is 0 everywhere; expected values 1, 2, ... for the classes")
    if len(values) >= 8 and values[-1] >= 128 and pixels[IGNORE] > pixels[list(values)].sum():
        raise DataError(
            f"{pool.root / MASKS}: the masks are mostly 0 and 255, with {len(values)} values between: soft edges, it seems; "
            f"expected one value for each class: give such masks as {MASKS}/CLASS/STEM.png, or name the classes in {NAMES}"
        )
    return tuple(map(str, values)), replace(pool, values=values, known=_selected(raw, values))


def _selected(raw: Index, values: Sequence[int]) -> Index:
    """The index of the classes that have these values, from one in which value v is class v - 1."""
    kept = np.isin(raw.number + 1, values)
    return Index(raw.sizes, raw.image[kept], np.searchsorted(values, raw.number[kept] + 1), raw.pixels[kept])


def class_names(path: Path, complain: OnProblem = refuse) -> tuple[str, ...]:
    """The names of values 1, 2, ...; a first line for the background is passed over."""
    names = read_names(path)
    if names[0].lower() in _BACKGROUND:
        names = names[1:]
    if not 1 <= len(names) < IGNORE:
        raise DataError(f"{path}: names {len(names)} classes; expected 1 to {IGNORE - 1}, for the values of the masks")
    unique: list[str] = []
    for value, name in enumerate(names, 1):
        if name in unique:
            complain(f"{path}: names {name} twice, for the values {unique.index(name) + 1} and {value}; rename one")
        unique.append(name if name not in unique else f"{name} ({value})")
    return tuple(unique)


def _with_image(masks: Mapping[str, Path], images: Mapping[str, Path], complain: OnProblem) -> dict[str, Path]:
    """The masks whose image is there."""
    for path in [path for stem, path in masks.items() if stem not in images]:
        complain(f"{path}: belongs to no image; expected one called {path.stem}: add or rename it, or remove the mask")
    return {stem: path for stem, path in masks.items() if stem in images}


def _some(stems: Sequence[str], root: Path) -> tuple[str, ...]:
    if not stems:
        raise DataError(f"{root}: no image has a mask; expected {LAYOUT}: image and mask of the same name")
    return tuple(stems)
