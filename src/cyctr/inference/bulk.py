"""A folder of images -> a folder of masks: what is done is remembered, image by image, so that a run may stop anywhere."""

import errno
import hashlib
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from cyctr.errors import ConfigError, DataError
from cyctr.formats import Found, Writer
from cyctr.imaging import EXTENSIONS, UNREAD, write_image
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
_OF_ALL = (PREDICTIONS, "index.html", "annotations.json", "classes.txt", "classes.json", "data.yaml")
_MADE_BY, _OURS = "made by", "cyctr segment"
_THUMBNAIL = 320
_LONGEST = 160  # bytes of a key's last part; a file's name may have 255
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
Stamp = tuple[str, int, int]


class Query(NamedTuple):
    """An image to segment, and what its files are called: a relative path without ending."""

    path: Path
    key: str


def find_queries(
    given: Sequence[Path], passed_over: Sequence[Path] = (), complain: Callable[[str], None] | None = None
) -> list[Query]:
    """The images that paths name, files as they are, folders with all below them, in the order of their names.

    Args:
        given: files and folders.
        passed_over: files, and folders of which nothing is taken: where results go, where supports lie.
        complain: told of photographs of kinds that are not read, in a line.
    """
    unread: list[Path] = []
    left_out = {os.path.realpath(path) for path in passed_over}
    found: dict[str, tuple[Path, str]] = {}  # by absolute path: what a folder and a file both name is there once
    for path in given:
        if path.is_dir():
            for image in _below(path, left_out, unread):
                found.setdefault(os.path.abspath(image), (image, image.relative_to(path).as_posix()))
        elif os.path.realpath(path) not in left_out:
            found.setdefault(os.path.abspath(path), (path, path.name))
    if not found:
        others = f", and {counted(len(unread), 'photo')} of other kinds ({unread[0].name})" if unread else ""
        places = ", ".join(map(str, given))
        raise DataError(
            f"{places}: no images to segment{others}; expected {', '.join(EXTENSIONS)} files: convert, or give others"
        )
    if unread and complain is not None:
        first = f"{unread[0]}" + (" first" if len(unread) > 1 else "")
        complain(f"left out: {counted(len(unread), 'photo')} of kinds that are not read ({first}); convert to JPEG or PNG")
    keys = _keys([name for _, name in found.values()])
    return [Query(path, key) for (path, _), key in zip(found.values(), keys, strict=True)]


def _below(folder: Path, left_out: set[str], unread: list[Path]) -> Iterator[Path]:
    """The images of a folder and of those in it; links are followed, and no folder is entered twice. Adds to `unread`."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); expected a folder of images") from error

    entered = {*left_out, os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        visible = sorted(name for name in folders if not name.startswith("."))
        folders.clear()
        for name in visible:
            real = os.path.realpath(os.path.join(place, name))
            if real not in entered:
                entered.add(real)
                folders.append(name)
        for name in sorted(files):
            path = Path(place, name)
            if name.startswith(".") or os.path.realpath(path) in left_out:
                continue
            if path.suffix.lower() in EXTENSIONS:
                yield path
            elif path.suffix.lower() in UNREAD:
                unread.append(path)


def _keys(names: Sequence[str]) -> list[str]:
    """Names without their endings; with them, and then with numbers, where two would be alike."""
    bare = [_shortened(os.path.splitext(name)[0]) for name in names]
    alike = Counter(map(_folded, bare))
    return _apart(_shortened(name) if alike[_folded(short)] > 1 else short for name, short in zip(names, bare, strict=True))


def _apart(keys: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Keys with a number behind those that are taken, or have come before."""
    used, apart = set(map(_folded, taken)), []
    numbers: Counter[str] = Counter()
    for key in keys:
        free = key
        while _folded(free) in used:
            numbers[key] += 1
            free = f"{key}-{numbers[key] + 1}"
        used.add(_folded(free))
        apart.append(free)
    return apart


def _folded(key: str) -> str:
    """What a file system sees that does not tell capitals apart, nor two ways to write an accent."""
    return unicodedata.normalize("NFC", key).casefold()


