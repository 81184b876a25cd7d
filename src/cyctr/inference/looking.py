"""Images and supports -> probabilities: view by view through the network, then a second, closer look at what is small."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.images.edges import edge_maps
from cyctr.images.geometry import fit_image, padding_of
from cyctr.images.imaging import release_memory
from cyctr.inference.predictor import Predictor
from cyctr.inference.segment_options import SegmentOptions
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.inference.tiles import Canvas, Window, closer, strips
from cyctr.inference.views import View, scaled_size, views_of
from cyctr.types import Pixels

T = TypeVar("T")
_CLOSER_LOOK = 0.6  # side of a window around what was found that is worth a second look, in that of the image
_NEAR_PEAK = 0.8  # of the largest probability: where nothing is above the threshold, this is looked at


class Seen(NamedTuple):
    """What was seen of one class in one image.

    Attributes:
        probability: (H, W) float32.
        by_window: how like the class the answers for each window are, one number a view.
    """

    probability: NDArray[np.float32]
    by_window: dict[Window, list[float]]

    @property
    def likeness(self) -> float:
        """How like the class the window is that is most like it."""
        return max(sum(values) / len(values) for values in self.by_window.values())


def look(
    network: Predictor, images: Sequence[Pixels], supports: Mapping[str, EncodedSupport], options: SegmentOptions, batch: int
) -> Iterator[list[Seen]]:
    """For each image what is seen of each class, in the order of the supports.

    Args:
        network: of the supports.
        images: (H, W, 3) each.
        supports: by name, where the network is.
        options: how to look.
        batch: views at a time.
    """
    found, likeness = _looked(network, images, supports, options, batch)
    while found:  # what was given is not kept: of a large image it is large
        yield [Seen(*one) for one in zip(found.pop(0), likeness.pop(0), strict=True)]


@torch.inference_mode()
def _looked(
    network: Predictor, images: Sequence[Pixels], supports: Mapping[str, EncodedSupport], options: SegmentOptions, batch: int
) -> tuple[list[list[NDArray[np.float32]]], list[list[dict[Window, list[float]]]]]:
    """For each image, for each class, the fields of `Seen`."""
    sizes = [(image.shape[0], image.shape[1]) for image in images]
    canvases = [Canvas(size, len(supports), network.device) for size in sizes]
    likeness: list[list[dict[Window, list[float]]]] = [[{} for _ in supports] for _ in images]
    views = [(place, view) for place, size in enumerate(sizes) for view in views_of(size, options)]
    for group in _batched(sorted(views, key=_scale), batch):
        for _, part in groupby(group, key=_scale):
            alike = _look_at(network, images, list(part), supports, options, canvases)
            for (place, view), values in alike:
                for of_class, value in zip(likeness[place], values, strict=True):
                    of_class.setdefault(view.window, []).append(value)
    release_memory(max(map(math.prod, sizes), default=0))  # that laying took
    found = [[mean.cpu().numpy() for mean in canvas.means()] for canvas in canvases]
    if options.zoom and options.tile is None:
        for number, (name, support) in enumerate(supports.items()):
            _look_closer(network, images, [of_image[number] for of_image in found], {name: support}, options, batch)
    return found, likeness


def _look_at(
    network: Predictor,
    images: Sequence[Pixels],
    views: Sequence[tuple[int, View]],
    supports: Mapping[str, EncodedSupport],
    options: SegmentOptions,
    canvases: Sequence[Canvas],
) -> list[tuple[tuple[int, View], list[float]]]:
    """Lays the answers to views of one scale on the canvases of their images; how like each class each view's answers are."""
    config = InputConfig(scaled_size(network.input.size, _scale(views[0])))
    shown = [view.pixels(images[place], network.device) for place, view in views]
    inputs = torch.stack([fit_image(pixels, config, view.mirrored) for pixels, (_, view) in zip(shown, views, strict=True)])
    padding = padding_of([view.size for _, view in views], config, network.device)
    answers = list(network.answers(inputs, padding, supports.values(), options.votes))
    blended = [answer.probability for answer in answers]
    maps = edge_maps(inputs, torch.stack(blended, 1), ~padding) if options.edges else None
    release_memory(max(math.prod(images[place].shape[:2]) for place, _ in views))  # that the network took
    for number, (place, view) in enumerate(views):
        for rows in strips(view.window):
            laid: Iterator[Tensor]
            if maps is None:
                laid = (view.restored(values[number], config, rows) for values in blended)
            else:
                laid = (view.followed(linear, shown[number], config, rows) for linear in maps[number])
            canvases[place].add(view.window, laid, rows)
    alike = torch.stack([answer.likeness for answer in answers], 1)  # (B, classes)
    return list(zip(views, alike.tolist(), strict=True))  # here the host waits for the device


def _look_closer(
    network: Predictor,
    images: Sequence[Pixels],
    probabilities: Sequence[NDArray[np.float32]],
    support: Mapping[str, EncodedSupport],
    options: SegmentOptions,
    batch: int,
) -> None:
    """Puts a second look at what was found of one class, where that is small, in place of the first."""
    levels = [min(options.threshold, _NEAR_PEAK * float(values.max())) for values in probabilities]
    near = [closer(values > level, _CLOSER_LOOK) for values, level in zip(probabilities, levels, strict=True)]
    chosen = [(image, values, window) for image, values, window in zip(images, probabilities, near, strict=True) if window]
    parts = [image[window.slices] for image, _, window in chosen]
    again = look(network, parts, support, replace(options, zoom=False), batch)
    for (_, values, window), (seen,) in zip(chosen, again, strict=True):
        values[window.slices] = seen.probability


def _batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """Lists of `count` items, the last one shorter."""
    rest = iter(items)
    while part := list(islice(rest, count)):
        yield part


def _scale(view: tuple[int, View]) -> float:
    return view[1].scale
