"""A project's folder may come from somebody else: its names and numbers are checked before any file is read or written."""

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from cyctr.errors import DataError
from cyctr.studio.records import STATES

_LONGEST = 255  # bytes of a file's name
_NUMBER = 18  # digits that the tables can hold
_TYPES = {  # what SQLite would put in a column, whatever its type is said to be
    "photos": "typeof(width) || typeof(height) || typeof(example) || typeof(gone) || typeof(run) || typeof(touched)",
    "masks": "typeof(class) || typeof(revision) || typeof(area) || typeof(changed)",
    "negatives": "typeof(class)",
    "changes": "typeof(class)",
}


def is_plain(name: object) -> bool:
    """Whether this can be the name of a file, and leads to no other folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or any(one in name for one in "/\\\0"):
        return False
    try:
        return len(name.encode()) <= _LONGEST
    except UnicodeEncodeError:
        return False


def whole_number(text: str | None) -> int:
    """The number in a text, not below 0; 0 where there is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _NUMBER else 0


def share(text: str | None) -> float | None:
    """The number from 0 to 1 in a text; none where there is none."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if 0 <= found <= 1 else None


def check_folders(project: Path, folders: Iterable[Path]) -> None:
    """Raises DataError for a folder of the project that is a link to one outside, where masks would be written and removed."""
    own = os.path.realpath(project)
    for folder in folders:
        if not Path(os.path.realpath(folder)).is_relative_to(own):
            raise DataError(f"{folder}: is a link that leads out of the project; put the folder itself there", "project")


def check_tables(base: sqlite3.Connection) -> None:
    """Looks at every row of the tables of a project.

    Raises:
        ValueError: one holds what no version of ours has written.
        sqlite3.Error: they are damaged.
    """
    if base.execute("SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone():
        raise ValueError("they change themselves")
    if base.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise ValueError("they are damaged")
    for table, kinds in _TYPES.items():
        wanted = "integer" * kinds.count("typeof")
        if base.execute(f"SELECT 1 FROM {table} WHERE {kinds} != ?", (wanted,)).fetchone():
            raise ValueError(f"a row of {table} holds no whole number where one belongs")
    for photo, path, name, key, file, state, problem, count, moment in base.execute(
        "SELECT id, path, name, key, file, state, problem, bytes, time FROM photos"
    ):
        texts = (photo, name, key, file, *(() if problem is None else (problem,)))
        numbers = () if count is None or moment is None else (count, moment)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
            raise ValueError("a photo has no name")
        if not isinstance(path, bytes) or not _stays_inside(path) or not is_plain(f"{file}.png") or state not in STATES:
            raise ValueError(f"photo {photo!r:.40} is not inside the folder, or not as it should be")
    if base.execute("SELECT 1 FROM photos WHERE width < 0 OR height < 0").fetchone():
        raise ValueError("a photo has a size below 0")
    for table, column in (("masks", "confidence"), ("negatives", "sure"), ("changes", "iou")):
        odd = f"{column} IS NOT NULL AND (typeof({column}) NOT IN ('real', 'integer') OR NOT {column} BETWEEN 0 AND 1)"
        if base.execute(f"SELECT 1 FROM {table} WHERE {odd} OR typeof(photo) != 'text'").fetchone():
            raise ValueError(f"a row of {table} holds no number from 0 to 1 where one belongs")
    if base.execute(
        "SELECT 1 FROM masks WHERE origin NOT IN ('person', 'found') OR area < 0 OR NOT revision BETWEEN 0 AND 1e18"
    ).fetchone():
        raise ValueError("a mask is not as it should be")
    if any(not isinstance(path, bytes) or not _stays_inside(path) for (path,) in base.execute("SELECT path FROM passed")):
        raise ValueError("a file that is no photo is not inside the folder")
    if any(not isinstance(one, str) for row in base.execute("SELECT name, value FROM notes") for one in row):
        raise ValueError("a note holds no text")


def _stays_inside(path: bytes) -> bool:
    """Whether a relative path leads to no folder above."""
    return bool(path) and b"\0" not in path and not os.path.isabs(path) and b".." not in path.split(b"/")
