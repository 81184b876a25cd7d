"""The magic wand: what is of one colour with the clicked place, and connected to it."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from cyctr.studio.refusals import RefusedError
from cyctr.types import Pixels

Bools = NDArray[np.bool_]

_MOST = 2048  # pixels of the longer side at which it works
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], np.float32)
_WHITE = np.array([0.9505, 1.0, 1.089], np.float32)
_EDGE, _SLOPE = (6 / 29) ** 3, 7.787
_LINEAR = np.array([v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in np.arange(256) / 255], np.float32)


def wand(pixels: Pixels, x: float, y: float, tolerance: float) -> Bools:
    """(H, W) the connected region whose colours are near that of a place.

    Args:
        pixels: (H, W, 3).
        x: of the place.
        y: of the place.
        tolerance: distance in Lab, 0 to 200; 2 is hardly seen, 100 is black and white.
    """
    height, width = pixels.shape[:2]
    if not (0 <= x < width and 0 <= y < height):
        raise RefusedError(f"the place is {x:g},{y:g}; expected x below {width} and y below {height}")
    if not 0 <= tolerance <= 200:
        raise RefusedError(f"tolerance is {tolerance:g}; expected 0 to 200")
    scale = min(1.0, _MOST / max(height, width))
    small = pixels
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    row = min(int(y * small.shape[0] / height), small.shape[0] - 1)
    column = min(int(x * small.shape[1] / width), small.shape[1] - 1)
    lab = to_lab(small)
    near = lab[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].reshape(-1, 3)
    distance = np.sqrt(((lab - np.median(near, 0)) ** 2).sum(-1))
    alike = distance <= tolerance
    alike[row, column] = True
    numbers, _ = ndimage.label(alike)
    region: Bools = numbers == numbers[row, column]
    if scale == 1:
        return region
    large = Image.fromarray(region.view(np.uint8) * np.uint8(255)).resize((width, height), Image.Resampling.BILINEAR)
    found: Bools = np.asarray(large) >= 128
    return found


def to_lab(pixels: Pixels) -> NDArray[np.float32]:
    """(..., 3) of sRGB in CIE Lab, where distances are as large as they look."""
    xyz = _LINEAR[pixels] @ _TO_XYZ.T / _WHITE
    curved = np.where(xyz > _EDGE, np.cbrt(xyz), _SLOPE * xyz + 16 / 116)
    x, y, z = curved[..., 0], curved[..., 1], curved[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1).astype(np.float32)
