"""Limits on the size of inputs. `docs/limits.md` says what happens beyond each; they are checked here."""

import os
from typing import TYPE_CHECKING

from cyctr.errors import DataError

if TYPE_CHECKING:  # `cyctr --help` should not wait for it
    import numpy as np
    from numpy.typing import NDArray

IMAGE_PIXELS = 178_956_970
"""Of an image: where Pillow, too, suspects a small file made to fill the memory."""
IMAGE_SIDE = 2**17
"""Pixels of the longer side of an image."""
IMAGE_BYTES = 2**31
"""Of an image's file."""
JPEG_SIDE = 65_500
"""Pixels of a side of a JPEG that is written."""
OVERLAY_PIXELS = 2**25
"""Of a picture with masks in it."""

POLYGON_POINTS = 1_000_000
"""Of one outline."""
POLYGON_LENGTH = 2**23
"""Pixels, the way around one outline."""
REACH = 2
"""Longer sides of the image: how far from its corner an outline of COCO goes."""
RUNS = 1_000_000
"""Of the run lengths of a labelled image."""

LAYERS, DIM, HEADS, POINTS, TOKENS, MLP_RATIO = 64, 8_192, 256, 256, 2**20, 64
"""Of a network: `model.encoder.layers`, `model.dim` and so on."""

SHOTS = 1_000
"""Labelled images in one file of a support."""
SUPPORT_SIDE = 4_096
"""Pixels of the side of an image in it."""
SUPPORT_PIXELS = 2**27
"""Of all images in it."""
SUPPORT_BYTES = 2**26
"""Of one image in it, packed or not."""
CLASSES = 254
"""Of one mask: 0 is background and 255 ignored."""

JSON_DEPTH = 64
"""Lists and objects within each other in a JSON document."""
JSON_BYTES = 2**31
"""Of a JSON document."""
JSON_MEMORY = 2**29
"""Bytes that a JSON document takes when it is read, by an estimate that is rather too high."""
JSON_GROWTH = 24
"""Times its size that the JSON of a dataset takes, by the same estimate; an imitation of COCO's own takes 12."""
PROBLEMS = 1_000
"""Entries of one JSON of COCO that are told to be wrong."""
WRONG = 1_000_000
"""Entries of it that are wrong and passed over."""
NOTES_BYTES = 2**25
"""Of a JSON document, or of one line, in which we say something of our own; read, it may take 30 times as much."""
MAT_BYTES = 2**19
"""Of a mask of SBD; theirs have some ten thousand."""
TEXT_BYTES = 2**24
"""Of a list of names."""

REQUEST_BYTES = 2**26
"""Of a request to the page's server, counted as they come."""
REQUEST_JSON_BYTES = 2**20
"""Of one in JSON."""
QUESTIONS = 16
"""Requests that wait for the network."""
PREVIEWS = 64
"""Photos in one request for previews."""
PAGES = 32
"""Open pages of one project."""


def check_bytes(name: str | os.PathLike[str], size: int, most: int, what: str) -> None:
    """Raises DataError for a file that is too large to be what it should be."""
    if size > most:
        raise DataError(f"{os.fspath(name)}: holds {size:,} bytes; expected {what} of at most {most:,}: make it smaller")


def check_image(name: str | os.PathLike[str], size: tuple[int, int]) -> None:
    """Raises DataError for a (height, width) that no image may have."""
    height, width = size
    if height * width > IMAGE_PIXELS:
        problem = f"at most {IMAGE_PIXELS}: make it smaller"
    elif max(size) > IMAGE_SIDE:
        problem = f"sides of at most {IMAGE_SIDE}: cut it in pieces"
    else:
        return
    raise DataError(f"{os.fspath(name)}: has {height} x {width} pixels; expected {problem}")


def check_outline(points: "NDArray[np.float64]") -> None:
    """Raises DataError, without a name, for (n, 2) points that no object has: drawing them would take all memory."""
    count = len(points)
    if count > POLYGON_POINTS:
        raise DataError(f"has an outline of {count:,} points; expected at most {POLYGON_POINTS:,}: draw it with fewer")
    length = abs(points - points.take(range(-1, count - 1), axis=0)).max(1).sum()  # in steps from a pixel to a neighbour
    if length > POLYGON_LENGTH:
        raise DataError(
            f"has an outline of {length:,.0f} pixels of length; expected at most {POLYGON_LENGTH:,}: draw it with fewer turns"
        )
