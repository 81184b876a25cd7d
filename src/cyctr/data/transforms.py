"""Pixels -> what a network sees, and back: exact to the pixel, the mask always moving with the image.

Positions are continuous: pixel i covers i to i + 1, its centre is i + 0.5.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cyctr import compat
from cyctr.config import AugmentationConfig, InputConfig
from cyctr.data.transfer import constant, to_device
from cyctr.types import IGNORE

Size = tuple[int, int]
FILL = (124, 116, 104)
"""ImageNet's mean colour, which normalisation turns to zero: what lies beyond the image in training."""
_LARGE, _STRIP = 2**25, 2**22  # pixels of an image that is resized in parts, and of each part
_LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue


def planes(pixels: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) -> (3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


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
    if image[0].numel() > _LARGE:  # across first, a few rows at a time, as it is done anyway: all at once takes much memory
        rows = max(1, _STRIP // image.shape[-1])
        image = torch.cat([_narrower(part, width) for part in image.split(rows, dim=1)], 1)
    resized = compat.transforms().resize(image, [height, width], antialias=True)
    return F.pad(resized, (0, config.size - width, 0, config.size - height), value=config.fill)


def _narrower(image: Tensor, width: int) -> Tensor:
    """(3, H, W) uint8 -> (3, H, width)."""
    return compat.transforms().resize(image.contiguous(), [image.shape[-2], width], antialias=True)


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


def restore_rows(maps: Tensor, size: Size, config: InputConfig, rows: slice) -> Tensor:
    """Some rows of what `restore` gives, without making the others: (C, r, W), the same but for rounding."""
    assert config.register
    height, width = content_size(size, config)
    first, end, _ = rows.indices(size[0])
    place = ((torch.arange(first, end, device=maps.device) + 0.5) * (height / size[0]) - 0.5).clamp_min(0)
    above = place.long()
    below = (above + 1).clamp_max(height - 1)
    content = maps[:, :height, :width]
    between = torch.lerp(content[:, above], content[:, below], (place - above)[:, None].to(maps.dtype))
    return F.interpolate(between[None], (end - first, size[1]), mode="bilinear", align_corners=False)[0]


def restore_all(maps: Tensor, sizes: Sequence[Size], config: InputConfig) -> Tensor:
    """As `restore` for a batch at once, without a loop.

    Args:
        maps: (B, C, S, S).
        sizes: height and width of each image.
        config: how the images were fitted.

    Returns:
        (B, C, H, W), as large as the largest of them; each image in the top left, what lies beyond means nothing.
    """
    ratio, shift, last = _places(sizes, config, maps.device)  # (B, 2) each, for rows and columns
    rows, columns = (
        (torch.arange(max(side), device=maps.device) * ratio[:, axis, None] + shift[:, axis, None])
        .clamp_min(0)
        .minimum(last[:, axis, None])
        for axis, side in enumerate(zip(*sizes, strict=True))
    )  # (B, H), (B, W): places in the maps
    y, x = (((2 * place + 1) / maps.shape[-1] - 1).to(maps.dtype) for place in (rows, columns))
    grid = torch.stack([x[:, None].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])], -1)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _places(sizes: Sequence[Size], config: InputConfig, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 2) ratio, shift and last: pixel i of an image is at i * ratio + shift, at most last, in the network's input."""
    own = torch.tensor(sizes, dtype=torch.float64)
    if config.register:
        content = torch.tensor([content_size(size, config) for size in sizes], dtype=torch.float64)
        parts = (content / own, 0.5 * content / own - 0.5, content - 1)
    else:
        ratio = (config.size - 1) / (own.amax(1, keepdim=True) - 1).clamp_min(1).expand(-1, 2)
        parts = (ratio, torch.zeros_like(ratio), torch.full_like(ratio, config.size - 1))
    moved = to_device(torch.stack(parts), device)
    return moved[0], moved[1], moved[2]


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
    # crop -> image: scale back, turn back, mirror, and move so that the anchor is where it was
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


def padding_of(sizes: Sequence[Size], config: InputConfig, device: torch.device) -> Tensor:
    """(B, S, S) bool: what of the inputs that `fit_image` makes of images of these sizes lies beyond the image."""
    place = torch.arange(config.size, device=device)
    content = to_device(torch.tensor([content_size(size, config) for size in sizes]), device)  # (B, 2)
    rows, columns = (place[None] >= content[:, axis, None] for axis in (0, 1))  # (B, S)
    return rows[:, :, None] | columns[:, None]


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


def recolour(images: Tensor, amounts: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 with other brightness, contrast and saturation.

    Args:
        images: (B, 3, H, W) uint8.
        amounts: (B, 3) above -1, for each of the three: 0.2 is a fifth more of it.
    """
    brightness, contrast, saturation = (1 + amounts.float()).view(-1, 3, 1, 1, 1).unbind(1)  # (B, 1, 1, 1) each
    weights = constant(_LUMINANCE, images.device).view(1, 3, 1, 1)
    colour = images.float() * brightness
    grey = (colour * weights).sum(1, keepdim=True)  # (B, 1, H, W)
    colour = grey + (colour - grey) * saturation
    middle = grey.mean((-2, -1), keepdim=True)  # (B, 1, 1, 1)
    return (middle + (colour - middle) * contrast).round().clamp(0, 255).byte()
