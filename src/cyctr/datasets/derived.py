"""Arrays that are computed from a dataset once and kept in the user's cache, under a key that changes with the dataset."""

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.storage import cache_folder, write_atomically

Arrays = dict[str, NDArray[Any]]


def cache_file(folder: str, place: str, title: str = "") -> Path:
    """The file of the cache that belongs to a place; the title is for people."""
    return cache_folder() / folder / f"{title}{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.npz"


def cached_arrays(path: Path, key: str, parts: Iterable[str], build: Callable[[], Arrays]) -> Arrays:
    """The arrays in a file if it has this key, otherwise what `build` gives, kept there for the next time.

    Args:
        path: ends in .npz.
        key: stands for all that the arrays depend on.
        parts: their names.
        build: makes them.
    """
    found = _read(path, key, parts)
    if found is not None:
        return found
    made = build()
    buffer = io.BytesIO()
    content: dict[str, Any] = made | {"key": np.array(key)}
    np.savez(buffer, **content)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        warnings.warn(
            f"{path}: the index cannot be kept ({error.strerror}), so it will be built again next time; "
            "set CYCTR_CACHE to a folder of yours",
            stacklevel=3,
        )
    return made


def _read(path: Path, key: str, parts: Iterable[str]) -> Arrays | None:
    try:
        # given the path, np.load would leave a damaged file open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {part: arrays[part] for part in parts} if str(arrays["key"]) == key else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # numpy, zipfile and zlib meet damage with whatever they trip over
        reason = getattr(error, "strerror", None) or "damaged"
        warnings.warn(f"{path}: the kept index cannot be read ({reason}), so it is built again", stacklevel=4)
        return None
