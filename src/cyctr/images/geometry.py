"""Pixels -> what a network sees, and back: exact to the pixel, the mask always moving with the image.

Positions are continuous: pixel i covers i to i + 1, its centre is i + 0.5.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.transfer import to_device
from cyctr.types import IGNORE

Size = tuple[int, int]
_LARGE, _STRIP = 2**25, 2**20  # pixels of an image that is resized in parts, and of each part


def planes(pixels: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) -> (3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def seen_planes(pixels: NDArray[np.uint8]) -> Tensor:
    """(H, W, 3) -> (3, H, W); of a large image without a copy, which would take as much memory again."""
    return torch.from_numpy(pixels).permute(2, 0, 1) if pixels[..., 0].size > _LARGE else planes(pixels)


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


def fit_image(image: Tensor, config: InputConfig, mirrored: bool = False) -> Tensor:
    """(3, H, W) uint8 -> (3, S, S) uint8, of the mirror image if asked for."""
    height, width = content_size((image.shape[-2], image.shape[-1]), config)
    if image[0].numel() > _LARGE:  # across first, a few rows at a time, as it is done anyway: all at once takes much memory
        rows = max(1, _STRIP // image.shape[-1])
        narrow = image.new_empty((3, image.shape[-2], width))
        for part, place in zip(image.split(rows, dim=1), narrow.split(rows, dim=1), strict=True):
            place.copy_(_resized((part.flip(-1) if mirrored else part).contiguous(), (part.shape[1], width)))
        image = narrow
    elif mirrored:
        image = image.flip(-1)
    resized = _resized(image, (height, width))
    return F.pad(resized, (0, config.size - width, 0, config.size - height), value=config.fill)


def _resized(image: Tensor, size: Size) -> Tensor:
    """(3, H, W) uint8 -> (3, h, w), bilinearly; a smaller image has the mean of what each pixel covers."""
    if image.shape[1:] == size:
        return image
    values = image[None] if image.device.type == "cpu" else image[None].float()  # torch has no kernel for bytes on a GPU
    found = F.interpolate(values, size, mode="bilinear", align_corners=False, antialias=True)[0]
    return found if found.dtype == torch.uint8 else found.round_().to(torch.uint8)


def fit_label(label: Tensor, config: InputConfig) -> Tensor:
    """(H, W) uint8 -> (S, S) uint8, 255 beyond the image. An object too small to survive keeps one pixel."""
    size = (label.shape[-2], label.shape[-1])
    height, width = content_size(size, config)
    resized = F.interpolate(label[None, None], (height, width), mode="nearest-exact")[0, 0]
    if not (resized == 1).any():
        ends = (label == 1).sum(1).cumsum(0)  # (H,) by rows: the places of all pixels would take 16 bytes for each
        middle = int(ends[-1]) // 2
        if ends[-1]:
            row = int((ends <= middle).sum())
            column = int((label[row] == 1).nonzero()[middle - int(ends[row - 1] if row else 0)])
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


def padding_of(sizes: Sequence[Size], config: InputConfig, device: torch.device) -> Tensor:
    """(B, S, S) bool: what of the inputs that `fit_image` makes of images of these sizes lies beyond the image."""
    place = torch.arange(config.size, device=device)
    content = to_device(torch.tensor([content_size(size, config) for size in sizes]), device)  # (B, 2)
    rows, columns = (place[None] >= content[:, axis, None] for axis in (0, 1))  # (B, S)
    return rows[:, :, None] | columns[:, None]
