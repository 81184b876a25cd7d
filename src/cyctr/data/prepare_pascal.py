"""The official archives of PASCAL VOC 2012 and SBD -> the PASCAL-5^i layout: one folder of masks, and the lists.

Every file is written in one step or not at all, and what the user already has is left as it is unless told otherwise.
"""

import filecmp
import hashlib
import http.client
import importlib
import importlib.resources
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from cyctr import compat
from cyctr.data.dataset import Pixels
from cyctr.data.pascal import CLASSES, IMAGES, LISTS, MASKS, read_list
from cyctr.errors import DataError
from cyctr.imaging import find_images, image_size, read_values, write_values
from cyctr.storage import write_atomically
from cyctr.types import IGNORE

OFFICIAL = {"train": 1_464, "val": 1_449, "train_aug_5953": 5_953, "train_aug": 10_582}
"""The lists, and how many images each names."""

Progress = Callable[[str, int, int], None]
"""Told of a step how much of how much is done; a total of 0 is one that nobody knows."""

_VOC_PLACES = (".", "VOC2012", "VOCdevkit/VOC2012")
_SBD_PLACES = (".", "dataset", "benchmark_RELEASE/dataset")
_VOC_MASKS, _SBD_MASKS = "SegmentationClass", "cls"
_KNOWN_VALUES = np.isin(np.arange(256), [*range(len(CLASSES) + 1), IGNORE])
_SECONDS_OF_SILENCE = 60  # of a server, before it is given up
_CHUNK = 1 << 20


class Fate(Enum):
    """What became of a file."""

    WRITTEN = "written"
    KEPT = "already there"
    LEFT = "left as it was, though it differs (--force replaces it)"


@dataclass(frozen=True)
class Files:
    """What became of files of one kind: how many were written and were there already, and the names of those left."""

    written: int
    kept: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class ListReport:
    """How many images a list names, the official number, and what became of it; None: it could not be made."""

    size: int
    official: int
    fate: Fate | None


@dataclass(frozen=True)
class Report:
    """What was found, made and missed. Images and masks are named by their ids.

    Attributes:
        output: the folder of the layout.
        voc_masks: masks that VOC has.
        sbd_masks: masks that only SBD has.
        images: images that VOC has.
        images_without_mask: how many of them neither has a mask for.
        masks: what became of the masks.
        links: what became of the images; nothing where the output is VOC's own folder.
        copied: how many of the images were copied because links cannot be made.
        lists: what became of each list.
        images_missing: in a list, but without an image.
        masks_missing: in a list, but without a mask.
        from_sbd: in VOC's own lists, but with a mask of SBD because VOC's is missing.
        unreadable: what cannot be read, and why; not written.
        other_size: masks of another size than their image; not written.
        other_values: masks with values besides 0 to 20 and 255; not written.
        lists_missing: lists of SBD that are not there.
        noval_difference: where `train_noval.txt` is there and differs from the list we bring: what differs.
    """

    output: Path
    voc_masks: int
    sbd_masks: int
    images: int
    images_without_mask: int
    masks: Files
    links: Files
    copied: int
    lists: Mapping[str, ListReport]
    images_missing: tuple[str, ...]
    masks_missing: tuple[str, ...]
    from_sbd: tuple[str, ...]
    unreadable: Mapping[str, str]
    other_size: Mapping[str, str]
    other_values: Mapping[str, str]
    lists_missing: tuple[Path, ...]
    noval_difference: tuple[str, ...]

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        """What stands between this folder and a complete one: a heading, and all that falls under it."""
        found = {
            "ids in the lists without image": self.images_missing,
            "ids in the lists without mask": self.masks_missing,
            "ids in VOC's lists without VOC's mask (SBD's is in its place)": self.from_sbd,
            "ids with an unreadable file": _explained(self.unreadable),
            "masks of another size than the image": _explained(self.other_size),
            "masks with strange values": _explained(self.other_values),
            "lists missing, so train_aug was not made": tuple(map(str, self.lists_missing)),
        }
        return {heading: names for heading, names in found.items() if names}


