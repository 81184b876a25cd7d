"""The official archives of VOC and SBD: fetched, checked and unpacked, whole or not at all."""

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cyctr import compat
from cyctr.errors import DataError

OnStage = Callable[[str, int, int], None]
"""Told of a step how much of how much is done; a total of 0 is one that nobody knows."""

_SECONDS_OF_SILENCE = 60  # of a server, before it is given up
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """An official archive: where it is, its checksum, and the folder in it."""

    url: str
    file: str
    md5: str
    content: Path


def official(which: str) -> Archive:
    """VOC's or SBD's archive, as torchvision knows it."""
    datasets = compat.torchvision().datasets
    if which == "SBD":
        return Archive(datasets.SBDataset.url, datasets.SBDataset.filename, datasets.SBDataset.md5, Path("benchmark_RELEASE"))
    voc = datasets.voc.DATASET_YEAR_DICT["2012"]
    return Archive(voc["url"], voc["filename"], voc["md5"], Path(voc["base_dir"]))


def fetch(archive: Archive, folder: Path, tell: OnStage) -> None:
    """Puts the content of an archive into a folder; an archive that lies there already is not fetched again.

    Raises:
        DataError: it cannot be fetched, is another, or there is no room for it.
    """
    try:
        _unpack_into(archive, folder, tell)
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else folder
        raise DataError(f"{place}: cannot be written ({reason(error)}); make room for {archive.file} and run again") from error


def reason(error: BaseException) -> str:
    """One line on an error."""
    text = str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error).strip()
    return text.splitlines()[0][:120] if text else type(error).__name__


def _unpack_into(archive: Archive, folder: Path, tell: OnStage) -> None:
    """Fetches and unpacks an archive beside its place, and moves it there as the last step."""
    target, kept = folder / archive.content, folder / archive.file
    if target.exists():
        raise DataError(f"{target}: is there but not complete; move it away and run again")
    folder.mkdir(parents=True, exist_ok=True)
    theirs = kept.is_file()
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as name:
        workspace = Path(name)
        if theirs:
            _check(archive, kept, kept)
        else:
            draft = workspace / archive.file
            _retrieve(archive, draft, folder, tell)
            _check(archive, draft, kept)
            os.replace(draft, kept)  # a full disk costs no second download
        _unpack(kept, workspace / "content", tell)
        unpacked = workspace / "content" / archive.content
        if not unpacked.is_dir():
            raise DataError(f"{kept}: unpacks to no {archive.content}; it is not the archive of {archive.url}")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unpacked, target)
    if not theirs:
        kept.unlink()


def _by_hand(archive: Archive, folder: Path) -> str:
    return f"try again later, or fetch {archive.url} by other means, put it into {folder} and run this again"


def _retrieve(archive: Archive, path: Path, folder: Path, tell: OnStage) -> None:
    with path.open("wb") as file, closing(_arriving(archive, folder)) as chunks:
        for chunk, total in chunks:
            file.write(chunk)
            tell(f"fetching {archive.file}", file.tell(), total)


def _arriving(archive: Archive, folder: Path) -> Generator[tuple[bytes, int], None, None]:
    """The bytes of an archive as they arrive, and how many there will be. What the network does wrong is a DataError."""
    done = total = 0
    request = urllib.request.Request(archive.url, headers={"User-Agent": "cyctr"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS_OF_SILENCE) as response:
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                yield chunk, total
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):  # an answer, too, and still open
            error.close()
        raise DataError(f"{archive.file}: cannot be fetched ({reason(error)}); {_by_hand(archive, folder)}") from error
    if done < total:
        raise DataError(f"{archive.file}: only {done:,} of {total:,} bytes arrived; {_by_hand(archive, folder)}")


def _check(archive: Archive, path: Path, kept: Path) -> None:
    """Raises DataError unless a file is the official archive; `kept` is the place where it is or would be."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest == archive.md5:
        return
    problem = f"{kept}: md5 is {digest}, expected {archive.md5} of the official archive"
    if path == kept:
        raise DataError(f"{problem}; the file is incomplete or another: remove it and run again")
    raise DataError(f"{problem}; what arrived is incomplete or another file: {_by_hand(archive, kept.parent)}")


def _unpack(path: Path, folder: Path, tell: OnStage) -> None:
    size = path.stat().st_size
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # nothing outside the folder, no strange modes

            def told() -> Iterator[tarfile.TarInfo]:
                for member in tar:
                    yield member
                    tell(f"unpacking {path.name}", raw.tell(), size)

            tar.extractall(folder, told())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({reason(error)}); remove it and run again") from error
