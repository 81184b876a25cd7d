"""A record of what runs into a folder have done. A run may stop anywhere, and replaces only files of runs."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePath
from typing import Any

from cyctr import json_files
from cyctr.errors import ConfigError, DataError
from cyctr.formats import Writer
from cyctr.inference.folder.queries import MADE_BY, OURS, RUN, QueryFile, apart
from cyctr.storage import write_atomically
from cyctr.words import counted

PREDICTIONS, PAGE, OVERLAYS, REVIEW = "predictions.json", "index.html", "overlays", "review"
_RECORDS, _SHARED, _ASIDE = ".predictions.jsonl", ".shared.json", "replaced"
_KEPT = ("classes.txt", "classes.json", "data.yaml", ".coco.jsonl")  # a run goes on with those that are there
_OF_ALL = {PREDICTIONS, PAGE, "annotations.json", *_KEPT}
_FOLDERS = (("masks",), ("labels",), ("arrays",))  # of the files of single images
Stamp = tuple[str, int, int]


@dataclass
class Ledger:
    """What runs into a folder have done so far, in files of it.

    Attributes:
        folder: of the runs.
        records: by key, what was found in an image and where it was written.
        stamps: by key, the file of the image as it was: where it lies as seen from the folder, its bytes, its time.
        digests: by key, checksums of the files that were written, by which it shows that somebody has changed one.
        shared: likewise of files that belong to all images; None while a run is writing them, and of what users may add to.
    """

    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    stamps: dict[str, Stamp] = field(default_factory=dict)
    digests: dict[str, dict[str, str]] = field(default_factory=dict)
    shared: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, about: Mapping[str, Any], force: bool, complain: Callable[[str], None]) -> "Ledger":
        """The ledger of a folder: a new one, or that of a run made in the same way, to go on with.

        Args:
            folder: made if need be.
            about: how this run is made.
            force: remove first what an earlier run has written.
            complain: told of damaged records, whose images are done again.
        """
        ledger, wanted = cls(folder), json.loads(json.dumps({MADE_BY: OURS, **about}))
        others = [path.name for path in _listed(folder) if not path.name.startswith(".")]
        if others and RUN not in others:
            raise ConfigError(
                f"{folder}: holds {others[0]}, but no results of ours; choose another folder, an empty one", "output"
            )
        if others:
            there = _read_run(folder / RUN, force)
            ledger._read(complain, None if force else there.get("classes"))
            differing = [name for name in sorted({*there, *wanted}) if there.get(name) != wanted.get(name)]
            if force:
                ledger._clear(complain)
            elif differing and len(others) > 1:  # a run that has written nothing is in nobody's way
                parts = ", ".join(f"{name} {_short(there.get(name))} / {_short(wanted.get(name))}" for name in differing)
                raise ConfigError(
                    f"{folder}: holds results of another run (there / here: {parts}); replace them, or choose another folder",
                    "force",
                    "output",
                )
        _write(folder / RUN, wanted)
        return ledger

    def named(self, queries: Sequence[QueryFile]) -> list[QueryFile]:
        """The queries by the keys that earlier runs gave them, new ones by keys that are free."""
        known = {place: key for key, (place, _, _) in self.stamps.items()}
        new = [query for query in queries if self._place(query) not in known]
        keys = dict(zip(new, apart((query.key for query in new), self.stamps), strict=True))
        return [query._replace(key=keys[query] if query in keys else known[self._place(query)]) for query in queries]

    def claim(self, names: Iterable[str]) -> None:
        """Says that a run is going to write files that belong to all images; one that is somebody else's is refused.

        Raises:
            ConfigError: a file of that name would be replaced, and no run wrote it, or somebody has changed it since.
        """
        for name in names:
            path = self.folder / name
            known, there = self.shared.get(name), path.is_file()
            if name not in _KEPT and there and name not in self.shared:
                raise ConfigError(
                    f"{path}: is not of an earlier run, and would be replaced; move it away, or choose another folder",
                    "output",
                )
            if name not in _KEPT and there and known is not None and known != _digest(path):
                raise ConfigError(
                    f"{path}: was changed since a run wrote it, and would be replaced; move it away, or allow that",
                    "force",
                )
            if not there or name in self.shared:
                self.shared[name] = None
        _write(self.folder / _SHARED, self.shared)

    def remaining(
        self,
        queries: Iterable[QueryFile],
        writer: Writer,
        pictures: Sequence[str] = (),
        complain: Callable[[str], None] = lambda problem: None,
    ) -> list[QueryFile]:
        """The queries that are new or have changed since, or of whose files one is missing.

        Args:
            queries: all of them.
            writer: of their files.
            pictures: that each must have.
            complain: told of a file that somebody has changed, and that is left as it is.
        """
        todo = [query for query in queries if not self.written(query, writer) or not self._drawn(query, pictures)]
        edited = {query: names for query in todo if not self.written(query, writer) and (names := self._edited(query.key))}
        if edited:
            name, number = next(iter(edited.values()))[0], counted(len(edited), "image")
            complain(f"not done again: {number}, since {self.folder / name} was changed by hand; force replaces such files")
        return [query for query in todo if query not in edited]

    def written(self, query: QueryFile, writer: Writer) -> bool:
        """Whether all masks of a query are there, and of the image as it is now."""
        return self.stamps.get(query.key) == self.stamp(query) and writer.done(query.key)

    def _drawn(self, query: QueryFile, pictures: Sequence[str]) -> bool:
        return all((self.folder / picture(kind, query.key)).is_file() for kind in pictures)

    def _edited(self, key: str) -> list[str]:
        """The files of a key that are not as they were written."""
        known = self.digests.get(key, {})
        return [
            name for name, digest in known.items() if (self.folder / name).is_file() and _digest(self.folder / name) != digest
        ]

    def stamp(self, query: QueryFile) -> Stamp:
        """By which the file of a query is known again while nobody has written to it."""
        try:
            status = query.path.stat()
        except OSError:  # whoever reads it will say why
            return self._place(query), 0, 0
        return self._place(query), status.st_size, status.st_mtime_ns

    def _place(self, query: QueryFile) -> str:
        try:
            return os.path.relpath(query.path, self.folder)  # all may be moved together
        except ValueError:  # on another drive
            return os.path.abspath(query.path)

    def add(self, key: str, record: dict[str, Any], stamp: Stamp) -> None:
        """Remembers an image whose files are written."""
        own = [name for name in record["files"] if name not in self.shared]
        digests = {name: _digest(self.folder / name) for name in own if (self.folder / name).is_file()}
        try:
            with (self.folder / _RECORDS).open("a", encoding="utf-8") as file:
                file.write(json_files.sealed([key, record, stamp, digests]).decode())
        except OSError as error:
            raise DataError(
                f"{self.folder}: cannot be written ({error.strerror}); make room and run the command again"
            ) from error
        self.records[key], self.stamps[key], self.digests[key] = record, stamp, digests

    def finish(self, problems: Mapping[str, str]) -> None:
        """Writes predictions.json, of all that was found; nothing that belongs to all images may be written after it."""
        found = [{"key": key, **record} for key, record in sorted(self.records.items())]
        _write(self.folder / PREDICTIONS, {"images": found, "problems": dict(sorted(problems.items()))})
        there = [name for name in {**self.shared, PREDICTIONS: None} if (self.folder / name).is_file()]
        self.shared = {name: None if name in _KEPT else _digest(self.folder / name) for name in there}
        _write(self.folder / _SHARED, self.shared)

    def _read(self, complain: Callable[[str], None], classes: Any) -> None:
        """What earlier runs have done. A line that was cut off or is damaged, or is of other classes, does not count."""
        with suppress(OSError, ValueError):  # without it, nothing that belongs to all images is ours
            noted = json_files.read_object(self.folder / _SHARED)
            self.shared = {name: digest for name, digest in noted.items() if name in _OF_ALL}
        path = self.folder / _RECORDS
        whole, damaged = [], 0
        try:
            for line, value in json_files.read_lines(path):
                entry = _entry(value, classes)
                if entry is None:
                    damaged += 1
                    continue
                key, record, stamp, digests = entry
                self.records[key], self.stamps[key], self.digests[key] = record, stamp, digests
                whole.append(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); choose another folder", "output") from error
        if damaged:
            complain(f"{path}: {counted(damaged, 'line')} cut off or damaged; what was noted there is done again")
            _replace(path, b"".join(whole))  # the next one begins on a line of its own

    def _clear(self, complain: Callable[[str], None]) -> None:
        """Removes what earlier runs have written, and nothing else.

        Masks that are not as they were written are put aside: somebody has changed them, or the records are forged.
        """
        of_images = [name for key, record in self.records.items() for name in (*record["files"], *_pictures(key))]
        own, noted = self.folder.resolve(), {name: mark for marks in self.digests.values() for name, mark in marks.items()}
        aside = next(place for number in count(1) if not (place := self.folder / f"{_ASIDE}-{number}").exists())
        try:
            # the records last: until then the earlier run could go on
            for name in (*of_images, *self.shared, _SHARED, _RECORDS):
                path = self.folder / name
                if not path.parent.resolve().is_relative_to(own):  # by a link: what lies there is not of this folder
                    continue
                if PurePath(name).parts[:1] in _FOLDERS and path.is_file() and _digest(path) != noted.get(name):
                    (aside / name).parent.mkdir(parents=True, exist_ok=True)
                    path.rename(aside / name)
                else:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"{self.folder / name}: cannot be removed ({error.strerror}); choose another folder", "output"
            ) from error
        for parent in sorted({parent for name in of_images for parent in PurePath(name).parents[:-1]}, reverse=True):
            with suppress(OSError):  # it holds something else
                (self.folder / parent).rmdir()
        if aside.is_dir():
            complain(f"{aside}: has the masks that were changed by hand; remove it if they are not needed")
        self.records, self.stamps, self.digests, self.shared = {}, {}, {}, {}


def picture(kind: str, key: str) -> str:
    """The file of a picture of an image: of all of it, or a small one."""
    return f"{kind}/{key}.jpg"


def _pictures(key: str) -> list[str]:
    return [picture(kind, key) for kind in (OVERLAYS, REVIEW)]


def _read_run(path: Path, force: bool) -> dict[str, Any]:
    """How the earlier run was made; nothing where that is damaged and to be forgotten anyway."""
    try:
        found = json_files.read_object(path)
    except (OSError, ValueError) as error:
        if force:
            return {}
        raise DataError(
            f"{path}: cannot be read ({error}); replace the run, or choose another folder", "force", "output"
        ) from error
    if found.get(MADE_BY) != OURS:
        raise ConfigError(f"{path}: is not of `cyctr segment`; choose another folder", "output")
    return found


def _entry(value: Any, classes: Any) -> tuple[str, dict[str, Any], Stamp, dict[str, str]] | None:
    """Key, record, stamp and checksums of a line of the ledger; none where it is not as a run wrote it, or of other classes."""
    match json_files.unsealed(value, 4):
        case [str(key), dict(record), [str(place), int(size), int(time)], dict(digests)]:
            ours = _is_record(record) and (not isinstance(classes, list) or list(record["classes"]) == classes)
            if ours and _is_inside(key) and all(map(_is_ours, (*record["files"], *digests))):
                return key, record, (place, size, time), digests
    return None


def _is_record(record: dict[str, Any]) -> bool:
    """Whether a record has every field that is read."""
    match record:
        case {"image": str(), "height": int(height), "width": int(width), "classes": dict(classes), "files": list()}:
            return min(height, width) > 0 and all(map(_is_found, classes.values()))
    return False


def _is_found(found: Any) -> bool:
    match found:
        case {"confidence": float() | int(), "present": bool(), "pixels": int()}:
            return True
    return False


def _is_inside(name: str) -> bool:
    """Whether a name leads to a place in the folder."""
    path = PurePath(name)
    try:
        os.fsencode(name)
    except ValueError:
        return False
    return name != "" and "\0" not in name and ".." not in path.parts and not path.is_absolute()


def _is_ours(name: Any) -> bool:
    """Whether a run may have written a file of that name: what somebody adds to our notes is not removed with ours."""
    return isinstance(name, str) and _is_inside(name) and (name in _OF_ALL or PurePath(name).parts[:1] in _FOLDERS)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); allow it, or choose another folder", "output") from error


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _write(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    _replace(path, text.encode("utf-8", "backslashreplace"))  # of a name that is no text; JSON reads it as Python does


def _replace(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); make room, or choose another folder", "output"
        ) from error


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
