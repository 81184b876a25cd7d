"""PASCAL-5^i: PASCAL VOC 2012 with SBD's additional masks, in four folds of five classes."""

from pathlib import Path

from cyctr.datasets import folds
from cyctr.datasets.dataset import Dataset, OnProblem, Pool, Split, refuse
from cyctr.datasets.listing import text_lines
from cyctr.datasets.pools import LabelledPool
from cyctr.errors import DataError
from cyctr.images.imaging import find_images

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
SMALLEST = 2 * 32 * 32
MASKS, IMAGES, LISTS = "SegmentationClassAug", "JPEGImages", Path("ImageSets", "Segmentation")
PLACES = (".", "VOC2012", "VOCdevkit/VOC2012")
"""Where VOC2012 may lie in the folder that a user names."""
TRAIN_LIST, TEST_LIST = "train_aug_5953", "val"


def open_pascal(root: Path, train: str = TRAIN_LIST, test: str = TEST_LIST, complain: OnProblem = refuse) -> Dataset:
    """PASCAL-5^i of a VOC2012 folder.

    Args:
        root: holds JPEGImages, SegmentationClassAug and ImageSets/Segmentation; an image is found by its stem.
        train: the list of training images.
        test: the list of test images.
        complain: told of each problem.
    """
    for folder in (IMAGES, MASKS, LISTS):
        if not (root / folder).is_dir():
            raise DataError(f"{root / folder}: no such folder; expected the VOC2012 layout, which `cyctr prepare pascal` makes")
    images = find_images(root / IMAGES, complain)
    masks = find_images(root / MASKS, complain)
    pools: dict[Split, Pool] = {}
    if (root / LISTS / f"{train}.txt").exists():  # measuring needs none
        pools["train"] = _open_list(root, train, images, masks, complain)
    pools["test"] = _open_list(root, test, images, masks, complain)
    return Dataset("pascal", CLASSES, pools, folds.contiguous(20), SMALLEST)


def _open_list(root: Path, name: str, images: dict[str, Path], masks: dict[str, Path], complain: OnProblem) -> LabelledPool:
    path = root / LISTS / f"{name}.txt"
    stems = read_list(path, complain)
    kept = []
    for stem in stems:
        if stem not in images:
            complain(f"{path}: names {stem}, but {root / IMAGES} has no image of that name; add it, or mend the list")
        elif stem not in masks:
            complain(f"{images[stem]}: has no mask {root / MASKS / stem}.png; run `cyctr prepare pascal`, or mend {path.name}")
        else:
            kept.append(stem)
    return LabelledPool(
        root, tuple(kept), tuple(images[s] for s in kept), tuple(masks[s] for s in kept), tuple(range(1, len(CLASSES) + 1))
    )


def read_list(path: Path, complain: OnProblem = refuse) -> list[str]:
    """The stems of a list, one on each line; what stands behind the first word of a line does not count."""
    try:
        lines = text_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise DataError(
            f"{path}: cannot be read ({reason}); expected a list of images, one on each line: `cyctr prepare pascal` makes it"
        ) from error
    stems = [Path(line.split()[0]).stem for line in lines if line.strip()]
    if not stems:
        raise DataError(f"{path}: names no image; expected one on each line")
    seen: set[str] = set()
    for stem in stems:
        if stem in seen:
            complain(f"{path}: names {stem} twice; remove one")
        seen.add(stem)
    return list(dict.fromkeys(stems))