def _shortened(key: str) -> str:
    """The key; where its last part is too long to add a class and an ending, that is cut, with a checksum of the whole."""
    folder, slash, name = key.rpartition("/")
    if len(os.fsencode(name)) <= _LONGEST:
        return key
    cut = os.fsencode(name)[: _LONGEST - 9].decode(errors="ignore")
    return f"{folder}{slash}{cut}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


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
    """What runs into a folder have done so far, in files of it.

    Attributes:
        folder: of the runs.
        records: by key, what was found in an image and where it was written.
        stamps: by key, the file of the image as it was: where it lies as seen from the folder, its bytes, its time.
    """

    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, about: Mapping[str, Any], force: bool, complain: Callable[[str], None]) -> "Ledger":
        """The ledger of a folder: a new one, or that of a run made in the same way, to go on with.

        Args:
            folder: made if need be.
            about: how this run is made.
            force: remove first what an earlier run has written.
            complain: told of what is damaged and has to be done again.
        """
        ledger, wanted = cls(folder), json.loads(json.dumps({_MADE_BY: _OURS, **about}))
        others = [path.name for path in _listed(folder) if not path.name.startswith(".")]
        if others and RUN not in others:
            raise ConfigError(f"{folder}: holds {others[0]}, but no results of ours; choose another --output, an empty one")
        if others:
            there = _read_run(folder / RUN, force)
            ledger._read(complain)
            differing = [name for name in sorted({*there, *wanted}) if there.get(name) != wanted.get(name)]
            if force:
                ledger._clear()
            elif differing and len(others) > 1:  # a run that has written nothing is in nobody's way
                parts = ", ".join(f"{name} {_short(there.get(name))} / {_short(wanted.get(name))}" for name in differing)
                raise ConfigError(
                    f"{folder}: holds results of another run (there / here: {parts}); use --force or another --output"
                )
        _write(folder / RUN, wanted)
        return ledger

    def named(self, queries: Sequence[Query]) -> list[Query]:
        """The queries by the keys that earlier runs gave them, new ones by keys that are free."""
        known = {place: key for key, (place, _, _) in self.stamps.items()}
        new = [query for query in queries if self._place(query) not in known]
        keys = dict(zip(new, _apart((query.key for query in new), self.stamps), strict=True))
        return [query._replace(key=keys[query] if query in keys else known[self._place(query)]) for query in queries]

    def remaining(self, queries: Iterable[Query], writer: Writer, pictures: Sequence[str] = ()) -> list[Query]:
        """The queries that are new or have changed since, or of whose files one is missing."""
        return [query for query in queries if not self._has(query, writer, pictures)]

    def _has(self, query: Query, writer: Writer, pictures: Sequence[str]) -> bool:
        drawn = all((self.folder / _picture(kind, query.key)).is_file() for kind in pictures)
        return self.stamps.get(query.key) == self.stamp(query) and drawn and writer.done(query.key)

    def stamp(self, query: Query) -> Stamp:
        """By which the file of a query is known again while nobody has written to it."""
        try:
            status = query.path.stat()
        except OSError:  # whoever reads it will say why
            return self._place(query), 0, 0
        return self._place(query), status.st_size, status.st_mtime_ns

    def _place(self, query: Query) -> str:
        try:
            return os.path.relpath(query.path, self.folder)  # all may be moved together
        except ValueError:  # on another drive
            return os.path.abspath(query.path)

    def add(self, key: str, record: dict[str, Any], stamp: Stamp) -> None:
        """Remembers an image whose files are written."""
        try:
            with (self.folder / _RECORDS).open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, record, stamp]) + "\n")
        except OSError as error:
            raise DataError(
                f"{self.folder}: cannot be written ({error.strerror}); make room and run the command again"
            ) from error
        self.records[key], self.stamps[key] = record, stamp

    def finish(self, problems: Mapping[str, str]) -> None:
        """Writes predictions.json, of all that was found."""
        found = [{"key": key, **record} for key, record in sorted(self.records.items())]
        _write(self.folder / PREDICTIONS, {"images": found, "problems": dict(sorted(problems.items()))})

    def _read(self, complain: Callable[[str], None]) -> None:
        """What earlier runs have done. A line that was cut off or is damaged does not count."""
        path = self.folder / _RECORDS
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); choose another --output") from error
        entries = [_entry(line) for line in lines]
        for key, record, stamp in filter(None, entries):
            self.records[key], self.stamps[key] = record, stamp
        if damaged := entries.count(None):
            complain(f"{path}: {counted(damaged, 'line')} cut off or damaged; what was noted there is done again")
            whole = [line for line, entry in zip(lines, entries, strict=True) if entry]
            _replace(path, b"".join(whole))  # so that the next one begins on a line of its own

    def _clear(self) -> None:
        """Removes what earlier runs have written, and nothing else."""
        of_images = [name for key, record in self.records.items() for name in (*record["files"], *_pictures(key))]
        try:
            for name in (*of_images, *_OF_ALL, _RECORDS):  # the records last: until then the earlier run could go on
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder / name}: cannot be removed ({error.strerror}); choose another --output") from error
        for place in sorted({parent for name in of_images for parent in PurePath(name).parents[:-1]}, reverse=True):
            with suppress(OSError):  # it holds something else
                (self.folder / place).rmdir()
        self.records, self.stamps = {}, {}


