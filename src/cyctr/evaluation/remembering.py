"""Features of the test images, encoded once: in a thousand episodes each image is met several times."""

from collections import OrderedDict
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cyctr.episodes.loading import Batch
from cyctr.types import Episode, Features, Prediction


@runtime_checkable
class FeatureMethod(Protocol):
    """A method that answers in two steps: features of single images, then what they say of each other."""

    @property
    def encodes(self) -> bool:
        """Whether it has the first step at all."""
        ...

    def __call__(self, episode: Episode) -> Prediction:
        """Both steps."""
        ...

    def encode(self, images: Tensor) -> Features:
        """Features of (B, 3, H, W) images."""
        ...

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        """The answer; the features of the support are (B * K, C, h, w)."""
        ...


class Remembering:
    """Answers batches of one pool; features of the latest images are kept, up to so many bytes."""

    def __init__(self, method: FeatureMethod, limit: int) -> None:
        self._method, self._limit, self._held = method, limit, 0
        self._kept: OrderedDict[int, Features] = OrderedDict()

    def __call__(self, batch: Batch) -> Prediction:
        """The answers to the episodes of a batch."""
        episode = batch.episode
        queries = [draw.query for draw in batch.draws]
        supports = [image for draw in batch.draws for image in draw.supports]
        pixels = dict(zip(supports, episode.support_images.flatten(0, 1), strict=True))
        pixels |= dict(zip(queries, episode.query_images, strict=True))
        known = {image: self._kept[image] for image in pixels if image in self._kept}
        new = [image for image in pixels if image not in known]
        if new:
            found = self._method.encode(torch.stack([pixels[image] for image in new]))
            for place, image in enumerate(new):
                known[image] = found.one(place).changed(Tensor.clone)
        of_query, of_support = (Features.join([known[image] for image in images]) for images in (queries, supports))
        prediction = self._method.match(of_query, of_support, episode)
        self._keep(known)
        return prediction

    def _keep(self, known: dict[int, Features]) -> None:
        for image, features in known.items():
            if image in self._kept:
                self._kept.move_to_end(image)
            else:
                self._kept[image] = features
                self._held += features.nbytes
        while self._held > self._limit and self._kept:
            self._held -= self._kept.popitem(last=False)[1].nbytes
