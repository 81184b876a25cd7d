"""Latent classes: regions of the background that look alike in many images, to learn from beside the labelled classes.

Whatever is not labelled is background in training, and a network soon knows by heart what never is foreground: people,
tables. Regions of that background, found without labels, are foreground of episodes too (after Yang et al., "Mining latent
classes for few-shot segmentation", 2021).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cyctr.datasets.dataset import Dataset, Fold
from cyctr.datasets.index import Index
from cyctr.episodes.image_store import Pair, Pictures, Store, spread
from cyctr.episodes.sampler import Draw, Sampler
from cyctr.seeding import Stream
from cyctr.transfer import to_device
from cyctr.types import IGNORE

SMALLEST, LARGEST = 0.04, 0.5
"""Shares of an image that a region must have to be worth an episode."""
UNDECIDED = 255
"""What a map has at a place that may or may not be of a region, and beyond the image."""
_TOGETHER = 256  # regions whose anchors are found together
_FEWEST = 10  # images that a latent class must be in


@dataclass(frozen=True, eq=False)
class Regions:
    """Where latent classes are.

    Attributes:
        images: n places in the pool.
        maps: (n, s, s) uint8: 0 no region, c + 1 latent class c, 255 undecided, as beyond the image.
        steps: (n,) float64, pixels of the image from one cell of its map to the next; cell 0 sits on pixel 0.
        sizes: (n, 2) int64 height and width of the image.
        count: how many latent classes there are.
    """

    images: Sequence[int]
    maps: Tensor
    steps: Tensor
    sizes: Tensor
    count: int

    def to(self, device: torch.device) -> "Regions":
        """The same on a device."""
        return replace(self, maps=self.maps.to(device), steps=self.steps.to(device), sizes=self.sizes.to(device))

    @cached_property
    def shares(self) -> Tensor:
        """(n, count) float64 share of each image that each latent class covers."""
        cells = torch.stack([(self.maps == c).flatten(1).sum(1) for c in range(self.count + 1)], 1)[:, 1:]
        return cells.double() * (self.steps.square() / self.sizes.prod(1))[:, None]

    def label(self, rows: Tensor, classes: Tensor, height: int, width: int) -> Tensor:
        """(k, height, width) uint8: 1 where a row's map has its class, 255 where it is undecided; 0 elsewhere and beyond."""
        y, x = (self._cells(rows, pixels) for pixels in (height, width))  # (k, height), (k, width)
        found = self.maps[rows[:, None, None], y[:, :, None], x[:, None, :]]
        label = (found == classes[:, None, None] + 1).byte().masked_fill(found == UNDECIDED, IGNORE)
        below = torch.arange(height, device=rows.device)[None, :, None] < self.sizes[rows, 0, None, None]
        left = torch.arange(width, device=rows.device)[None, None] < self.sizes[rows, 1, None, None]
        return label.masked_fill(~(below & left), 0)

    def _cells(self, rows: Tensor, pixels: int) -> Tensor:
        """(k, pixels) the cell nearest to each pixel along a side."""
        place = torch.arange(pixels, device=rows.device) / self.steps[rows, None]
        return place.round().long().clamp_max(self.maps.shape[-1] - 1)

    def shown(self, rows: Tensor, classes: Tensor) -> Tensor:
        """(k,) bool: whether any pixel is of a row's class. Where an image was enlarged, a few cells may lie between pixels."""
        _, marked = self._marked(rows, classes)
        return marked.flatten(1).any(1)

    def anchors(self, rows: Tensor, classes: Tensor) -> Tensor:
        """(k, A, 2) float64 the (x, y) of points spread over the region of each row that is of its latent class."""
        (y, x), marked = self._marked(rows, classes)
        place = spread(marked.flatten(1))  # (k, A)
        side = self.maps.shape[-1]
        return torch.stack([x.gather(1, place % side), y.gather(1, place // side)], -1) + 0.5

    def _marked(self, rows: Tensor, classes: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The (k, s) pixels nearest to the rows and columns of cells, and (k, s, s) whether those are of a row's class."""
        side, step = self.maps.shape[-1], self.steps[rows, None]
        cells = torch.arange(side, device=rows.device)
        # the pixel nearest to each cell, and the cell that this pixel reads: another one where an image was enlarged
        y, x = (torch.minimum((cells * step).round(), self.sizes[rows, axis, None] - 1.0) for axis in (0, 1))
        row, column = ((pixel / step).round().long().clamp_max(side - 1) for pixel in (y, x))
        return (y, x), self.maps[rows[:, None, None], row[:, :, None], column[:, None]] == classes[:, None, None] + 1


class LatentStore:
    """A store that knows latent classes, too: those from number `first` on."""

    def __init__(self, store: Store, regions: Regions, hosts: Sequence[Pair], first: int) -> None:
        """Finds the pairs that are worth an episode.

        Args:
            store: of labelled pairs.
            regions: where latent classes are.
            hosts: labelled pairs, at least one for each image of the regions.
            first: number of the first latent class.
        """
        self._store, self._regions, self._first = store, regions, first
        self._host = dict(hosts)
        shares = regions.shares
        worth = ((shares >= SMALLEST) & (shares <= LARGEST)).nonzero()  # (k, 2)
        shown = [regions.shown(*piece.unbind(1)) for piece in worth.split(_TOGETHER)]
        rows, classes = worth[torch.cat(shown)].unbind(1)
        self.pairs = [(regions.images[row], first + c) for row, c in zip(rows.tolist(), classes.tolist(), strict=True)]
        self._row = {pair: place for place, pair in enumerate(self.pairs)}
        self._of_map = rows.cpu()
        pieces = zip(rows.split(_TOGETHER), classes.split(_TOGETHER), strict=True)
        self._anchors = torch.cat([regions.anchors(*piece) for piece in pieces])

    def stream(self, plans: Iterable[Sequence[Pair]]) -> Iterator[Pictures]:
        """The pictures of each plan, in order."""
        asked: list[Sequence[Pair]] = []

        def hosts() -> Iterator[list[Pair]]:
            for plan in plans:
                asked.append(plan)
                yield [(image, self._host[image]) if number >= self._first else (image, number) for image, number in plan]

        for pictures in self._store.stream(hosts()):
            yield self._marked(asked.pop(0), pictures)

    def _marked(self, plan: Sequence[Pair], pictures: Pictures) -> Pictures:
        places = [place for place, (_, number) in enumerate(plan) if number >= self._first]
        if not places:
            return pictures
        found = torch.tensor([self._row[plan[place]] for place in places])
        classes = torch.tensor([plan[place][1] - self._first for place in places])
        numbers = torch.stack([torch.tensor(places), found, self._of_map[found], classes])
        put, found, rows, classes = to_device(numbers, pictures.labels.device)
        height, width = pictures.labels.shape[-2:]
        labels, anchors = pictures.labels.clone(), pictures.anchors.clone()
        labels[put] = self._regions.label(rows, classes, height, width)
        anchors[put] = self._anchors[found]
        return Pictures(pictures.images, labels, pictures.sizes, anchors)


def latent_sampler(labelled: Sampler, dataset: Dataset, fold: int, store: LatentStore, count: int, seed: int) -> Sampler | None:
    """Draws episodes of latent classes, each as often as the others; none where no class is in enough images."""
    first = len(dataset.classes)
    table = np.array(sorted(store.pairs), np.int64).reshape(-1, 2)
    index = Index(np.zeros((0, 2), np.int64), table[:, 0], table[:, 1], np.ones(len(table), np.int64))
    fewest = max(_FEWEST, labelled.shots + 1)
    common = [c for c in range(first, first + count) if np.count_nonzero(table[:, 1] == c) >= fewest]
    if not common:
        return None
    folds = tuple(Fold(tuple(common), ()) if place == fold else sides for place, sides in enumerate(dataset.folds))
    extended = replace(dataset, classes=latent_names(dataset, count), folds=folds, smallest=1)
    return Sampler(extended, index, fold, "train", labelled.shots, seed, "classes")


def latent_names(dataset: Dataset, count: int) -> tuple[str, ...]:
    """The names of all classes with latent ones behind them."""
    return (*dataset.classes, *(f"latent-{c:02d}" for c in range(count)))


class MixedSampler:
    """Episodes of labelled classes, and a share of latent ones; otherwise like a `Sampler`."""

    def __init__(self, labelled: Sampler, latent: Sampler, share: float) -> None:
        self._labelled, self._latent, self._share = labelled, latent, share
        self.key, self.images = labelled.key, labelled.images

    def __call__(self, number: int) -> Draw:
        """Episode `number`."""
        chosen = Stream("mixture", *self.key, number).uniform() < self._share
        return self._latent(number) if chosen else self._labelled(number)