def prepare_pascal(
    voc: Path,
    sbd: Path,
    output: Path | None = None,
    download: bool = False,
    force: bool = False,
    progress: Progress | None = None,
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
    load_mat = _mat_reader()
    voc_folder = _locate(voc, _VOC_PLACES, (IMAGES, _VOC_MASKS))
    sbd_folder = _locate(sbd, _SBD_PLACES, (_SBD_MASKS,))
    if voc_folder is None:
        voc_folder = _obtain("VOC 2012", voc, _VOC_PLACES, (IMAGES, _VOC_MASKS), download, tell)
    if sbd_folder is None:
        sbd_folder = _obtain("SBD", sbd, _SBD_PLACES, (_SBD_MASKS,), download, tell)
    output = voc_folder if output is None or _same_folder(output, voc_folder) else output

    lists, lists_missing = _make_lists(voc_folder, sbd_folder)
    images = find_images(voc_folder / IMAGES)
    voc_masks = _files_in(voc_folder / _VOC_MASKS, ".png")
    sbd_masks = _files_in(sbd_folder / _SBD_MASKS, ".mat")
    sources = {**sbd_masks, **voc_masks}
    listed = set().union(*lists.values())

    maker = _Maker(output, force, load_mat, None if output == voc_folder else _images_in(output))
    jobs = [_Job(name, sources.get(name), images.get(name)) for name in sorted(listed | set(sources))]
    done = list(_in_parallel(maker.make, jobs, lambda count: tell("masks", count, len(jobs))))
    put = {name: _put_list(output / LISTS / f"{name}.txt", lists.get(name), force) for name in OFFICIAL}

    vocs = {*lists["train"], *lists["val"]} - set(voc_masks)
    masks_there = set(_files_in(output / MASKS, ".png"))
    return Report(
        output=output,
        voc_masks=len(voc_masks),
        sbd_masks=len(set(sbd_masks) - set(voc_masks)),
        images=len(images),
        images_without_mask=len(set(images) - masks_there),
        masks=_tally((made.name, made.mask) for made in done),
        links=_tally((made.name, made.link) for made in done),
        copied=sum(made.copied for made in done),
        lists=put,
        images_missing=tuple(sorted(listed - set(images))),
        masks_missing=tuple(sorted(listed - masks_there)),
        from_sbd=tuple(made.name for made in done if made.name in vocs and made.mask in (Fate.WRITTEN, Fate.KEPT)),
        unreadable={made.name: made.unreadable for made in done if made.unreadable},
        other_size={made.name: made.other_size for made in done if made.other_size},
        other_values={made.name: made.other_values for made in done if made.other_values},
        lists_missing=lists_missing,
        noval_difference=_compare_noval(lists, (sbd_folder, sbd)),
    )


def bundled_list() -> list[str]:
    """The 5,953 training images: SBD's `train_noval`, which SBD's archive lacks, then the rest of VOC's `train`."""
    return (importlib.resources.files("cyctr.data") / "lists" / "pascal_train_aug_5953.txt").read_text("utf-8").split()


def read_sbd_mask(path: Path, load_mat: Callable[..., Mapping[str, Any]]) -> Pixels:
    """(H, W) class values of one of SBD's .mat files.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        values = np.asarray(load_mat(str(path), variable_names=("GTcls",))["GTcls"][0, 0]["Segmentation"])
    except Exception as error:  # scipy's reader meets damage with whatever it trips over
        raise DataError(f"{path}: cannot be read as SBD's GTcls ({_reason(error)}); unpack it again") from error
    if values.ndim != 2 or not values.size or not np.can_cast(values.dtype, np.int64, "same_kind"):
        raise DataError(f"{path}: its Segmentation is {values.dtype} {values.shape}, expected whole numbers (height, width)")
    if values.min() < 0 or values.max() > IGNORE:
        raise DataError(f"{path}: holds values from {values.min()} to {values.max()}, expected 0 to 255")
    return values.astype(np.uint8)


@dataclass(frozen=True)
class _Job:
    """One id: the file of its mask and of its image, where there is one."""

    name: str
    mask: Path | None
    image: Path | None


@dataclass
class _Made:
    """What became of one id."""

    name: str
    mask: Fate | None = None
    link: Fate | None = None
    copied: bool = False
    unreadable: str = ""
    other_size: str = ""
    other_values: str = ""


@dataclass(frozen=True)
class _Maker:
    """Makes the files of one id; safe to call from many threads.

    Attributes:
        output: the folder of the layout.
        force: replace what differs.
        load_mat: scipy's reader.
        images_there: images the output already has; None where it is VOC's own folder, which needs none.
    """

    output: Path
    force: bool
    load_mat: Callable[..., Mapping[str, Any]]
    images_there: Mapping[str, Path] | None

    def make(self, job: _Job) -> _Made:
        """Writes the mask of an id, and links its image."""
        made = _Made(job.name)
        try:
            if job.image is not None and self.images_there is not None:
                self._put_image(job.image, made)
            if job.mask is not None:
                self._put_mask(job.mask, job.image, made)
        except OSError as error:
            raise _unwritable(self.output, error) from error
        return made

    def _put_mask(self, source: Path, image: Path | None, made: _Made) -> None:
        try:
            values = read_sbd_mask(source, self.load_mat) if source.suffix == ".mat" else read_values(source)
            size = image_size(image) if image is not None else values.shape
        except DataError as error:
            made.unreadable = str(error)
            return
        if values.shape != size:
            made.other_size = f"mask is {values.shape[0]} x {values.shape[1]}, image is {size[0]} x {size[1]}, height x width"
        if not _KNOWN_VALUES[values].all():
            strange = np.unique(values[~_KNOWN_VALUES[values]]).tolist()
            made.other_values = f"{', '.join(map(str, strange[:5]))}; expected 0 to {len(CLASSES)}, and {IGNORE}"
        if made.other_size or made.other_values:
            return
        target = self.output / MASKS / f"{made.name}.png"
        made.mask = self._fate(target, lambda: _holds(target, values))
        if made.mask is Fate.WRITTEN:
            write_values(target, values, palette=True)

    def _put_image(self, source: Path, made: _Made) -> None:
        assert self.images_there is not None
        target = self.output / IMAGES / source.name
        other = self.images_there.get(made.name, target)
        if other.name != target.name:  # the image, in another format: a second one would only confuse
            made.link = Fate.KEPT
            return
        made.link = self._fate(target, lambda: target.exists() and filecmp.cmp(source, target, shallow=False))
        if made.link is Fate.WRITTEN:
            made.copied = _link(source, target)

    def _fate(self, target: Path, same: Callable[[], bool]) -> Fate:
        if not os.path.lexists(target):
            return Fate.WRITTEN
        if same():
            return Fate.KEPT
        return Fate.WRITTEN if self.force else Fate.LEFT


def _holds(path: Path, values: Pixels) -> bool:
    try:
        return np.array_equal(read_values(path), values)
    except DataError:
        return False


def _link(source: Path, target: Path) -> bool:
    """Puts a link to `source` at `target`, or a copy where links cannot be made; returns whether it is a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    copied = False
    try:
        draft.unlink(missing_ok=True)
        try:
            draft.symlink_to(source.resolve())
        except (OSError, NotImplementedError):
            shutil.copyfile(source, draft)
            copied = True
        os.replace(draft, target)
    finally:
        with suppress(OSError):
            draft.unlink()
    return copied


def _in_parallel(make: Callable[[_Job], _Made], jobs: Sequence[_Job], tell: Callable[[int], None]) -> Iterator[_Made]:
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        try:
            for count, made in enumerate(workers.map(make, jobs), 1):
                yield made
                if count % 16 == 0 or count == len(jobs):
                    tell(count)
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def _make_lists(voc: Path, sbd: Path) -> tuple[dict[str, list[str]], tuple[Path, ...]]:
    """The ids of each list that can be made, and the lists of SBD that are missing."""
    for name in ("train", "val"):
        if not (path := voc / LISTS / f"{name}.txt").is_file():
            raise DataError(f"{path}: no such file; expected VOC 2012's own list: unpack {IMAGES} and ImageSets together")
    lists = {name: read_list(voc / LISTS / f"{name}.txt", _ignore) for name in ("train", "val")}
    lists["train_aug_5953"] = bundled_list()
    missing = tuple(path for path in (sbd / "train.txt", sbd / "val.txt") if not path.is_file())
    if not missing:
        both = {*read_list(sbd / "train.txt", _ignore), *read_list(sbd / "val.txt", _ignore)}
        lists["train_aug"] = sorted({*lists["train"], *both} - set(lists["val"]))
    return lists, missing


def _put_list(path: Path, names: Sequence[str] | None, force: bool) -> ListReport:
    official = OFFICIAL[path.stem]
    if names is None:
        return ListReport(0, official, None)
    if os.path.lexists(path):
        try:
            there = read_list(path, _ignore)
        except DataError:  # empty, or no text
            there = []
        if there == list(names):
            return ListReport(len(names), official, Fate.KEPT)
        if not force:
            return ListReport(len(there), official, Fate.LEFT)
    try:
        write_atomically(path, "".join(f"{name}\n" for name in names).encode())
    except OSError as error:
        raise _unwritable(path, error) from error
    return ListReport(len(names), official, Fate.WRITTEN)


def _compare_noval(lists: Mapping[str, Sequence[str]], places: Iterable[Path]) -> tuple[str, ...]:
    """How VOC's train and a `train_noval.txt` together differ from the list we bring."""
    path = next((path for place in places if (path := place / "train_noval.txt").is_file()), None)
    if path is None:
        return ()
    here, ours = {*lists["train"], *read_list(path, _ignore)}, set(lists["train_aug_5953"])
    return tuple(f"{name} (only in {path.name})" for name in sorted(here - ours)) + tuple(
        f"{name} (not in {path.name})" for name in sorted(ours - here)
    )


def _tally(fates: Iterable[tuple[str, Fate | None]]) -> Files:
    known = [(name, fate) for name, fate in fates if fate is not None]
    return Files(
        sum(fate is Fate.WRITTEN for _, fate in known),
        sum(fate is Fate.KEPT for _, fate in known),
        tuple(name for name, fate in known if fate is Fate.LEFT),
    )


def _explained(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name} ({reason})" for name, reason in reasons.items())


def _ignore(problem: str) -> None:
    """A name that stands twice in an official list is no problem of ours."""


def _reason(error: BaseException) -> str:
    """One line on an error."""
    text = str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error).strip()
    return text.splitlines()[0][:120] if text else type(error).__name__


