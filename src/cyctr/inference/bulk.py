"""A folder of images -> a folder of masks: what is done is remembered, image by image, so that a run may stop anywhere."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cyctr.errors import ConfigError, DataError
from cyctr.formats import Found, Writer
from cyctr.imaging import EXTENSIONS, write_image
from cyctr.inference.inputs import to_image, to_label
from cyctr.inference.result import ImageResult
from cyctr.inference.segmenter import Segmenter, Settings
from cyctr.inference.support import EncodedSupport
from cyctr.inference.supports import Labelled
from cyctr.storage import write_atomically
from cyctr.visual.contact import fitted
from cyctr.words import counted

RUN, PREDICTIONS, OVERLAYS, REVIEW = "run.json", "predictions.json", "overlays", "review"
_RECORDS = ".predictions.jsonl"
_THUMBNAIL = 320


class Query(NamedTuple):
    """An image to segment, and what its files are called: a relative path without ending."""

    path: Path
    key: str


def find_queries(given: Sequence[Path], passed_over: Sequence[Path] = ()) -> list[Query]:
    """The images that paths name, files as they are, folders with all below them, in the order of their names.

    Args:
        given: files and folders.
        passed_over: files, and folders of which nothing is taken: where results go, where supports lie.
    """
    left_out = {path.resolve() for path in passed_over}
    found: dict[Path, str] = {}  # by absolute path: what a folder and a file both name is there once
    for path in given:
        if path.is_dir():
            for image in _below(path, left_out):
                found.setdefault(image, image.relative_to(path).as_posix())
        elif path.resolve() not in left_out:
            found.setdefault(path, path.name)
    if not found:
        raise DataError(f"{', '.join(map(str, given))}: no images to segment; expected {', '.join(EXTENSIONS)} files")
    return [Query(path, key) for path, key in zip(found, _keys(list(found.values())), strict=True)]


def _below(folder: Path, left_out: set[Path]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); expected a folder of images") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and (here / name).resolve() not in left_out)
        for name in sorted(files):
            path = here / name
            if path.suffix.lower() in EXTENSIONS and not name.startswith(".") and path.resolve() not in left_out:
                yield path


def _keys(names: Sequence[str]) -> list[str]:
    """Names without their endings; with them, and then with numbers, where two would be alike."""
    bare = [name[: -len(Path(name).suffix)] if Path(name).suffix else name for name in names]
    lowered = [name.lower() for name in bare]  # some file systems do not tell them apart
    several = {name for name in lowered if lowered.count(name) > 1} if len(set(lowered)) < len(lowered) else set()
    keys = [name if short.lower() in several else short for name, short in zip(names, bare, strict=True)]
    taken: dict[str, int] = {}
    unique = []
    for key in keys:
        number = taken[key.lower()] = taken.get(key.lower(), 0) + 1
        unique.append(key if number == 1 else f"{key}-{number}")
    return unique


def encode_labelled(
    segmenter: Segmenter, name: str, shots: Sequence[Labelled], tile: int | None, complain: Callable[[str], None]
) -> EncodedSupport:
    """The support of a class from labelled files; those that cannot be read are left out, and complained of."""
    images, labels = [], []
    for shot in shots:
        try:
            image = to_image(shot.image)
            labels.append(to_label(shot.mask, (image.shape[0], image.shape[1]), shot.class_id, str(shot.image)))
            images.append(image)
        except DataError as error:
            complain(str(error))
    if not images:
        raise DataError(f"class {name!r}: none of its {counted(len(shots), 'labelled image')} can be read; mend them")
    return segmenter.encode_support(images, labels, name=name, class_id=1, tile=tile)


@dataclass
class Ledger:
    """What a run has done so far, in files of its folder.

    Attributes:
        folder: of the run.
        records: by key, what was found in an image and where it was written.
    """

    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, about: Mapping[str, Any], force: bool) -> "Ledger":
        """The ledger of a folder: a new one, or that of a run made in the same way, to go on with.

        Args:
            folder: made if need be.
            about: how this run is made.
            force: forget a run that is there; its files are replaced one by one.
        """
        ledger, wanted = cls(folder), json.loads(json.dumps(about))
        run = folder / RUN
        if run.exists() and not force:
            there = _read_json(run)
            differing = [name for name in sorted({*there, *wanted}) if there.get(name) != wanted.get(name)]
            if differing:
                parts = ", ".join(f"{name} {_short(there.get(name))} / {_short(wanted.get(name))}" for name in differing)
                raise ConfigError(
                    f"{folder}: holds results of another run (there / here: {parts}); use --force or another --output"
                )
            ledger.records = dict(_read_lines(folder / _RECORDS))
            return ledger
        others = [path for path in _listed(folder) if not path.name.endswith(".lock")]
        if others and not force:
            raise ConfigError(f"{folder}: is not empty ({others[0].name}); choose another --output, or add to it with --force")
        with suppress(FileNotFoundError):
            (folder / _RECORDS).unlink()
        _write(run, wanted)
        return ledger

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Remembers an image whose files are written."""
        self.records[key] = record
        try:
            with (self.folder / _RECORDS).open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, record]) + "\n")
        except OSError as error:
            raise DataError(
                f"{self.folder}: cannot be written ({error.strerror}); make room and run the command again"
            ) from error

    def finish(self, queries: Iterable[Query], problems: Mapping[str, str]) -> None:
        """Writes predictions.json, of all that was found."""
        found = [{"key": query.key, **self.records[query.key]} for query in queries if query.key in self.records]
        _write(self.folder / PREDICTIONS, {"images": found, "problems": dict(problems)})


