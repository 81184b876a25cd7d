"""What was seen of a class in an image -> the mask: sharper outlines, nothing where it is absent, small regions dropped."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cyctr.inference.cleaning import clean
from cyctr.inference.clicker import EncodedImage, shared
from cyctr.inference.result import PRESENT, Segmentation
from cyctr.inference.segment_options import SegmentOptions
from cyctr.types import Pixels

Sharpen = Callable[[NDArray[np.float32], float], NDArray[np.float32]]
"""(H, W) probability and the threshold -> the probability with sharper outlines."""
_REFINER = "sam2-tiny"


def prepare_refiner(refine: str | None) -> None:
    """Loads the network that `refine` asks for, if any; raises where its weights or its package are missing."""
    if refine is not None:
        shared(_REFINER)


def sharpener(image: Pixels) -> Sharpen:
    """Sharpens answers for an image, which is encoded once, and only if something is marked in it."""
    clicker = shared(_REFINER)

    @cache
    def encoded() -> EncodedImage:
        return clicker.encode(image)

    def sharpen(probability: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
        return clicker.refine(encoded(), probability, threshold) if (probability > threshold).any() else probability

    return sharpen


def finished(
    image: Pixels, probability: NDArray[np.float32], confidence: float, options: SegmentOptions, sharpen: Sharpen | None
) -> Segmentation:
    """The answer that a user gets.

    Args:
        image: (H, W, 3).
        probability: (H, W) of the class.
        confidence: that the class is in the image at all.
        options: how the mask is made.
        sharpen: of the image, where outlines are refined.
    """
    found = Segmentation(probability, np.zeros(probability.shape, bool), confidence, image)
    if options.drop_absent and confidence < PRESENT:
        return found
    if sharpen is not None:
        probability = sharpen(probability, options.threshold)
    mask = clean(probability > options.threshold, options.smallest, options.fill_holes)
    return replace(found, probability=probability, mask=mask)
