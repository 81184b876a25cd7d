"""Episodes drawn from a seed: textured shapes among clutter, for tests and demonstrations.

A class is a texture: a pattern, how fine it is and which way it runs. Around the object stand objects of other classes,
in front of it and behind. Everything in an image is painted in the same two colours and every image has two of its own,
so colour does not find the class; shape, place and size change from image to image and do not find it either.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cyctr.errors import DataError
from cyctr.types import Episode

Field = NDArray[np.float64]

_CLUTTER = 3  # objects of other classes in an image


@dataclass(frozen=True)
class Appearance:
    """What makes objects one class.

    Attributes:
        pattern: a name of `PATTERNS`.
        frequency: periods across the image.
        direction: which way the pattern runs, in radians.
    """

    pattern: str
    frequency: float
    direction: float

    def resembles(self, other: "Appearance") -> bool:
        """Whether one could be taken for the other; a quarter turn does not tell, since it leaves checks as they were."""
        turn = abs((self.direction - other.direction + np.pi / 4) % (np.pi / 2) - np.pi / 4)
        return self.pattern == other.pattern and abs(np.log(self.frequency / other.frequency)) < 0.3 and turn < 0.35


def _wave(turns: Field) -> Field:
    return np.sin(2 * np.pi * turns)


PATTERNS: dict[str, Callable[[Field, Field], Field]] = {
    "stripes": lambda x, y: _wave(x),
    "checks": lambda x, y: _wave(x) * _wave(y),
    "dots": lambda x, y: _wave(x) + _wave(y) - 0.7,
    "grid": lambda x, y: np.maximum(_wave(x), _wave(y)) - 0.7,
    "zigzags": lambda x, y: _wave(x + np.abs(y % 1 - 0.5)),
    "dashes": lambda x, y: np.minimum(_wave(x), _wave((y + np.floor(x)) / 2) + 0.5),
    "bricks": lambda x, y: np.where(((x + np.floor(y)) / 2 % 1 < 0.12) | (y % 1 < 0.25), -1.0, 1.0),
    "blobs": lambda x, y: _wave(x) + _wave(0.6 * x + 0.9 * y) + _wave(0.7 * y - 0.8 * x),
}
"""Dark below zero and light above, a period being 1."""


@dataclass(frozen=True)
class SyntheticEpisodes:
    """An endless list of episodes; episode i is a function of these fields and i only.

    Attributes:
        classes: the class numbers to draw from; any from 0 on, each with an appearance of its own.
        size: height and width in pixels.
        shots: K.
        seed: another seed, other episodes of the same classes.
    """

    classes: Sequence[int]
    size: int = 97
    shots: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.classes:
            raise DataError("classes is empty; expected at least one class number, such as range(100)")
        if self.shots < 1:
            raise DataError(f"shots is {self.shots}; expected at least 1")
        if self.seed < 0:
            raise DataError(f"seed is {self.seed}; expected 0 or more")

    def batch(self, start: int, count: int) -> Episode:
        """Episodes `start` to `start + count - 1`."""
        return self.pick(range(start, start + count))

    def pick(self, indices: Iterable[int]) -> Episode:
        """The episodes of these numbers."""
        images, labels = [], []
        for index in indices:
            random = np.random.default_rng((self.seed, index))
            number = int(self.classes[int(random.integers(len(self.classes)))])
            drawn = [draw_image(number, self.size, random) for _ in range(self.shots + 1)]
            images.append(np.stack([image for image, _ in drawn]))
            labels.append(np.stack([label for _, label in drawn]))
        pixels = torch.from_numpy(np.stack(images)).permute(0, 1, 4, 2, 3).contiguous()  # (B, K + 1, 3, H, W)
        marks = torch.from_numpy(np.stack(labels))  # (B, K + 1, H, W)
        return Episode(pixels[:, :-1], marks[:, :-1], pixels[:, -1], marks[:, -1])


def appearance(number: int) -> Appearance:
    """The look of a class."""
    if number < 0:
        raise DataError(f"class number is {number}; expected 0 or more")
    random = np.random.default_rng((number, 0xC1A55))
    return Appearance(str(random.choice(list(PATTERNS))), 8 * 2.5 ** random.uniform(), random.uniform(0, np.pi))


def draw_image(number: int, size: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image (H, W, 3) with one object of class `number` among others, and its label (H, W)."""
    look = appearance(number)
    looks = [look, *(_other_class(look, random) for _ in range(_CLUTTER))]
    y, x = np.mgrid[0:size, 0:size] / size  # in [0, 1)
    light, label = _clouds(x, y, random), np.zeros((size, size), np.uint8)
    start = random.uniform(0, 2 * np.pi)
    for i in random.permutation(len(looks)):  # around the centre of the image, any of them in front
        angle = start + 2 * np.pi * i / len(looks)
        inside = _shape(x - 0.5 - 0.31 * np.cos(angle), y - 0.5 - 0.31 * np.sin(angle), random)
        light[inside] = _texture(looks[i], x[inside], y[inside], random)
        label[inside] = i == 0
    contrast = random.uniform(0.15, 0.3, 3)
    image = random.uniform(contrast, 1 - contrast) + contrast * light[..., None] + random.normal(0, 0.02, (size, size, 3))
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8), label


def _other_class(look: Appearance, random: np.random.Generator) -> Appearance:
    other = look
    while other.resembles(look):
        other = appearance(int(random.integers(10**6, 10**9)))
    return other


def _clouds(x: Field, y: Field, random: np.random.Generator) -> Field:
    """A background that drifts between dark (-1) and light (1)."""
    across, down, phase = random.uniform(-3, 3, (3, 4, 1, 1))
    return np.clip(_wave(across * x + down * y + phase).sum(0) / 2, -1, 1)


def _texture(look: Appearance, x: Field, y: Field, random: np.random.Generator) -> Field:
    """The pattern at these points, from dark (-1) to light (1), each time a little turned and scaled."""
    angle = look.direction + random.uniform(-0.1, 0.1)
    frequency = look.frequency * random.uniform(0.95, 1.05)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    left, top = random.uniform(0, 2, 2)
    return np.clip(2 * PATTERNS[look.pattern](frequency * u + left, frequency * v + top), -1, 1)


def _shape(x: Field, y: Field, random: np.random.Generator) -> NDArray[np.bool_]:
    """A smooth closed outline around (0, 0): a circle whose radius swings with the angle."""
    radius, lobes = random.uniform(0.17, 0.25), random.integers(2, 6)
    swing, phase = random.uniform(0, 0.3), random.uniform(0, 2 * np.pi)
    return np.hypot(x, y) < radius * (1 + swing * np.sin(lobes * np.arctan2(y, x) + phase))
