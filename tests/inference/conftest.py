import numpy as np
import pytest
from making import tiny

from cyctr.config import EncoderConfig, ModelConfig, PriorConfig
from cyctr.inference import Segmenter

CONFIG = ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3), prior=PriorConfig(votes=("mid", "high")))


def scene(size, seed=0):
    """A noisy image with a brighter disc, and where that is."""
    random = np.random.default_rng(seed)
    height, width = size
    y, x = np.mgrid[:height, :width]
    top, left = (random.uniform(0.35, 0.65) * side for side in size)
    mask = (y - top) ** 2 + (x - left) ** 2 < (0.25 * min(size)) ** 2
    image = random.integers(0, 120, (height, width, 3)) + 120 * mask[..., None]
    return image.astype(np.uint8), mask


@pytest.fixture(scope="session")
def segmenter():
    return Segmenter(tiny(CONFIG), size=65, device="cpu", name="tiny")


@pytest.fixture(scope="session")
def disc(segmenter):
    return segmenter.encode_support(*scene((60, 80)), name="disc")
