"""The official archives of PASCAL VOC 2012 and SBD -> the PASCAL-5^i layout: one folder of masks, and the lists.

Every file is written in one step or not at all, and what the user already has is left as it is unless told otherwise.
"""

import importlib
import importlib.resources
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyctr.datasets import archives
from cyctr.datasets.archives import OnStage
from cyctr.datasets.parallel import in_threads
from cyctr.datasets.pascal import IMAGES, LISTS, MASKS, PLACES, read_list
from cyctr.datasets.pascal_masks import Fate, Made, Maker, fate_of, mat_reader, unwritable
from cyctr.errors import DataError
from cyctr.images.imaging import find_images
from cyctr.storage import write_atomically

OFFICIAL = {"train": 1_464, "val": 1_449, "train_aug_5953": 5_953, "train_aug": 10_582}
"""The lists, and how many images each names."""

_VOC_MASKS, _SBD_MASKS = "SegmentationClass", "cls"


@dataclass(frozen=True)
class Report:
    """What was found, made and missed.

    Attributes:
        output: the folder of the layout.
        voc_masks: how many masks VOC has.
        sbd_masks: how many only SBD has.
        images: how many images VOC has.
        unlabelled: how many of them neither has a mask for.
        masks: how many masks met each fate.
        links: how many images met each fate; none where the output is VOC's own folder.
        lists: how many images each list names, and its fate.
        left: the ids of "masks" and of "images" that differ from those already there.
        problems: what stands between this folder and a complete one: a heading, and all that falls under it.
    """

    output: Path
    voc_masks: int
    sbd_masks: int
    images: int
    unlabelled: int
    masks: Counter[Fate]
    links: Counter[Fate]
    lists: dict[str, tuple[int, Fate]]
    left: dict[str, list[str]]
    problems: dict[str, list[str]]


def prepare_pascal(
    voc: Path,
    sbd: Path,
    output: Path | None = None,
    download: bool = False,
    force: bool = False,
    progress: OnStage | None = None,
) -> Report:
    """Makes the PASCAL-5^i layout and reports on it.

    Args:
        voc: holds JPEGImages and SegmentationClass, itself or in VOC2012 or VOCdevkit/VOC2012.
        sbd: holds cls, itself or in dataset or benchmark_RELEASE/dataset.
        output: the folder to fill; default: the one of VOC's images. Elsewhere, images are linked to.
        download: fetch the official archives into `voc` and `sbd` where these do not hold them.
        force: replace masks, lists and links that are there and differ.
        progress: told how far each step is.

    Raises:
        DataError: VOC or SBD is not there, cannot be fetched, or the output cannot be written.
    """
    tell = progress or (lambda step, done, total: None)
    load_mat = mat_reader()
    voc = _obtain(_VOC, voc, download, tell)
    sbd = _obtain(_SBD, sbd, download, tell)
    if output is None or (output.exists() and output.samefile(voc)):
        output = voc

    lists, lists_missing = _make_lists(voc, sbd)
    listed = set().union(*lists.values())
    images = find_images(voc / IMAGES)
    voc_masks, sbd_masks = _files_in(voc / _VOC_MASKS, ".png"), _files_in(sbd / _SBD_MASKS, ".mat")
    maker = Maker(output, force, load_mat, sbd_masks | voc_masks, images, None if output == voc else _images_in(output))
    names = sorted(listed | maker.masks.keys())
    results = in_threads(lambda i: maker.make(names[i]), len(names), lambda count, total: tell("masks", count, total))
    done = dict(zip(names, results, strict=True))
    put = {name: _put_list(output / LISTS / f"{name}.txt", lists.get(name), force) for name in OFFICIAL}

    left = {
        "masks": [name for name, made in done.items() if made.mask is Fate.LEFT],
        "images": [name for name, made in done.items() if made.image is Fate.LEFT],
    }
    masks_there = _files_in(output / MASKS, ".png").keys()
    without = {*lists["train"], *lists["val"]} - voc_masks.keys()
    problems = {
        "ids in the lists without image": sorted(listed - images.keys()),
        "ids in the lists without mask": sorted(listed - masks_there),
        **_problems_of(done, without, lists_missing),
    }
    return Report(
        output,
        len(voc_masks),
        len(sbd_masks.keys() - voc_masks.keys()),
        len(images),
        len(images.keys() - masks_there),
        Counter(made.mask for made in done.values() if made.mask),
        Counter(made.image for made in done.values() if made.image),
        put,
        {kind: ids for kind, ids in left.items() if ids},
        {heading: ids for heading, ids in problems.items() if ids},
    )


