"""Where files of ours go: the user's cache, and writing in one step or not at all."""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from cyctr.errors import ConfigError, DataError

_DRAFT = ".cyctr-draft"


def cache_folder() -> Path:
    """Where weights and indices are kept: $CYCTR_CACHE, or `cyctr` in the platform's place for caches."""
    if chosen := os.environ.get("CYCTR_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cyctr"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "cyctr"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cyctr"


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Writes a file in one step: a reader never sees half of it. An older file is replaced, and a missing folder made.

    Raises:
        OSError: it cannot be written; nothing has changed then.
    """
    with _draft(path) as draft:
        draft.write_bytes(content)


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Like `write_atomically`, for a file that is made piece by piece and need not fit in memory."""
    with _draft(path) as draft, draft.open("wb") as file:
        file.writelines(pieces)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A file to write in place of `path`, which it takes at the end; it is gone where something fails."""
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}.{threading.get_ident()}{_DRAFT}")  # a name has 255 bytes at most
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with draft.open("r+b") as file:
            os.fsync(file.fileno())  # a power cut finds the old content or the new
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


def _remove_drafts(path: Path) -> None:
    """Removes what processes that were killed have left half written in a folder, or beside a file that nobody else writes."""
    if path.is_dir():
        drafts = (Path(place, name) for place, _, names in os.walk(path) for name in names if name.endswith(_DRAFT))
    else:
        start = f".{path.name[:40]}."
        there = os.listdir(path.parent) if path.parent.is_dir() else []
        drafts = (path.with_name(name) for name in there if name.startswith(start) and name.endswith(_DRAFT))
    for draft in drafts:
        with suppress(OSError):
            draft.unlink()


def sweep(path: Path) -> None:
    """Removes drafts of a file that processes left which are no longer there; those of others, which may write it, stay."""
    if os.name != "posix" or not path.parent.is_dir():
        return
    start = f".{path.name[:40]}."
    for name in os.listdir(path.parent):
        process = name.removeprefix(start).partition(".")[0]
        if name.startswith(start) and name.endswith(_DRAFT) and process.isdecimal() and not _runs(int(process)):
            with suppress(OSError):
                path.with_name(name).unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks only
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Keeps a file, made if need be, locked against other processes; gives false where another has it.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            if not _take(file):
                yield False
                return
            if not _still_there(file, path):  # whoever had it has just taken it away: the next one would make a new file
                continue
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _take(file: TextIO) -> bool:
    """Locks an open file, without waiting; false where another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _still_there(file: TextIO, path: Path) -> bool:
    """Whether a path leads to this open file, and not to nothing, or another of the same name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def alone(
    lock: Path, path: Path, remedies: str = "wait for it, or choose another folder", options: tuple[str, ...] = ("output",)
) -> Iterator[None]:
    """Keeps other processes from writing the same file or folder meanwhile; a folder that stays empty is not left behind.

    Args:
        lock: a file that is there meanwhile.
        path: the file or folder to write.
        remedies: what to do where another process writes it.
        options: of the caller, that the remedies speak of.

    Raises:
        ConfigError: another does so now.
    """
    made = [folder for folder in lock.parents if not folder.exists()]
    try:
        with ExitStack() as stack:
            try:
                held = stack.enter_context(locked(lock))
            except OSError as error:
                raise DataError(f"{path}: cannot be written ({error.strerror}); choose another folder", "output") from error
            if not held:
                raise ConfigError(f"{path}: another process is writing it; {remedies}", *options)
            _remove_drafts(path)
            yield
    finally:
        for folder in made:
            with suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()
