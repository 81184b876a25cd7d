"""JSON from files, ours and others', behind one door: its size, its depth, its encoding and its type are checked here."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from cyctr.limits import JSON_BYTES, JSON_DEPTH, JSON_MEMORY, NOTES_BYTES

_CONTAINERS = frozenset((dict, list))
_NO_FILE = "not a regular file"
_TAKES = {b"[": 136, b"{": 200, b",": 41, b":": 60, b'"': 32}  # bytes for each: of a list, an object, a value, a key, a text


def parse(content: bytes | str) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: it is not JSON, not text in UTF-8, UTF-16 or UTF-32, or too deeply nested.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {JSON_DEPTH} deep") from None
    _check_depth(value)
    return value


def parse_object(content: bytes | str) -> dict[str, Any]:
    """Likewise of a document of ours, which is an object.

    Raises:
        ValueError: it is something else, too, or longer than any of ours.
    """
    _check_length(len(content), NOTES_BYTES)
    value = parse(content)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, not an object")
    return value


def read(path: Path, largest: int = JSON_BYTES, growth: int = 0) -> Any:
    """The value of a file.

    Args:
        path: of the file.
        largest: bytes of it.
        growth: times its size that a file may take when it is read, where that is more than `JSON_MEMORY`.

    Raises:
        ValueError: as of `parse`; or it is too large, or would take too much memory.
        OSError: it cannot be read.
    """
    content = _content(path, largest)
    takes = memory(content)
    if takes > max(JSON_MEMORY, growth * len(content)):
        raise ValueError(f"it would take {takes / 2**20:,.0f} MiB of memory, more than a document of its size should")
    return parse(content)


def memory(content: bytes) -> int:
    """Bytes that a document takes while it is read, at most: by how many values, texts, lists and objects it may have."""
    plain = content.isascii() and b"\\u" not in content  # otherwise a character may take four bytes
    return len(content) * (4 if plain else 10) + sum(content.count(sign) * each for sign, each in _TAKES.items())


def read_object(path: Path, largest: int = NOTES_BYTES) -> dict[str, Any]:
    """The object of a file; errors as of `read` and `parse_object`."""
    return parse_object(_content(path, largest))


def read_lines(path: Path) -> Iterator[tuple[bytes, Any]]:
    """Each line of a file of JSON lines, and its value: None where the line is damaged, was cut off, or is too long.

    Raises:
        OSError: it cannot be read, or is a pipe.
    """
    if not _is_file(path.stat()):
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    with path.open("rb") as file:
        while line := file.readline(NOTES_BYTES):
            yield line, parse_line(line)


def parse_line(line: bytes) -> Any:
    """The value of a line with its line break; None where it is damaged."""
    try:
        return parse(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


def sealed(values: list[Any]) -> bytes:
    """A line for `unsealed`: some values, and a checksum of them."""
    return json.dumps([*values, _seal(values)]).encode() + b"\n"


def unsealed(value: Any, count: int) -> list[Any] | None:
    """The `count` values of a line of `sealed`; None where they are not as they were. Older lines have no checksum."""
    if not isinstance(value, list) or len(value) not in (count, count + 1):
        return None
    values, seals = value[:count], value[count:]
    return values if seals in ([], [_seal(values)]) else None


def _seal(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _content(path: Path, largest: int) -> bytes:
    status = path.stat()
    if not _is_file(status):
        raise ValueError(f"it is {_NO_FILE}")
    _check_length(status.st_size, largest)
    return path.read_bytes()


def _check_length(length: int, largest: int) -> None:
    if length > largest:
        raise ValueError(f"it holds {length:,} bytes, expected at most {largest:,}")


def _is_file(status: os.stat_result) -> bool:
    """Whether reading it ends: that of a pipe may not even begin. A folder counts, which the system refuses to read."""
    return not (stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode))


def _check_depth(value: Any) -> None:
    """Raises ValueError for lists and objects nested too deep: whoever walks through them would run out of stack."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(JSON_DEPTH):
        inner = (node.values() if type(node) is dict else node for node in level)
        holding = (part for part in inner if not _CONTAINERS.isdisjoint(map(type, part)))
        level = [part for part in chain.from_iterable(holding) if type(part) in _CONTAINERS]
        if not level:
            return
    raise ValueError(f"it is nested more than {JSON_DEPTH} deep")
