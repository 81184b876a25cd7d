"""Whole training images with all that is labelled in them, as a network is tested on them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from cyctr.episodes.augmentation import warp
from cyctr.episodes.image_store import Pair, Pictures, Store
from cyctr.types import IGNORE

BATCH = {"cuda": 32, "cpu": 4}
"""How many images are looked at together, by the kind of device."""


def whole_images(
    store: Store,
    pairs: Sequence[Pair],
    images: Sequence[int],
    size: int,
    batch: int,
    value: Callable[[int], int] = lambda category: 1,
) -> Iterator[tuple[Tensor, Tensor, Pictures]]:
    """Batches of images, in their order.

    Args:
        store: where they are.
        pairs: all labelled pairs.
        images: which ones; each is of a pair.
        size: of the network's input.
        batch: how many together.
        value: what the pixels of a class are labelled with; where classes overlap, the largest.

    Yields:
        (B, 3, S, S) and (B, S, S) uint8: 0 where nothing is labelled; and the pictures they were made of.
    """
    of_image: dict[int, list[Pair]] = {image: [] for image in images}
    for pair in pairs:
        if pair[0] in of_image:
            of_image[pair[0]].append(pair)
    chunks = [images[start : start + batch] for start in range(0, len(images), batch)]
    plans = [[pair for image in chunk for pair in of_image[image]] for chunk in chunks]
    for chunk, plan, pictures in zip(chunks, plans, store.stream(plans), strict=True):
        device = pictures.labels.device
        owner = torch.tensor([row for row, image in enumerate(chunk) for _ in of_image[image]], device=device)
        values = [value(category) for _, category in plan]
        first = torch.searchsorted(owner, torch.arange(len(chunk), device=device))  # a pair of each image
        whole = Pictures(
            pictures.images[first],
            _union(pictures.labels, owner, values, len(chunk)),
            pictures.sizes[first],
            pictures.anchors[first],
        )
        ratio = whole.sizes.amax(1).double() / size
        matrices = torch.zeros(len(chunk), 2, 3, dtype=torch.float64, device=device)
        matrices[:, 0, 0] = matrices[:, 1, 1] = ratio
        pixels, labels = warp(whole.images, whole.labels, matrices, size, whole.sizes)
        yield pixels, labels, whole


def _union(labels: Tensor, owner: Tensor, values: Sequence[int], count: int) -> Tensor:
    """(count, H, W) uint8: the largest value of labels that mark a pixel, else 255 where any is undecided, else 0."""
    none = torch.zeros(count, *labels.shape[1:], dtype=torch.int32, device=labels.device)
    undecided = none.index_add(0, owner, (labels == IGNORE).int()) > 0
    marked = none
    for value in sorted(set(values)):  # the largest last
        one = torch.tensor([place for place, own in enumerate(values) if own == value], device=labels.device)
        marked = torch.where(none.index_add(0, owner[one], (labels[one] == 1).int()) > 0, value, marked)
    return torch.where(marked > 0, marked, torch.where(undecided, IGNORE, 0)).byte()