def segment_folder(
    segmenter: Segmenter,
    supports: Mapping[str, EncodedSupport],
    queries: Sequence[Query],
    ledger: Ledger,
    writer: Writer,
    *,
    overlapping: bool = False,
    overlays: bool = True,
    thumbnails: bool = False,
    batch: int | None = None,
    on_image: Callable[[Query, str | None], None] = lambda query, problem: None,
    settings: Settings | None = None,
) -> dict[str, str]:
    """Segments what the ledger has not, and writes it; returns the problem of each image that could not be read.

    Args:
        segmenter: of the supports.
        supports: by the name of the class.
        queries: all of them, those that are done too.
        ledger: of the run.
        writer: of the masks.
        overlapping: masks may share pixels; otherwise each pixel is of the likeliest class alone.
        overlays: also a picture of each image with its masks.
        thumbnails: also a small one, for the page of a review.
        batch: images at a time.
        on_image: told of each image that is done, and of its problem if it has one.
        settings: of `Segmenter.segment_many`.
    """
    todo = [query for query in queries if query.key not in ledger.records]
    problems: dict[str, str] = {}

    def complain(place: int, error: DataError) -> None:
        problems[todo[place].key] = str(error)
        on_image(todo[place], str(error))

    paths = [query.path for query in todo]
    for result in segmenter.segment_many(paths, supports, batch=batch, complain=complain, **(settings or {})):
        query = todo[result.place]
        masks = {name: one.mask for name, one in result.classes.items()} if overlapping else result.disjoint
        found = [Found(name, masks[name], one.probability, one.confidence) for name, one in result.classes.items()]
        files = writer.write(query.key, query.path, found)
        if overlays or thumbnails:
            picture = np.asarray(result.overlay())
            if overlays:
                write_image(ledger.folder / OVERLAYS / f"{query.key}.jpg", picture)
            if thumbnails:
                write_image(ledger.folder / REVIEW / f"{query.key}.jpg", fitted(picture, _THUMBNAIL))
        ledger.add(query.key, _record(query, result, masks, files))
        on_image(query, None)
    return problems


def _record(query: Query, result: ImageResult, masks: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    height, width = result.image.shape[:2]
    classes = {
        name: {
            "confidence": round(one.confidence, 4),
            "present": one.present,
            "pixels": int(masks[name].sum()),
            "box": _box(masks[name]),
        }
        for name, one in result.classes.items()
    }
    return {"image": str(query.path), "height": height, "width": width, "classes": classes, "files": list(files)}


def _box(mask: Any) -> list[int] | None:
    """[left, top, right, bottom], the last two exclusive; none of an empty mask."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return None if not len(rows) else [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); use --force, or another --output") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: is not ours; choose another --output")
    return found


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of earlier runs; the last one may have been cut off."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            key, record = json.loads(line)
        except ValueError:
            continue
        yield key, record


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _write(path: Path, value: Any) -> None:
    try:
        write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another --output") from error


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
