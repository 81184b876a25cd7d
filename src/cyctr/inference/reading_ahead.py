"""Images read a little ahead of the network, and put together in chunks that fit in memory."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from cyctr.errors import DataError
from cyctr.images.imaging import image_size
from cyctr.inference.inputs import ImageLike, to_image
from cyctr.types import Pixels

Unreadable = Callable[[int, DataError], None]
"""Told the number and the problem of an image that cannot be read."""
_MOST_PIXELS = 2**26  # of images that are held together: six of twelve megapixels
_READERS = 4


class Read(NamedTuple):
    """An image that was read.

    Attributes:
        place: its number among those given, from 0.
        source: what was given.
        pixels: (H, W, 3).
    """

    place: int
    source: ImageLike
    pixels: Pixels


def in_chunks(images: Iterable[ImageLike], count: int, unreadable: Unreadable | None) -> Iterator[list[Read]]:
    """Lists of `count` images in their order, the last one shorter, and those of large images too.

    Args:
        images: as many as there are; twice `count` are read before they are asked for, fewer if large.
        count: images in a list.
        unreadable: told of an image that cannot be read, which is then left out; without it, that is raised.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        chunk: list[Read] = []
        for one in _read_ahead(readers, images, 2 * count, unreadable):
            if chunk and sum(map(_area, chunk)) + _area(one) > _MOST_PIXELS:
                yield chunk
                chunk = []
            chunk.append(one)
            del one
            if len(chunk) == count or sum(map(_area, chunk)) >= _MOST_PIXELS:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def _read_ahead(
    readers: ThreadPoolExecutor, images: Iterable[ImageLike], count: int, unreadable: Unreadable | None
) -> Iterator[Read]:
    source = ((place, image, _area_of(image)) for place, image in enumerate(images))
    waiting: deque[tuple[int, ImageLike, int, Future[Pixels]]] = deque()
    upcoming = next(source, None)
    try:
        while waiting or upcoming is not None:
            while upcoming is not None and len(waiting) < count:
                place, image, area = upcoming
                if waiting and sum(one[2] for one in waiting) + area > _MOST_PIXELS:
                    break
                waiting.append((place, image, area, readers.submit(to_image, image, f"images[{place}]")))
                upcoming = next(source, None)
            place, image, _, future = waiting.popleft()
            try:
                pixels = future.result()
            except DataError as error:
                if unreadable is None:
                    raise
                unreadable(place, error)
                continue
            del future
            yield Read(place, image, pixels)
            del pixels  # before a large one is read, which takes more memory than it has
    finally:
        for *_, future in waiting:
            future.cancel()


def _area_of(image: ImageLike) -> int:
    """Pixels of an image that is not read yet; 0 where that fails, as whoever reads it will say."""
    if isinstance(image, str | os.PathLike):
        try:
            height, width = image_size(Path(os.fsdecode(image)))
        except DataError:
            return 0
        return height * width
    size = image.size if isinstance(image, Image.Image) else getattr(image, "shape", ())
    return math.prod(size)


def _area(read: Read) -> int:
    return read.pixels.shape[0] * read.pixels.shape[1]
