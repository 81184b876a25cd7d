"""A dataset in memory, and methods whose scores can be reasoned about."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from cyctr.config import InputConfig, ProtocolConfig
from cyctr.datasets.dataset import Dataset, Fold
from cyctr.datasets.index import Index, Survey
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, RunKey
from cyctr.types import Episode, Prediction

CPU = torch.device("cpu")
NAMES = ("ant", "bee", "cat", "dog")
SMALL = ProtocolConfig(input=InputConfig(33))
_ONE_RUN = (RunKey(0, 1, 0),)
SIZES = ((31, 47), (53, 29), (40, 40), (27, 61), (45, 33))


@dataclass(frozen=True, eq=False)
class Album:
    """Images of noise whose (H, W) values are classes from 1 on, 0 for background and 255 for ignored pixels."""

    values: Sequence[np.ndarray]

    @cached_property
    def keys(self):
        return tuple(f"image-{i}" for i in range(len(self.values)))

    def image(self, i):
        return np.random.default_rng(i).integers(0, 256, (*self.values[i].shape, 3), dtype=np.uint8)

    def label(self, i, number):
        return np.where(self.values[i] == 255, 255, self.values[i] == number + 1).astype(np.uint8)

    def index(self, progress=None, complain=None):
        counts = [np.bincount(values.ravel(), minlength=256)[1:255] for values in self.values]
        surveys = [
            Survey(values.shape, dict(enumerate(count.tolist()))) for values, count in zip(self.values, counts, strict=True)
        ]
        return Index.of(surveys)


def ellipse(size, value, seed, rim=0):
    """(H, W) with an ellipse of a value, and around it a rim of so many ignored pixels."""
    random = np.random.default_rng(seed)
    height, width = size
    centre = random.uniform(0.4, 0.6, 2) * size
    axes = random.uniform(0.25, 0.4, 2) * size
    y, x = np.mgrid[0:height, 0:width] + 0.5
    distance = np.hypot((y - centre[0]) / axes[0], (x - centre[1]) / axes[1])
    values = np.where(distance < 1, value, 0)
    values[(distance >= 1) & (distance < 1 + rim / axes.min())] = 255
    return values.astype(np.uint8)


def album(each: int = 3, sizes: Sequence[tuple[int, int]] = SIZES, rim: int = 0) -> Album:
    """`each` images of each class, in turn."""
    count = each * len(NAMES)
    return Album([ellipse(sizes[i % len(sizes)], 1 + i % len(NAMES), i, rim) for i in range(count)])


def dataset(pool: Album | None = None, folds: Sequence[Sequence[int]] = ((0, 1), (2, 3))) -> Dataset:
    """The album as two folds of two classes."""
    pool = pool or album()
    every = range(len(NAMES))
    sides = tuple(Fold(tuple(c for c in every if c not in test), tuple(test)) for test in folds)
    return Dataset("album", NAMES, {"train": pool, "test": pool}, sides)


def oracle(episode: Episode) -> Prediction:
    """The truth, as far as it is seen at the input's size."""
    truth = (episode.query_labels == 1).float()
    return Prediction(torch.stack([1 - truth, truth], 1))


def constant(foreground: bool):
    def answer(episode: Episode) -> Prediction:
        truth = torch.full(episode.query_images[:, 0].shape, float(foreground))
        return Prediction(torch.stack([1 - truth, truth], 1))

    return answer


def noise(episode: Episode) -> Prediction:
    """Some answer that depends on every pixel of query and supports, and on nothing else."""
    given = episode.support_images.float().mean((1, 2)) + episode.support_labels.float().mean(1)
    value = (episode.query_images.float().mean(1) * 7 + given * 13) % 1.7 - 0.9
    return Prediction(torch.stack([-value, value], 1))


def measure(method, evaluation=None, settings=_ONE_RUN, episodes=12, results=None, **options) -> Results:
    """The results of a method; arguments as of `Evaluation.run`."""
    evaluation = evaluation or Evaluation(dataset(), SMALL)
    results = results or Results({"method": {"name": "test", "precision": "float32"}, **evaluation.conditions()})
    evaluation.run(method, results, settings, episodes, CPU, **{"batch": 4, "workers": 1, **options})
    return results
