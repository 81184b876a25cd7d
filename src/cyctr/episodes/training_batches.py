"""Groups of images of one class -> what a training step sees: drawn, augmented on the device, given their roles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cyctr.config import AugmentationConfig, TrainingConfig
from cyctr.episodes.augmentation import BLUR, CHANCES, augmentation_matrices, beyond, blur, warp
from cyctr.episodes.image_store import Pair, Pictures, Store
from cyctr.episodes.latent import MixedSampler
from cyctr.episodes.sampler import Draw, Sampler
from cyctr.errors import ConfigError
from cyctr.seeding import Stream, random_bits
from cyctr.types import Episode
from cyctr.words import counted

_SPARE = 3  # numbers that nothing uses any more: without them the others would be drawn otherwise
Moving = Callable[[Pictures, AugmentationConfig, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Groups:
    """G groups of K + 1 augmented images of one class each, and the E episodes they make.

    Attributes:
        draws: what was drawn for each group.
        images: (G * (K + 1), 3, S, S) uint8; in a group the query comes first.
        labels: (G * (K + 1), S, S) uint8.
        padding: (G * (K + 1), S, S) bool, true beyond the photograph.
        roles: (E, K + 1) int64 into the images: the query of each episode, then its supports.
        seeds: (E,) int64, which support tokens each samples.
        rotated: whether every image is the query of one episode, in their order.
    """

    draws: tuple[Draw, ...]
    images: Tensor
    labels: Tensor
    padding: Tensor
    roles: Tensor
    seeds: Tensor
    rotated: bool

    @property
    def episode(self) -> Episode:
        """The episodes with their images."""
        query, supports = self.roles[:, 0], self.roles[:, 1:]
        of_query = (self.images[query], self.labels[query], self.padding[query])
        return Episode(self.images[supports], self.labels[supports], *of_query, trusted=True)


class TrainingEpisodes:
    """The episodes of a schedule. Step s is a function of the sampler's key, the config and s only."""

    def __init__(self, store: Store, sampler: Sampler | MixedSampler, config: TrainingConfig, device: torch.device) -> None:
        self.store, self.sampler, self.config, self.device = store, sampler, config, device
        self._moving: Moving = move
        stream = Stream("training", *sampler.key)
        self._augmentation_seed, self._token_seed = stream.below(2**31), stream.below(2**31)

    def compile(self) -> None:
        """From here on pixels are moved by compiled code."""
        self._moving = torch.compile(move, dynamic=False)

    def steps(self, steps: Iterable[int], share: tuple[int, int] = (0, 1), pieces: int = 1) -> Iterator[Groups]:
        """The groups of these steps, each step in `pieces` parts.

        Args:
            steps: their numbers, in order.
            share: (rank, processes): each process gets an equal part of every step.
            pieces: parts that are computed one after the other.
        """
        rank, processes = share
        size = groups_of_part(self.config, processes, pieces)
        starts = (step * self.config.groups + (rank * pieces + piece) * size for step in steps for piece in range(pieces))
        return self._groups(range(start, start + size) for start in starts)

    def _groups(self, numbers: Iterable[Sequence[int]]) -> Iterator[Groups]:
        drawn: list[tuple[Draw, ...]] = []  # waits here while the store reads ahead

        def plans() -> Iterator[list[Pair]]:
            for piece in numbers:
                draws = tuple(self.sampler(number) for number in piece)
                drawn.append(draws)
                yield [(image, draw.category) for draw in draws for image in (draw.query, *draw.supports)]

        for pictures in self.store.stream(plans()):
            yield self._assemble(drawn.pop(0), pictures)

    def _assemble(self, draws: tuple[Draw, ...], pictures: Pictures) -> Groups:
        images = self.config.images
        first, count = draws[0].number, len(draws)
        place = torch.arange(count * images, device=self.device)
        own = place + (first * images + self._augmentation_seed)
        pixels, labels, padding = augment(pictures, self.config.augmentation, own, self._moving)
        group = place.view(count, images)
        if self.config.rotate:
            turn = torch.arange(images, device=self.device)
            turns = (turn[:, None] + turn) % images  # (K + 1, K + 1): each is first once
            roles = group[:, turns].flatten(0, 1)  # (G * (K + 1), K + 1)
            seeds = place + (first * images + self._token_seed)
        else:
            roles, seeds = group, place[:count] + (first + self._token_seed)
        return Groups(draws, pixels, labels, padding, roles, seeds, self.config.rotate)


def groups_of_part(config: TrainingConfig, processes: int, pieces: int) -> int:
    """How many groups of a step each of its parts has.

    Raises:
        ConfigError: they cannot be shared equally.
    """
    size, rest = divmod(config.groups, processes * pieces)
    if rest:
        raise ConfigError(
            f"a step has {config.groups} groups of {config.images} images, which {counted(processes, 'process')} "
            f"times {counted(pieces, 'accumulated part')} do not share equally; change training.batch"
            f"{f', or accumulate (now {pieces})' if pieces > 1 else ''}",
            *("training.batch", *(["accumulate"] if pieces > 1 else [])),
        )
    return size


def move(pictures: Pictures, config: AugmentationConfig, seeds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The part of `augment` that scales, turns, flips and crops: many small steps, which a GPU waits for unless compiled.

    Returns:
        (n, 3, S, S) and (n, S, S) uint8, (n, S, S) bool, true beyond the photograph, and (n, 10) float64 numbers in [0, 1):
        what chance has decided, and may decide yet.
    """
    chance = random_bits(seeds, CHANCES + _SPARE + 1).double() / 2**32  # (n, 10)
    points = pictures.anchors.shape[1]
    picked = (chance[:, -1] * points).long()[:, None, None].expand(-1, 1, 2)
    anchors = pictures.anchors.gather(1, picked)[:, 0]  # (n, 2)
    matrices = augmentation_matrices(config, chance[:, :CHANCES], pictures.sizes, anchors)
    padding = beyond(matrices, config.size, pictures.sizes)
    return *warp(pictures.images, pictures.labels, matrices, config.size, pictures.sizes), padding, chance


def augment(
    pictures: Pictures, config: AugmentationConfig, seeds: Tensor, moving: Moving = move
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, turns, flips, crops and blurs images at random, and their labels with them.

    Args:
        pictures: n of them.
        config: what may happen.
        seeds: (n,) int64; what happens to an image is a function of its own.
        moving: `move`, or the same compiled.

    Returns:
        (n, 3, S, S) and (n, S, S) uint8, and (n, S, S) bool, true beyond the photograph.
    """
    images, labels, padding, chance = moving(pictures, config, seeds)
    if config.blur:
        images = torch.where((chance[:, BLUR] < config.blur)[:, None, None, None], blur(images), images)
    return images, labels, padding
