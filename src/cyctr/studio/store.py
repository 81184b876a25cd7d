"""What is known of each photo and mask, in SQLite: lists are sorted and counted without reading a file."""

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cyctr.errors import DataError
from cyctr.studio.records import STATES, Filter, Mask, Photo
from cyctr.studio.refusals import FullError, UnknownError
from cyctr.studio.trust import check_tables, whole_number

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS photos (
    id TEXT PRIMARY KEY, path BLOB NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, file TEXT NOT NULL UNIQUE,
    bytes INTEGER, time INTEGER, width INTEGER NOT NULL DEFAULT 0, height INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'open', example INTEGER NOT NULL DEFAULT 0, problem TEXT, gone INTEGER NOT NULL DEFAULT 0,
    run INTEGER NOT NULL DEFAULT 0, touched INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS photos_by_name ON photos (gone, name);
CREATE INDEX IF NOT EXISTS photos_by_state ON photos (gone, state);
CREATE TABLE IF NOT EXISTS masks (
    photo TEXT, class INTEGER, origin TEXT NOT NULL, revision INTEGER NOT NULL, confidence REAL, area INTEGER NOT NULL,
    changed INTEGER NOT NULL, PRIMARY KEY (photo, class)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS negatives (
    photo TEXT, class INTEGER, sure REAL NOT NULL DEFAULT 0, PRIMARY KEY (photo, class)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS passed (path BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (photo TEXT, class INTEGER, iou REAL NOT NULL, PRIMARY KEY (photo, class)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""
_SURE = "(SELECT MIN(COALESCE(m.confidence, 1)) FROM masks m WHERE m.photo = photos.id{})"


class Store:
    """The tables of a project. Threads may share it; each change is on disk when its call returns."""

    def __init__(self, path: Path) -> None:
        """Opens the file, made if need be.

        Raises:
            DataError: it is damaged, or of a newer version.
        """
        self._lock = threading.RLock()
        try:
            self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")  # what was said to be saved survives a power cut
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise DataError(f"{path}: is of a newer version of cyctr (format {version}); update cyctr to open it")
            self._base.executescript(_SCHEMA)
            self._base.execute(f"PRAGMA user_version = {_VERSION}")
            check_tables(self._base)
            self._revision = whole_number(self.note("revision"))
        except (sqlite3.Error, ValueError) as error:
            self.close()
            raise DataError(
                f"{path}: cannot be opened ({error}); move it away, and what the masks say is read from their files"
            ) from error

    def close(self) -> None:
        """Ends all work with the file."""
        with self._lock:
            self._base.close()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """All changes inside happen, or none does."""
        with self._lock:
            if self._within():
                yield
                return
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield
                self._base.execute("COMMIT")
            except BaseException as error:
                if self._within():
                    self._base.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise FullError(
                        f"the project cannot be written ({error}); make room on the disk, it is tried again"
                    ) from error
                raise

    def _within(self) -> bool:
        return self._base.in_transaction

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._base.execute(sql, values).fetchall()

    def _do(self, sql: str, *values: Any) -> None:
        with self.changing():
            self._base.execute(sql, values)

    # notes

    def note(self, name: str) -> str | None:
        """A value that was kept."""
        rows = self._all("SELECT value FROM notes WHERE name = ?", name)
        return rows[0][0] if rows else None

    def keep(self, name: str, value: str) -> None:
        """Keeps a value."""
        self._do("INSERT OR REPLACE INTO notes VALUES (?, ?)", name, value)

    def next_revision(self) -> int:
        """A number that no mask has had; it is kept with the mask that takes it."""
        with self._lock:
            self._revision += 1
            return self._revision

    def at_least(self, revision: int) -> None:
        """Makes the next revision larger than this."""
        with self._lock:
            self._revision = max(self._revision, revision)

    # photos

    def add_photos(self, rows: Iterable[tuple[str, bytes, str, str, str]]) -> None:
        """Adds photos: id, path, name, key and file of each."""
        with self.changing():
            self._base.executemany("INSERT INTO photos (id, path, name, key, file) VALUES (?, ?, ?, ?, ?)", rows)

    def known(self) -> dict[str, bool]:
        """Whether each photo is gone, by id."""
        return {name: bool(gone) for name, gone in self._all("SELECT id, gone FROM photos")}

    def files(self) -> list[str]:
        """The `file` of every photo."""
        return [file for (file,) in self._all("SELECT file FROM photos")]

    def keys(self) -> list[str]:
        """The `key` of every photo."""
        return [key for (key,) in self._all("SELECT key FROM photos")]

    def set_gone(self, photos: Iterable[str], gone: bool) -> None:
        """Notes which photos have left the folder, or are back."""
        with self.changing():
            self._base.executemany("UPDATE photos SET gone = ? WHERE id = ?", [(int(gone), one) for one in photos])

    def photo(self, id: str) -> Photo:  # noqa: A002 - the page's word
        """The photo of that id."""
        rows = self._all(f"SELECT {_PHOTO} FROM photos WHERE id = ?", id)
        if not rows:
            raise UnknownError(f"photo {id!r:.40} does not exist; load the page again")
        return _photo(rows[0])

    def photo_of(self, file: str) -> Photo | None:
        """The photo whose masks have that name."""
        rows = self._all(f"SELECT {_PHOTO} FROM photos WHERE file = ?", file)
        return _photo(rows[0]) if rows else None

    def update(self, photo: str, **values: Any) -> None:
        """Changes columns of a photo."""
        names = ", ".join(f"{name} = ?" for name in values)
        self._do(f"UPDATE photos SET {names} WHERE id = ?", *values.values(), photo)

    def photos(self, query: Filter, offset: int = 0, limit: int = -1) -> tuple[int, list[Photo]]:
        """How many photos a query finds, and some of them."""
        only = "" if query.class_id is None else f" AND m.class = {int(query.class_id)}"
        sure = _SURE.format(only)
        where, values = ["gone = 0"], []
        for text, value in (("state = ?", query.state), (f"{sure} >= ?", query.least), (f"{sure} <= ?", query.most)):
            if value is not None:
                where.append(text)
                values.append(value)
        if query.examples is not None:
            where.append(f"example = {int(query.examples)}")
        if query.class_id is not None:
            where.append(f"EXISTS (SELECT 1 FROM masks m WHERE m.photo = photos.id{only})")
        order = {"name": "name, id", "confidence": f"{sure} IS NULL, {sure}, name, id", "changed": "touched DESC, name, id"}
        such = " AND ".join(where)
        with self._lock:
            ((total,),) = self._all(f"SELECT COUNT(*) FROM photos WHERE {such}", *values)
            sql = f"SELECT {_PHOTO} FROM photos WHERE {such} ORDER BY {order[query.sort]} LIMIT ? OFFSET ?"
            return total, [_photo(row) for row in self._all(sql, *values, limit, offset)]

    def position(self, photo: str) -> int:
        """How many photos come before one in the order of their names."""
        here = "(SELECT name, id FROM photos WHERE id = ?)"
        ((before,),) = self._all(f"SELECT COUNT(*) FROM photos WHERE gone = 0 AND (name, id) < {here}", photo)
        return int(before)

    def counts(self) -> dict[str, int]:
        """How many photos there are: all, in each state, and examples."""
        rows = dict(self._all("SELECT state, COUNT(*) FROM photos WHERE gone = 0 GROUP BY state"))
        ((examples,),) = self._all("SELECT COUNT(*) FROM photos WHERE gone = 0 AND example = 1")
        return {"photos": sum(rows.values()), **{state: rows.get(state, 0) for state in STATES}, "examples": examples}

    # masks

    def masks(self, photos: Sequence[str]) -> dict[str, dict[int, Mask]]:
        """The masks of some photos, by photo and class."""
        found: dict[str, dict[int, Mask]] = {one: {} for one in photos}
        for start in range(0, len(photos), 500):
            part = photos[start : start + 500]
            marks = ", ".join("?" * len(part))
            for row in self._all(f"SELECT * FROM masks WHERE photo IN ({marks})", *part):
                found[row[0]][row[1]] = Mask(*row)
        return found

    def mask(self, photo: str, class_id: int) -> Mask | None:
        """The mask of a class in a photo."""
        rows = self._all("SELECT * FROM masks WHERE photo = ? AND class = ?", photo, class_id)
        return Mask(*rows[0]) if rows else None

    def every_mask(self) -> list[Mask]:
        """All masks."""
        return [Mask(*row) for row in self._all("SELECT * FROM masks")]

    def put_mask(self, mask: Mask) -> None:
        """Notes a mask whose file is written."""
        values = (mask.photo, mask.class_id, mask.origin, mask.revision, mask.confidence, mask.area, mask.changed)
        with self.changing():
            self._do("INSERT OR REPLACE INTO masks VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
            self._do("UPDATE photos SET touched = ? WHERE id = ?", time.time_ns() // 1000, mask.photo)
            self.keep("revision", str(self._revision))

    def drop_mask(self, photo: str, class_id: int) -> None:
        """Forgets a mask whose file is removed."""
        self._do("DELETE FROM masks WHERE photo = ? AND class = ?", photo, class_id)

    def drop_class(self, class_id: int) -> None:
        """Forgets all that is known of a class."""
        with self.changing():
            for table in ("masks", "negatives", "changes"):
                self._do(f"DELETE FROM {table} WHERE class = ?", class_id)

    def examples(self, class_id: int) -> list[tuple[Photo, Mask]]:
        """The photos that are examples of a class, and their masks, in the order of their names."""
        sql = (
            f"SELECT {_PHOTO}, masks.* FROM photos JOIN masks ON masks.photo = photos.id WHERE class = ? AND gone = 0 "
            "AND example = 1 AND origin = 'person' AND area > 0 ORDER BY name, id"
        )
        width = len(_PHOTO.split(", "))
        return [(_photo(row[:width]), Mask(*row[width:])) for row in self._all(sql, class_id)]

    def class_counts(self) -> dict[int, dict[str, int]]:
        """For each class how many examples, negatives and found masks there are."""
        found: dict[int, dict[str, int]] = {}
        sql = (
            "SELECT class, SUM(example = 1 AND origin = 'person' AND area > 0), SUM(origin = 'found' AND area > 0), "
            "SUM(origin = 'person') FROM masks JOIN photos ON photos.id = masks.photo WHERE gone = 0 GROUP BY class"
        )
        for class_id, examples, own, person in self._all(sql):
            found[class_id] = {"examples": examples, "negatives": 0, "found": own, "person": person}
        for class_id, count in self._all("SELECT class, COUNT(*) FROM negatives GROUP BY class"):
            found.setdefault(class_id, {"examples": 0, "negatives": 0, "found": 0, "person": 0})["negatives"] = count
        return found

    # negatives, changes, files that are no photos

    def negatives(self, photo: str) -> list[int]:
        """The classes that are not in a photo."""
        return [one for (one,) in self._all("SELECT class FROM negatives WHERE photo = ? ORDER BY class", photo)]

    def negatives_of(self, photos: Sequence[str]) -> Mapping[str, list[int]]:
        """Likewise for several photos."""
        return {photo: self.negatives(photo) for photo in photos}

    def negative_photos(self, class_id: int) -> list[Photo]:
        """The photos in which a class is not; first those that the network took for it most."""
        sql = (
            f"SELECT {_PHOTO} FROM photos JOIN negatives ON photo = id WHERE class = ? AND gone = 0 "
            "ORDER BY sure DESC, name, id"
        )
        return [_photo(row) for row in self._all(sql, class_id)]

    def set_negative(self, photo: str, class_id: int, on: bool) -> None:
        """Notes that a class is not in a photo, or forgets it."""
        if on:
            known = self.mask(photo, class_id)  # as it is now: later the network knows better
            sure = known.confidence if known is not None and known.confidence is not None and known.area else 0.0
            self._do("INSERT OR IGNORE INTO negatives VALUES (?, ?, ?)", photo, class_id, sure)
        else:
            self._do("DELETE FROM negatives WHERE photo = ? AND class = ?", photo, class_id)

    def changes(self, offset: int = 0, limit: int = -1) -> tuple[int, list[tuple[str, int, float]]]:
        """How many masks the last run changed, and some of them, the most different first."""
        ((total,),) = self._all("SELECT COUNT(*) FROM changes")
        return total, self._all("SELECT * FROM changes ORDER BY iou, photo, class LIMIT ? OFFSET ?", limit, offset)

    def add_change(self, photo: str, class_id: int, iou: float) -> None:
        """Notes that a run changed a mask."""
        self._do("INSERT OR REPLACE INTO changes VALUES (?, ?, ?)", photo, class_id, iou)

    def clear_changes(self) -> None:
        """Forgets what the last run changed."""
        self._do("DELETE FROM changes")

    def passed(self) -> list[bytes]:
        """Files of the folder that are masks, relative to it."""
        return [path for (path,) in self._all("SELECT path FROM passed")]

    def pass_over(self, paths: Iterable[bytes]) -> None:
        """Notes files of the folder that are masks."""
        with self.changing():
            self._base.executemany("INSERT OR IGNORE INTO passed VALUES (?)", [(path,) for path in paths])

    # what jobs ask

    def todo(self, run: int, states: Sequence[str]) -> list[Photo]:
        """The photos of some states that a run has not done, in the order of their names."""
        marks = ", ".join("?" * len(states))
        sql = f"SELECT {_PHOTO} FROM photos WHERE gone = 0 AND run < ? AND state IN ({marks}) ORDER BY name, id"
        return [_photo(row) for row in self._all(sql, run, *states)]

    def acceptable(self, least: float, class_id: int | None) -> list[str]:
        """The open photos whose least certain mask is at least so certain."""
        return [one.id for one in self.photos(Filter(state="open", class_id=class_id, least=least))[1]]


_PHOTO = (
    "photos.id, photos.path, photos.name, photos.key, photos.file, photos.bytes, photos.time, photos.height, photos.width, "
    "photos.state, photos.example, photos.problem, photos.gone, photos.run"
)


def _photo(row: Sequence[Any]) -> Photo:
    id_, path, name, key, file, count, moment, height, width, state, example, problem, gone, run = row
    stamp = None if count is None else (count, moment)
    size = (height, width)
    return Photo(id_, bytes(path), name, key, file, stamp, size, state, bool(example), problem, bool(gone), run)
