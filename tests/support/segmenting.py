"""A tiny network and photographs to segment with it."""

import os
from pathlib import Path

import numpy as np
from making import tiny
from PIL import Image

from cyctr.checkpoint import save_checkpoint
from cyctr.config import AugmentationConfig, TrainingConfig
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig, PriorConfig

MODEL = ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3), prior=PriorConfig(votes=("mid", "high")))


def checkpoint(path, model=MODEL, size=65):
    """An untrained network in a file, without what only training uses, as ours are."""
    network = tiny(model)
    config = Config(model=network.config, training=TrainingConfig(augmentation=AugmentationConfig(size=size)))
    save_checkpoint(path, network, config, auxiliary=False)
    return path


def scene(size, seed=0):
    """A noisy image with a brighter disc, and where that is."""
    random = np.random.default_rng(seed)
    height, width = size
    y, x = np.mgrid[:height, :width]
    top, left = (random.uniform(0.35, 0.65) * side for side in size)
    mask = (y - top) ** 2 + (x - left) ** 2 < (0.25 * min(size)) ** 2
    image = random.integers(0, 120, (height, width, 3)) + 120 * mask[..., None]
    return image.astype(np.uint8), mask


def photo(path, seed=0, size=(40, 50), **options):
    """A scene in a file of the kind that its name ends in."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scene(size, seed)[0]).save(path, **options)
    return path


def photos(folder, count=4, start=0):
    """Scenes of different sizes, called 0.jpg, 1.jpg, ..."""
    for number in range(start, start + count):
        photo(folder / f"{number}.jpg", 100 + number, (40 + 7 * number % 60, 50))
    return folder


def labelled(folder, count=2, seed=0):
    """Scenes, each with a mask beside it."""
    for number in range(count):
        photo(folder / f"shot{number}.png", seed + number, (60, 80))
        marked = scene((60, 80), seed + number)[1]
        Image.fromarray(marked.astype(np.uint8) * 255).save(folder / f"shot{number}_mask.png")
    return folder


def files(folder):
    """The content of all files, by their names."""
    names = sorted(os.path.join(place, name) for place, _, found in os.walk(folder) for name in found)
    return {os.path.relpath(name, folder): Path(name).read_bytes() for name in names}