def _unwritable(path: Path, error: OSError) -> DataError:
    path = Path(error.filename) if isinstance(error.filename, str) else path
    return DataError(f"{path}: cannot be written ({_reason(error)}); make room for it, or choose another --output")


def _same_folder(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def _files_in(folder: Path, suffix: str) -> dict[str, Path]:
    return {path.stem: path for path in folder.glob(f"*{suffix}") if not path.name.startswith(".")}  # "._": of a Mac's tar


def _images_in(output: Path) -> dict[str, Path]:
    return find_images(output / IMAGES) if (output / IMAGES).is_dir() else {}


def _mat_reader() -> Callable[..., Mapping[str, Any]]:
    """The function of scipy that reads .mat files."""
    try:
        reader: Callable[..., Mapping[str, Any]] = importlib.import_module("scipy.io").loadmat
    except ImportError as error:
        raise DataError("scipy is not installed, and SBD's masks are .mat files; run: pip install scipy") from error
    return reader


def _locate(folder: Path, places: Iterable[str], holds: Iterable[str]) -> Path | None:
    """The first of the places in a folder that has all these folders."""
    return next((found for place in places if all(((found := folder / place) / part).is_dir() for part in holds)), None)


@dataclass(frozen=True)
class _Archive:
    """An official archive: where it is, its checksum, and the folder in it."""

    url: str
    file: str
    md5: str
    content: Path


def _archive(which: str) -> _Archive:
    """VOC's or SBD's archive, as torchvision knows it."""
    datasets = compat.torchvision().datasets
    if which == "SBD":
        return _Archive(datasets.SBDataset.url, datasets.SBDataset.filename, datasets.SBDataset.md5, Path("benchmark_RELEASE"))
    voc = datasets.voc.DATASET_YEAR_DICT["2012"]
    return _Archive(voc["url"], voc["filename"], voc["md5"], Path(voc["base_dir"]))


def _obtain(which: str, folder: Path, places: Sequence[str], holds: Sequence[str], download: bool, tell: Progress) -> Path:
    """The folder of a dataset that is not there yet: fetched, or else an error that says what was looked for."""
    if not download:
        others = " or ".join(places[1:])
        raise DataError(
            f"{folder}: found no {' and '.join(holds)} in it, nor in its {others}; expected {which} as its archive unpacks: "
            "give the folder that holds it, or add --download"
        )
    archive = _archive(which)
    try:
        _unpack_into(folder, archive, tell)
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else folder
        raise DataError(f"{place}: cannot be written ({_reason(error)}); make room for {archive.file} and run again") from error
    found = _locate(folder, places, holds)
    if found is None:
        raise DataError(f"{folder / archive.content}: holds no {' and '.join(holds)}; remove it and run again")
    return found


def _unpack_into(folder: Path, archive: _Archive, tell: Progress) -> None:
    """Fetches and unpacks an archive beside its place, and moves it there as the last step."""
    target, kept = folder / archive.content, folder / archive.file
    if target.exists():
        raise DataError(f"{target}: is there but not complete; move it away and run again")
    folder.mkdir(parents=True, exist_ok=True)
    theirs = kept.is_file()
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as name:
        workspace = Path(name)
        if theirs:
            _check(archive, kept, kept)
        else:
            draft = workspace / archive.file
            _retrieve(archive, draft, folder, tell)
            _check(archive, draft, kept)
            os.replace(draft, kept)  # so that a full disk costs no second download
        _unpack(kept, workspace / "content", tell)
        unpacked = workspace / "content" / archive.content
        if not unpacked.is_dir():
            raise DataError(f"{kept}: unpacks to no {archive.content}; it is not the archive of {archive.url}")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unpacked, target)
    if not theirs:
        kept.unlink()