def segment_folder(
    segmenter: Segmenter,
    supports: Mapping[str, EncodedSupport],
    queries: Sequence[Query],
    ledger: Ledger,
    writer: Writer,
    *,
    overlapping: bool = False,
    pictures: Sequence[str] = (OVERLAYS,),
    batch: int | None = None,
    on_image: Callable[[Query, str | None], None] = lambda query, problem: None,
    settings: Settings | None = None,
) -> dict[str, str]:
    """Segments images and writes what it finds; returns, by key, the problem of each that cannot be read or written.

    Args:
        segmenter: of the supports.
        supports: by the name of the class.
        queries: what `Ledger.remaining` gives.
        ledger: of the run.
        writer: of the masks.
        overlapping: masks may share pixels; otherwise each pixel is of the likeliest class alone.
        pictures: of each image with its masks: `OVERLAYS`, `REVIEW` for small ones, or both.
        batch: images at a time.
        on_image: told of each image that is done, and of its problem if it has one.
        settings: of `Segmenter.segment_many`.
    """
    stamps = [ledger.stamp(query) for query in queries]  # before they are read: what changes meanwhile is done again
    problems: dict[str, str] = {}
    for query in queries:
        ledger.records.pop(query.key, None)

    def complain(place: int, error: DataError) -> None:
        problems[queries[place].key] = str(error)
        on_image(queries[place], str(error))

    paths = [query.path for query in queries]
    for result in segmenter.segment_many(paths, supports, batch=batch, complain=complain, **(settings or {})):
        query = queries[result.place]
        masks = {name: one.mask for name, one in result.classes.items()} if overlapping else result.disjoint
        found = [Found(name, masks[name], one.probability, one.confidence) for name, one in result.classes.items()]
        try:
            files = writer.write(query.key, query.path, found)
            _draw(ledger.folder, query.key, result, pictures)
        except DataError as error:
            if not _is_of_its_name(error):
                raise
            complain(result.place, error)
        else:
            ledger.add(query.key, _record(query, result, masks, files), stamps[result.place])
            on_image(query, None)
    return problems


def _draw(folder: Path, key: str, result: ImageResult, pictures: Sequence[str]) -> None:
    if pictures:
        whole = np.asarray(result.overlay())
        for kind in pictures:
            write_image(folder / _picture(kind, key), fitted(whole, _THUMBNAIL) if kind == REVIEW else whole)


def _picture(kind: str, key: str) -> str:
    return f"{kind}/{key}.jpg"


def _pictures(key: str) -> list[str]:
    return [_picture(kind, key) for kind in (OVERLAYS, REVIEW)]


def _is_of_its_name(error: BaseException | None) -> bool:
    """Whether a file could not be written for what it is called; others can, then."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in _NAME_ERRORS


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


def _read_run(path: Path, force: bool) -> dict[str, Any]:
    """How the earlier run was made; nothing where that is damaged and to be forgotten anyway."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if force:
            return {}
        raise DataError(f"{path}: cannot be read ({error}); use --force, or another --output") from error
    if not isinstance(found, dict) or found.get(_MADE_BY) != _OURS:
        raise ConfigError(f"{path}: is not of `cyctr segment`; choose another --output")
    return found


def _entry(line: bytes) -> tuple[str, dict[str, Any], Stamp] | None:
    """Key, record and stamp on a line of the ledger; none where it is damaged, or leads out of the folder."""
    try:
        key, record, (place, size, time) = json.loads(line)
        names = [PurePath(name) for name in (key, *record["files"])]
        whole = line.endswith(b"\n") and isinstance(record["classes"], dict) and isinstance(place, str)
    except (ValueError, TypeError, KeyError):
        return None
    inside = all(".." not in name.parts and not name.is_absolute() for name in names)
    return (key, record, (place, size, time)) if whole and inside else None


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _write(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    _replace(path, text.encode("utf-8", "backslashreplace"))  # of a name that is no text; JSON reads it as Python does


def _replace(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); make room, or choose another --output") from error


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
