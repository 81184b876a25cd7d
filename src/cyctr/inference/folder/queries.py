"""Which images are to be segmented, and what their files are called."""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cyctr import json_files
from cyctr.errors import DataError
from cyctr.images.imaging import EXTENSIONS, UNREAD
from cyctr.words import counted

RUN, MADE_BY, OURS = "run.json", "made by", "cyctr segment"
"""The file that says how results beside it were made, and by whom."""
_WRITTEN = (".png", ".jpg", ".json", ".txt", ".npz")  # endings of the files that are written for an image
_LONGEST = 160  # bytes of a key's last part; a file's name may have 255


class QueryFile(NamedTuple):
    """An image to segment, and what its files are called: a relative path without ending."""

    path: Path
    key: str


def find_queries(
    given: Sequence[Path], passed_over: Sequence[Path] = (), complain: Callable[[str], None] | None = None
) -> list[QueryFile]:
    """The images that paths name, files as they are, folders with all below them, in the order of their names.

    Args:
        given: files and folders.
        passed_over: files and folders to leave out: where results go, where supports lie.
        complain: told of photographs of kinds that are not read, and of results of earlier runs, in a line each.
    """
    aside = _Aside()
    left_out = {os.path.realpath(path) for path in passed_over}
    found: dict[str, tuple[Path, str]] = {}  # by absolute path: what a folder and a file both name is there once
    for path in given:
        if path.is_dir():
            for image in _below(path, left_out, aside):
                found.setdefault(os.path.abspath(image), (image, image.relative_to(path).as_posix()))
        elif os.path.realpath(path) not in left_out:
            found.setdefault(os.path.abspath(path), (path, path.name))
        else:
            aside.taken.append(path)
    if not found:
        raise DataError(f"{', '.join(map(str, given))}: {aside.instead()}")
    if complain is not None:
        for line in aside.lines():
            complain(line)
    keys = _keys([name for _, name in found.values()])
    return [QueryFile(path, key) for (path, _), key in zip(found.values(), keys, strict=True)]


@dataclass
class _Aside:
    """What was met on the way and is no query.

    Attributes:
        taken: labelled images, masks, and what else was to be passed over.
        unread: photographs of kinds that are not read.
        earlier: folders that hold results of ours.
    """

    taken: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    earlier: list[Path] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """What a user should know."""
        if self.unread:
            first = f"{self.unread[0]}" + (" first" if len(self.unread) > 1 else "")
            number = counted(len(self.unread), "photo")
            yield f"left out: {number} of kinds that are not read ({first}); convert to JPEG or PNG"
        if self.earlier:
            others = f" and {len(self.earlier) - 1} more" if len(self.earlier) > 1 else ""
            yield f"left out: {self.earlier[0]}{others}, results of an earlier run; give it by its own name to segment it too"

    def instead(self) -> str:
        """Why there is nothing to segment."""
        if self.taken:
            number = counted(len(self.taken), "image")
            return f"no images to segment, but {number} of the supports or the results; give others"
        if self.earlier:
            return f"no images to segment, but results of an earlier run ({self.earlier[0]}); give others"
        others = f", and {counted(len(self.unread), 'photo')} of other kinds ({self.unread[0].name})" if self.unread else ""
        return f"no images to segment{others}; expected {', '.join(EXTENSIONS)} files: convert, or give others"


def _below(folder: Path, left_out: set[str], aside: _Aside) -> Iterator[Path]:
    """The images of a folder and of those in it; links are followed, and no folder is entered twice. Adds to `aside`."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed ({error.strerror}); expected a folder of images") from error

    entered = {*left_out, os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        if RUN in files and Path(place) != folder and _is_ours(Path(place, RUN)):
            aside.earlier.append(Path(place))
            folders.clear()
            continue
        visible = sorted(name for name in folders if not name.startswith("."))
        folders.clear()
        for name in visible:
            real = os.path.realpath(os.path.join(place, name))
            if real not in entered:
                entered.add(real)
                folders.append(name)
        for name in sorted(files):
            path = Path(place, name)
            if name.startswith("."):
                continue
            if path.suffix.lower() in EXTENSIONS:
                if os.path.realpath(path) in left_out:
                    aside.taken.append(path)
                else:
                    yield path
            elif path.suffix.lower() in UNREAD:
                aside.unread.append(path)


def _is_ours(path: Path) -> bool:
    """Whether a file says that results of ours lie beside it."""
    try:
        return json_files.read_object(path).get(MADE_BY) == OURS
    except (OSError, ValueError):
        return False


def _keys(names: Sequence[str]) -> list[str]:
    """Names without their endings; with them, and then with numbers, where two would be alike."""
    bare = [_shortened(os.path.splitext(name)[0]) for name in names]
    alike = Counter(map(_folded, bare))
    taken = {_folded(folder[: -len(ending)]) for folder in _folders(bare) for ending in _WRITTEN if folder.endswith(ending)}
    twice = (alike[_folded(short)] > 1 or _folded(short) in taken for short in bare)
    return apart(_shortened(name) if so else short for name, short, so in zip(names, bare, twice, strict=True))


def _folders(keys: Iterable[str]) -> set[str]:
    """All folders that keys lie in; no file that is written for an image may have such a name."""
    found: set[str] = set()
    for key in keys:
        folder = key.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def apart(keys: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Keys with a number behind those that are taken, or have come before."""
    used, found = set(map(_folded, taken)), []
    numbers: Counter[str] = Counter()
    for key in keys:
        free = key
        while _folded(free) in used:
            numbers[key] += 1
            free = f"{key}-{numbers[key] + 1}"
        used.add(_folded(free))
        found.append(free)
    return found


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
