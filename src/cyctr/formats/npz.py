"""Masks as NumPy's arrays."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.formats.writing import Found, by_class, check_key, is_there, save, size_of

_ROWS = 64  # that are written at a time


class ArrayWriter:
    """arrays/KEY.npz, without pickles, for the C classes that were found, in the order of the run's classes.

    masks (C, H, W) uint8, 0 and 1; probabilities (C, H, W) float16, left out where none was kept and NaN for a class whose
    was not; names (C,) text; confidences (C,) float32.
    """

    shared: tuple[str, ...] = ()
    writes_probabilities: bool = True

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        size = size_of(key, image, chosen)
        probabilities = [one.probability for one in chosen.values()]
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            _add(archive, "masks", np.uint8, [one.mask for one in chosen.values()], size)
            _add(archive, "names", np.str_, [np.array(name) for name in chosen])
            _add(archive, "confidences", np.float32, [np.array(one.confidence) for one in chosen.values()])
            if any(one is not None for one in probabilities):
                unknown = np.broadcast_to(np.float16(np.nan), size)
                _add(archive, "probabilities", np.float16, [unknown if one is None else one for one in probabilities], size)
        return [save(self._folder, _name(key), content.getbuffer())]  # a copy of it may be large

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        return []


def _name(key: str) -> str:
    return f"arrays/{check_key(key)}.npz"


def _add(
    archive: zipfile.ZipFile, name: str, kind: type[np.generic], parts: Sequence[NDArray[Any]], size: tuple[int, ...] = ()
) -> None:
    """Adds an array of parts of a size, some rows at a time: of a large image it would take much memory to hold it whole."""
    dtype = np.result_type(kind, *parts) if kind is np.str_ else np.dtype(kind)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (len(parts), *size)}
    entry = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date: the same masks give the same bytes
    entry.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(entry, "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            rows = part.reshape(-1, *size[1:])
            for start in range(0, len(rows), _ROWS):
                file.write(rows[start : start + _ROWS].astype(dtype).tobytes())
