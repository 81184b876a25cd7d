"""Masks as NumPy's arrays."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cyctr.formats.writing import Found, by_class, check_key, is_there, save, size_of


class ArrayWriter:
    """arrays/KEY.npz, without pickles, for the C classes that were found, in the order of the run's classes.

    masks (C, H, W) uint8, 0 and 1; probabilities (C, H, W) float16, left out where none was kept and NaN for a class whose
    was not; names (C,) text; confidences (C,) float32.
    """

    shared: tuple[str, ...] = ()

    def __init__(self, folder: Path, classes: Sequence[str]) -> None:
        self._folder, self._classes = folder, classes

    def write(self, key: str, image: Path | None, found: Sequence[Found]) -> list[str]:
        chosen = by_class(key, found, self._classes)
        shape = (len(chosen), *size_of(key, image, chosen))
        arrays = {
            "masks": np.zeros(shape, np.uint8),
            "names": np.array(list(chosen), np.str_),
            "confidences": np.array([one.confidence for one in chosen.values()], np.float32),
        }
        if any(one.probability is not None for one in chosen.values()):
            arrays["probabilities"] = np.full(shape, np.nan, np.float16)
        for place, one in enumerate(chosen.values()):
            arrays["masks"][place] = one.mask
            if one.probability is not None:
                arrays["probabilities"][place] = one.probability
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        return [save(self._folder, _name(key), content.getvalue())]

    def done(self, key: str) -> bool:
        return is_there(self._folder, _name(key))

    def finish(self) -> list[str]:
        return []


def _name(key: str) -> str:
    return f"arrays/{check_key(key)}.npz"
