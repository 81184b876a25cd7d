"""How often each value is in an image, in little memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PART = 2**20  # pixels that are counted at a time: NumPy makes integers of 8 bytes of them


def count_values(values: NDArray[Any], least: int = 256) -> NDArray[np.int64]:
    """(N,) how often each whole number from 0 on is in an array.

    Args:
        values: whole numbers, not below 0.
        least: N is this, or more where larger numbers occur.
    """
    flat, found = values.reshape(-1), np.zeros(least, np.int64)
    for start in range(0, flat.size, _PART):
        part = np.bincount(flat[start : start + _PART])
        if len(part) > len(found):
            found = np.concatenate([found, np.zeros(len(part) - len(found), np.int64)])
        found[: len(part)] += part
    return found
