"""Names on disk: the subfolders of a folder, and the lines of a list of classes."""

from pathlib import Path

from cyctr.errors import DataError
from cyctr.limits import TEXT_BYTES, check_bytes


def subfolders(folder: Path) -> list[Path]:
    """The folders inside, sorted; hidden ones and the leavings of macOS are passed over."""
    try:
        found = [path for path in folder.iterdir() if path.name[0] != "." and path.name != "__MACOSX" and path.is_dir()]
        return sorted(found, key=lambda path: path.name)  # by name: paths compare differently on Windows
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); expected a folder you may read") from error


def text_lines(path: Path) -> list[str]:
    """The lines of a text file.

    Raises:
        DataError: it is a pipe, or too large for a list of names.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    if path.is_fifo():  # opening it would wait for its writer
        raise DataError(f"{path}: is a pipe; expected a list of names in a file")
    check_bytes(path, path.stat().st_size, TEXT_BYTES, "a list of names")
    return path.read_text(encoding="utf-8-sig").splitlines()


def read_names(path: Path) -> list[str]:
    """The names in a text file, one on each line; blank lines and what follows a `#` do not count."""
    try:
        lines = text_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise DataError(f"{path}: cannot be read ({reason}); expected the name of a class on each line") from error
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise DataError(f"{path}: names no class; expected one on each line")
    return names
