"""Episodes drawn from a seed: textured shapes among clutter, for tests and demonstrations.

A class is a texture in two colours. Shape, place, size, turn and light change from image to image; among the clutter
stand objects in the same colours with other textures, so that colour alone does not find the class.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cyctr.errors import DataError
from cyctr.types import Episode

Field = NDArray[np.float64]
Texture = Callable[[Field, Field], Field]


@dataclass(frozen=True)
class Appearance:
    """What makes objects one class.

    Attributes:
        texture: which of the patterns.
        frequency: periods across the image.
        colours: (2, 3) RGB of the pattern's dark and light parts.
    """

    texture: int
    frequency: float
    colours: Field


def _stripes(x: Field, y: Field) -> Field:
    return np.sin(2 * np.pi * x)


def _checks(x: Field, y: Field) -> Field:
    return np.sign(np.sin(2 * np.pi * x) * np.sin(2 * np.pi * y))


def _dots(x: Field, y: Field) -> Field:
    return np.where(np.hypot(x % 1 - 0.5, y % 1 - 0.5) < 0.3, 1.0, -1.0)


def _rings(x: Field, y: Field) -> Field:
    return np.sin(2 * np.pi * np.hypot(x, y))


def _waves(x: Field, y: Field) -> Field:
    return np.sin(2 * np.pi * (x + 0.5 * np.sin(2 * np.pi * y)))


def _plain(x: Field, y: Field) -> Field:
    return np.zeros_like(x)


TEXTURES: tuple[Texture, ...] = (_stripes, _checks, _dots, _rings, _waves, _plain)


@dataclass(frozen=True)
class SyntheticEpisodes:
    """An endless list of episodes; episode i is a function of these fields and i alone.

    Attributes:
        classes: the class numbers to draw from; any integers, each with an appearance of its own.
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
    random = np.random.default_rng((number, 0xC1A55))
    dark = random.uniform(0, 0.6, 3)
    light = np.clip(dark + random.uniform(0.25, 0.6, 3) * random.choice([-1, 1], 3), 0, 1)
    return Appearance(int(random.integers(len(TEXTURES))), random.uniform(6, 16), np.stack([dark, light]))


def draw_image(number: int, size: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image (H, W, 3) with one object of class `number` among others, and its label (H, W)."""
    look = appearance(number)
    y, x = np.mgrid[0:size, 0:size] / size  # in [0, 1)
    image = _background(x, y, random)
    textures = random.permutation([texture for texture in range(len(TEXTURES)) if texture != look.texture])
    twins = [Appearance(int(texture), look.frequency, look.colours) for texture in textures[:2]]
    stranger = appearance(int(random.integers(10**6, 10**9)))
    for clutter in (stranger, *twins):
        inside = _shape(x, y, random, random.uniform(0.14, 0.26))
        image = np.where(inside[..., None], _paint(clutter, x, y, random), image)
    inside = _shape(x, y, random, random.uniform(0.16, 0.3))
    image = np.where(inside[..., None], _paint(look, x, y, random), image)
    image = image * random.uniform(0.8, 1.15) + random.normal(0, 0.02, image.shape)
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8), inside.astype(np.uint8)


def _background(x: Field, y: Field, random: np.random.Generator) -> Field:
    corner, slope = random.uniform(0.1, 0.9, 3), random.uniform(-0.4, 0.4, (2, 3))
    image = corner + x[..., None] * slope[0] + y[..., None] * slope[1]
    weak = Appearance(int(random.integers(len(TEXTURES))), random.uniform(3, 12), np.stack([corner, random.uniform(0, 1, 3)]))
    return 0.7 * image + 0.3 * _paint(weak, x, y, random)


def _paint(look: Appearance, x: Field, y: Field, random: np.random.Generator) -> Field:
    u, v = _turned(x, y, random)
    light = 0.5 + 0.5 * TEXTURES[look.texture](u * look.frequency, v * look.frequency)  # in [0, 1]
    return look.colours[0] * (1 - light[..., None]) + look.colours[1] * light[..., None]


def _turned(x: Field, y: Field, random: np.random.Generator) -> tuple[Field, Field]:
    angle, (left, top) = random.uniform(0, 2 * np.pi), random.uniform(0, 1, 2)
    u, v = x - left, y - top
    return u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)


def _shape(x: Field, y: Field, random: np.random.Generator, radius: float) -> NDArray[np.bool_]:
    """A smooth closed outline around a random centre: a circle whose radius swings with the angle."""
    left, top = random.uniform(0.2, 0.8, 2)
    angle = np.arctan2(y - top, x - left)
    lobes, swing, phase = random.integers(2, 6), random.uniform(0, 0.35), random.uniform(0, 2 * np.pi)
    return np.hypot(x - left, y - top) < radius * (1 + swing * np.sin(lobes * angle + phase))
