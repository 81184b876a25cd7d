"""Ten small photographs of coins with masks, laid out as a folder of your own: `python examples/ten_photos.py coins`.

The photograph is scikit-image's `coins`, Greek coins from Pompeii (Brooklyn Museum, no known copyright restrictions).
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import data, filters

from cyctr.images.imaging import write_values

ROWS, COLUMNS = 2, 5


def coin_mask(photo: np.ndarray) -> np.ndarray:
    """Where the coins are: brighter than what a smooth slope of light explains, holes filled, specks removed."""
    light = ndimage.gaussian_filter(photo.astype(float), 40)
    bright = photo - light
    mask = ndimage.binary_fill_holes(ndimage.binary_closing(bright > filters.threshold_otsu(bright), iterations=2))
    return ndimage.binary_opening(mask, iterations=4)


def main(folder: Path) -> None:
    photo = data.coins()
    mask = coin_mask(photo)
    height, width = photo.shape[0] // ROWS, photo.shape[1] // COLUMNS
    for row in range(ROWS):
        for column in range(COLUMNS):
            part = np.s_[row * height : (row + 1) * height, column * width : (column + 1) * width]
            name = f"coins-{row * COLUMNS + column + 1:02d}"
            path = folder / "images" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photo[part]).save(path)
            write_values(folder / "masks" / "coin" / f"{name}.png", mask[part].astype(np.uint8))
    print(f"wrote {ROWS * COLUMNS} photographs and masks to {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "coins"))