def _problems_of(done: Mapping[str, Made], without: Iterable[str], lists_missing: Sequence[Path]) -> dict[str, list[str]]:
    """By heading: ids whose mask is not VOC's though VOC lists them, lists that are missing, and faults of single files."""
    problems = {
        "ids in VOC's lists without VOC's mask (SBD's is in its place)": [
            name for name in sorted(without) if done[name].mask in (Fate.WRITTEN, Fate.KEPT)
        ],
        "lists missing, so train_aug was not made": [str(path) for path in lists_missing],
    }
    for name, made in done.items():
        for heading, words in made.problems.items():
            problems.setdefault(heading, []).append(f"{name} ({words})")
    return problems


def bundled_list() -> list[str]:
    """The 5,953 training images: SBD's `train_noval`, which SBD's archive lacks, then the rest of VOC's `train`."""
    return (importlib.resources.files("cyctr.datasets") / "lists" / "pascal_train_aug_5953.txt").read_text("utf-8").split()


def _make_lists(voc: Path, sbd: Path) -> tuple[dict[str, list[str]], list[Path]]:
    """The ids of each list that can be made, and the lists of SBD that are missing."""
    for name in ("train", "val"):
        if not (path := voc / LISTS / f"{name}.txt").is_file():
            raise DataError(f"{path}: no such file; expected VOC 2012's own list: unpack {IMAGES} and ImageSets together")
    lists = {name: read_list(voc / LISTS / f"{name}.txt", _ignore) for name in ("train", "val")}
    lists["train_aug_5953"] = bundled_list()
    missing = [path for path in (sbd / "train.txt", sbd / "val.txt") if not path.is_file()]
    if not missing:
        both = {*read_list(sbd / "train.txt", _ignore), *read_list(sbd / "val.txt", _ignore)}
        lists["train_aug"] = sorted({*lists["train"], *both} - set(lists["val"]))
    return lists, missing


def _put_list(path: Path, names: Sequence[str] | None, force: bool) -> tuple[int, Fate]:
    """Writes a list; how many images it names, and its fate."""
    if names is None:
        return 0, Fate.MISSING
    try:
        there = read_list(path, _ignore)
    except DataError:  # not there, empty, or no text
        there = []
    fate = fate_of(path, there == names, force)
    if fate is Fate.WRITTEN:
        try:
            write_atomically(path, "".join(f"{name}\n" for name in names).encode())
        except OSError as error:
            raise unwritable(path, error) from error
    return len(there if fate is Fate.LEFT else names), fate


def _ignore(problem: str) -> None:
    """A name that stands twice in an official list is no problem of ours."""


def _files_in(folder: Path, suffix: str) -> dict[str, Path]:
    return {path.stem: path for path in folder.glob(f"*{suffix}") if not path.name.startswith(".")}  # "._": of a Mac's tar


def _images_in(output: Path) -> dict[str, Path]:
    return find_images(output / IMAGES) if (output / IMAGES).is_dir() else {}


@dataclass(frozen=True)
class _Source:
    """A dataset as its archive unpacks: where in a folder it may lie, and the folders that it holds."""

    name: str
    places: tuple[str, ...]
    holds: tuple[str, ...]

    def find(self, folder: Path) -> Path | None:
        for place in self.places:
            if all((folder / place / part).is_dir() for part in self.holds):
                return folder / place
        return None


_VOC = _Source("VOC 2012", PLACES, (IMAGES, _VOC_MASKS))
_SBD = _Source("SBD", (".", "dataset", "benchmark_RELEASE/dataset"), (_SBD_MASKS,))


def _obtain(source: _Source, folder: Path, download: bool, tell: OnStage) -> Path:
    """The folder of a dataset: found, or fetched, or else an error that says what was looked for."""
    found = source.find(folder)
    if found is not None:
        return found
    parts = " and ".join(source.holds)
    if not download:
        raise DataError(
            f"{folder}: found no {parts} in it, nor in its {' or '.join(source.places[1:])}; expected {source.name} as its "
            "archive unpacks: give the folder that holds it, or let it be downloaded",
            "download",
        )
    archive = archives.official(source.name)
    archives.fetch(archive, folder, tell)
    found = source.find(folder)
    if found is None:
        raise DataError(f"{folder / archive.content}: holds no {parts}; remove it and run again")
    return found
