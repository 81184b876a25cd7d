"""A few labelled images -> masks for every other image: what a practitioner uses."""

from cyctr.inference.clicker import Clicker
from cyctr.inference.result import ImageResult, Segmentation
from cyctr.inference.segmenter import Segmenter
from cyctr.inference.shapes import Box, Polygons
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.inference.supports.reading import read_supports

__all__ = ["Box", "Clicker", "EncodedSupport", "ImageResult", "Polygons", "Segmentation", "Segmenter", "read_supports"]
