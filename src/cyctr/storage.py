"""Where files of ours go: the user's cache, and writing in one step or not at all."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_folder() -> Path:
    """Where weights and indices are kept: $CYCTR_CACHE, or `cyctr` in the platform's place for caches."""
    if chosen := os.environ.get("CYCTR_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cyctr"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "cyctr"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cyctr"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file, its folder made if need be, so that a reader never sees half of it; what was there is replaced.

    Raises:
        OSError: it cannot be written; nothing has changed then.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        with draft.open("r+b") as file:
            os.fsync(file.fileno())  # a power cut finds the old content or the new
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Keeps a file, made if need be, locked against other processes; gives false where another has it.

    Raises:
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            with suppress(OSError):
                path.unlink()
