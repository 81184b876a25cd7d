"""Pixels -> what a network sees, and back: exact to the pixel, the mask always moving with the image.

Positions are continuous: pixel i covers i to i + 1, its centre is i + 0.5.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr import compat
from cyctr.config import AugmentationConfig, InputConfig
from cyctr.seeding import Stream
from cyctr.types import IGNORE

Size = tuple[int, int]
FILL = (124, 116, 104)
"""ImageNet's mean colour, which normalisation turns to zero: what lies beyond the image in training."""


def content_size(size: Size, config: InputConfig) -> Size:
    """(height, width) that an image of this size takes up within the input."""
    if config.fit == "squash":
        return config.size, config.size
    longest, multiple = max(size), config.multiple
    if multiple > 1:
        height, width = (max(multiple, side * config.size // longest // multiple * multiple) for side in size)
    else:
        height, width = (max(1, round(side * config.size / longest)) for side in size)
    return height, width


def fit_image(image: Tensor, config: InputConfig) -> Tensor:
    """(3, H, W) uint8 -> (3, S, S) uint8."""
    height, width = content_size((image.shape[-2], image.shape[-1]), config)
    resized = compat.transforms().resize(image, [height, width], antialias=True)
    return F.pad(resized, (0, config.size - width, 0, config.size - height), value=config.fill)


def fit_label(label: Tensor, config: InputConfig) -> Tensor:
    """(H, W) uint8 -> (S, S) uint8, 255 beyond the image. An object too small to survive keeps one pixel."""
    size = (label.shape[-2], label.shape[-1])
    height, width = content_size(size, config)
    resized = F.interpolate(label[None, None], (height, width), mode="nearest-exact")[0, 0]
    marked = (label == 1).nonzero()
    if len(marked) and not (resized == 1).any():
        row, column = marked[len(marked) // 2].tolist()
        resized[int((row + 0.5) * height / size[0]), int((column + 0.5) * width / size[1])] = 1
    return F.pad(resized, (0, config.size - width, 0, config.size - height), value=IGNORE)


def restore(maps: Tensor, size: Size, config: InputConfig) -> Tensor:
    """(C, S, S) maps of the input -> (C, H, W) of an image of this size: the inverse of `fit_image`."""
    if config.register:
        height, width = content_size(size, config)
        return F.interpolate(maps[None, :, :height, :width], size, mode="bilinear", align_corners=False)[0]
    longest = (max(size), max(size))
    return F.interpolate(maps[None], longest, mode="bilinear", align_corners=True)[0, :, : size[0], : size[1]]


def shrink(image: Tensor, label: Tensor, longest: int | None) -> tuple[Tensor, Tensor]:
    """(3, H, W) and (H, W), resized so that the longest side has at most `longest` pixels."""
    size = (image.shape[-2], image.shape[-1])
    if longest is None or max(size) <= longest:
        return image, label
    config = InputConfig(longest)
    height, width = content_size(size, config)
    return fit_image(image, config)[:, :height, :width], fit_label(label, config)[:height, :width]


@dataclass(frozen=True)
class Augmentation:
    """One random change of an image: where each pixel of the crop comes from, and whether it is blurred.

    Attributes:
        matrix: two rows of three: (x, y, 1) in the crop -> (x, y) in the image.
        blur: whether to blur.
    """

    matrix: tuple[tuple[float, float, float], tuple[float, float, float]]
    blur: bool


def draw_augmentation(config: AugmentationConfig, stream: Stream, size: Size, anchor: tuple[float, float]) -> Augmentation:
    """A scale, rotation and flip about the image's centre, and a crop that holds the anchor.

    Args:
        config: the ranges.
        stream: where the numbers come from.
        size: (height, width) of the image.
        anchor: (x, y) in the image, on the object: whatever is cut away, it stays.
    """
    scale = stream.uniform(*config.scale)
    angle = math.radians(stream.uniform(-config.rotation, config.rotation))
    mirror = -1.0 if stream.uniform() < config.flip else 1.0
    blur = stream.uniform() < config.blur
    across, down = stream.uniform(), stream.uniform()

    centre = (size[1] / 2, size[0] / 2)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = mirror * (anchor[0] - centre[0]), anchor[1] - centre[1]
    landed = (cos * x - sin * y, sin * x + cos * y)  # the anchor, turned, about the centre
    # the crop's corner relative to the scaled image's centre
    left, top = (
        _corner(side * scale, config.size, place, at * scale)
        for side, place, at in ((size[1], across, landed[0]), (size[0], down, landed[1]))
    )
    # crop -> image: move to the centre, turn back, scale back, mirror
    row_x = (mirror * cos / scale, mirror * sin / scale)
    row_y = (-sin / scale, cos / scale)
    return Augmentation(
        (
            (*row_x, centre[0] + row_x[0] * left + row_x[1] * top),
            (*row_y, centre[1] + row_y[0] * left + row_y[1] * top),
        ),
        blur,
    )


def _corner(extent: float, size: int, place: float, anchor: float) -> float:
    """Where a crop begins, from the centre on: anywhere inside the image, or around it where it is smaller."""
    spare = extent - size
    corner = -extent / 2 + (place * spare if spare > 0 else spare / 2)
    pixel = min(max(round(anchor - corner - 0.5), 0), size - 1)
    return anchor - pixel - 0.5  # the anchor on the middle of a pixel: however small the object, its label is read there


def warp(images: Tensor, labels: Tensor, matrices: Tensor, size: int, sources: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Takes each pixel of the crops from where the matrices say.

    Args:
        images: (B, 3, H, W) uint8.
        labels: (B, H, W) uint8.
        matrices: (B, 2, 3) of `Augmentation`.
        size: S of the crops.
        sources: (B, 2) height and width of each image where it fills only the top left of its (H, W).

    Returns:
        (B, 3, S, S) uint8, between pixels bilinear, the mean colour beyond the image; (B, S, S) uint8, nearest, 255 beyond.
    """
    height, width = images.shape[-2:]
    to_unit = matrices.new_tensor([[2 / width, 0, -1], [0, 2 / height, -1], [0, 0, 1]])
    from_unit = matrices.new_tensor([[size / 2, 0, size / 2], [0, size / 2, size / 2], [0, 0, 1]])
    last = matrices.new_tensor([[[0, 0, 1]]]).expand(len(matrices), 1, 3)
    theta = (to_unit @ torch.cat([matrices, last], 1) @ from_unit)[:, :2]
    grid = F.affine_grid(theta.float(), [len(images), 1, size, size], align_corners=False)
    inside = torch.ones_like(labels[:, None]).float()
    if sources is not None:
        rows = torch.arange(height, device=labels.device)[None, :, None] < sources[:, 0, None, None]
        columns = torch.arange(width, device=labels.device)[None, None] < sources[:, 1, None, None]
        inside = (rows & columns)[:, None].float()
    fill = torch.tensor(FILL, device=images.device).view(1, 3, 1, 1)
    colour = F.grid_sample((images - fill.float()) * inside, grid, mode="bilinear", align_corners=False) + fill
    decided = F.grid_sample((IGNORE - labels[:, None].float()) * inside, grid, mode="nearest", align_corners=False)
    return colour.round().clamp(0, 255).byte(), (IGNORE - decided[:, 0]).byte()


def blur(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8, slightly out of focus: a Gaussian over 5 x 5 pixels."""
    return compat.transforms().gaussian_blur(images, [5, 5], [1.1, 1.1])