def _by_hand(archive: _Archive, folder: Path) -> str:
    return f"try again later, or fetch {archive.url} by other means, put it into {folder} and run this again"


def _retrieve(archive: _Archive, path: Path, folder: Path, tell: Progress) -> None:
    with path.open("wb") as file, closing(_arriving(archive, folder)) as chunks:
        for chunk, total in chunks:
            file.write(chunk)
            tell(f"fetching {archive.file}", file.tell(), total)


def _arriving(archive: _Archive, folder: Path) -> Generator[tuple[bytes, int], None, None]:
    """The bytes of an archive as they arrive, and how many there will be. What the network does wrong is a DataError."""
    done = total = 0
    request = urllib.request.Request(archive.url, headers={"User-Agent": "cyctr"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS_OF_SILENCE) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                yield chunk, total
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):  # an answer, too, and still open
            error.close()
        raise DataError(f"{archive.file}: cannot be fetched ({_reason(error)}); {_by_hand(archive, folder)}") from error
    if done < total:
        raise DataError(f"{archive.file}: only {done:,} of {total:,} bytes arrived; {_by_hand(archive, folder)}")


def _check(archive: _Archive, path: Path, kept: Path) -> None:
    """Raises DataError unless a file is the official archive; `kept` is the place where it is or would be."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest == archive.md5:
        return
    problem = f"{kept}: md5 is {digest}, expected {archive.md5} of the official archive"
    if path == kept:
        raise DataError(f"{problem}; the file is incomplete or another: remove it and run again")
    raise DataError(f"{problem}; what arrived is incomplete or another file: {_by_hand(archive, kept.parent)}")


def _unpack(path: Path, folder: Path, tell: Progress) -> None:
    size = path.stat().st_size
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # nothing outside the folder, no strange modes

            def told() -> Iterator[tarfile.TarInfo]:
                for member in tar:
                    yield member
                    tell(f"unpacking {path.name}", raw.tell(), size)

            tar.extractall(folder, told())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({_reason(error)}); remove it and run again") from error
