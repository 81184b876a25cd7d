"""Random changes of training images, on the device: scale, rotation, flip, crop, blur and colour. The mask moves along.

Positions are continuous: pixel i covers i to i + 1, its centre is i + 0.5.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cyctr import compat
from cyctr.config import AugmentationConfig
from cyctr.transfer import constant
from cyctr.types import IGNORE

FILL = (124, 116, 104)
"""ImageNet's mean colour, which normalisation turns to zero: what lies beyond the image in training."""

CHANCES, BLUR = 6, 3
"""Random numbers in [0, 1) that one change takes: scale, rotation, flip, blur, crop across and down."""


def augmentation_matrices(config: AugmentationConfig, chance: Tensor, sizes: Tensor, anchors: Tensor) -> Tensor:
    """Scales, turns and flips about the images' centres, and crops that hold the anchors.

    Args:
        config: the ranges.
        chance: (B, 6) float64 in [0, 1).
        sizes: (B, 2) height and width of each image.
        anchors: (B, 2) the (x, y) of a point on each object. Whatever is cut away, it stays, and lands on the middle of a
            pixel: however small the object, its label is read there.

    Returns:
        (B, 2, 3) float64: (x, y, 1) in the crop -> (x, y) in the image.
    """
    low, high = config.scale
    scale = low + (high - low) * chance[:, 0]
    angle = torch.deg2rad(config.rotation * (2 * chance[:, 1] - 1))
    mirror = torch.where(chance[:, 2] < config.flip, -1.0, 1.0).to(chance)
    cos, sin = angle.cos(), angle.sin()
    # crop -> image: scale back, turn back, mirror, and move the anchor to where it was
    back = torch.stack([mirror * cos, mirror * sin, -sin, cos], -1).view(-1, 2, 2) / scale[:, None, None]

    extent = sizes.flip(-1) * scale[:, None]  # (B, 2) of the scaled image across and down
    x, y = (anchors - sizes.flip(-1) / 2).unbind(-1)
    x = mirror * x
    offset = torch.stack([cos * x - sin * y, sin * x + cos * y], -1) * scale[:, None]  # the anchor, seen from the centre
    spare = extent - config.size
    corner = -extent / 2 + torch.where(spare > 0, chance[:, 4:] * spare, spare / 2)  # inside, or around a smaller image
    pixel = (offset - corner - 0.5).round().clamp(0, config.size - 1)  # of the crop, where the anchor lands
    shift = anchors - (back @ (pixel + 0.5)[..., None])[..., 0]
    return torch.cat([back, shift[..., None]], -1)


def warp(images: Tensor, labels: Tensor, matrices: Tensor, size: int, sources: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Takes each pixel of the crops from where the matrices say.

    Args:
        images: (B, 3, H, W) uint8.
        labels: (B, H, W) uint8.
        matrices: (B, 2, 3) of `augmentation_matrices`.
        size: S of the crops.
        sources: (B, 2) height and width of each image where it fills only the top left of its (H, W).

    Returns:
        (B, 3, S, S) uint8, between pixels bilinear, the mean colour beyond the image; (B, S, S) uint8, nearest, 255 beyond.
    """
    height, width = images.shape[-2:]
    grid = F.affine_grid(_in_units(matrices, size, height, width).float(), [len(images), 1, size, size], align_corners=False)
    inside = torch.ones_like(labels[:, None]).float()
    if sources is not None:
        rows = torch.arange(height, device=labels.device)[None, :, None] < sources[:, 0, None, None]
        columns = torch.arange(width, device=labels.device)[None, None] < sources[:, 1, None, None]
        inside = (rows & columns)[:, None].float()
    fill = _fill(images.device).view(1, 3, 1, 1)
    colour = F.grid_sample((images - fill) * inside, grid, mode="bilinear", align_corners=False) + fill
    decided = F.grid_sample((IGNORE - labels[:, None].float()) * inside, grid, mode="nearest", align_corners=False)
    return colour.round().clamp(0, 255).byte(), (IGNORE - decided[:, 0]).byte()


def beyond(matrices: Tensor, size: int, sources: Tensor) -> Tensor:
    """(B, S, S) bool: the pixels of crops that lie beyond their image.

    Args:
        matrices: (B, 2, 3) of `augmentation_matrices`.
        size: S of the crops.
        sources: (B, 2) height and width of each image.
    """
    place = torch.arange(size, device=matrices.device, dtype=matrices.dtype) + 0.5
    across, down, shift = matrices.unbind(-1)  # (B, 2) each
    points = (across[:, None, None] * place[None, None, :, None] + down[:, None, None] * place[None, :, None, None]) + shift[
        :, None, None
    ]  # (B, S, S, 2) as (x, y)
    extent = sources.flip(-1)[:, None, None]
    return ((points < 0) | (points >= extent)).any(-1)


def _fill(device: torch.device) -> Tensor:
    """(3,) float32 of the mean colour."""
    if torch.compiler.is_compiling():  # written into the code, rather than fetched
        return torch.stack([torch.full((), float(part), device=device) for part in FILL])
    return constant(FILL, device)


def _in_units(matrices: Tensor, size: int, height: int, width: int) -> Tensor:
    """(B, 2, 3): the same maps where both the crop and the image reach from -1 to 1, as `F.affine_grid` wants them."""
    turn, shift = matrices[..., :2] * (size / 2), matrices[..., 2]
    x, y = torch.cat([turn, (shift + turn.sum(-1))[..., None]], -1).unbind(1)  # (B, 3) each, in pixels of the image
    scaled = torch.stack([x * (2 / width), y * (2 / height)], 1)
    return torch.cat([scaled[..., :2], scaled[..., 2:] - 1], -1)


def blur(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8, slightly out of focus: a Gaussian over 5 x 5 pixels."""
    return compat.transforms().gaussian_blur(images, [5, 5], [1.1, 1.1])
