"""Where feature cells sit among pixels: the one place where maps change size.

A strided ConvNet with odd kernels puts cell `i` on pixel `stride * i` ("corner"): with 8n + 1 pixels (473) bilinear
interpolation with aligned corners is exact. Patches and even pools cover pixels `stride * i` to `stride * i + stride - 1`
("center"). What a trained cell speaks of may lie beside where it sits: `offset` says by how much.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Alignment = Literal["corner", "center"]


@dataclass(frozen=True)
class Grid:
    """The lattice of feature cells that a backbone lays over an image.

    Attributes:
        stride: pixels from one cell to the next.
        alignment: where a cell sits.
        offset: pixels, right and down, from there to what the cell speaks of.
    """

    stride: int = 8
    alignment: Alignment = "corner"
    offset: int = 0

    def cells(self, labels: Tensor, size: tuple[int, int], keep_small: bool = True) -> Tensor:
        """The label of each cell: that of the pixel it sits on.

        Args:
            labels: (B, H, W) uint8 of 0, 1 and 255.
            size: (h, w) of the feature map.
            keep_small: an object so small that it lies between all those pixels keeps the one cell it covers most.

        Returns:
            (B, h, w) uint8.
        """
        rows, columns = self._anchors(size[0], labels), self._anchors(size[1], labels)  # (h,), (w,)
        cells = labels[:, rows.clamp(0, labels.shape[-2] - 1)[:, None], columns.clamp(0, labels.shape[-1] - 1)]
        if not keep_small:
            return cells

        foreground = (labels == 1).float()  # (B, H, W)
        nearest_row = _nearest(labels.shape[-2], rows)  # (H, h) one-hot
        nearest_column = _nearest(labels.shape[-1], columns)  # (W, w)
        covered = (nearest_row.T @ foreground @ nearest_column).flatten(1)  # (B, hw) foreground pixels nearest to each cell
        strongest = torch.arange(covered.shape[1], device=labels.device) == covered.argmax(1, keepdim=True)
        vanished = (covered > 0).any(1) & ~(cells == 1).flatten(1).any(1)  # (B,)
        revived = (strongest & vanished[:, None]).view_as(cells)
        return torch.where(revived, torch.ones_like(cells), cells)

    def upsample(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Maps at pixel resolution, each cell's value landing exactly where the cell sits.

        Args:
            maps: (B, C, h, w).
            size: (H, W) of the image.

        Returns:
            (B, C, H, W): bilinear between cells, constant beyond the outermost ones.
        """
        height, width = maps.shape[-2:]
        if (height, width) == tuple(size) and self.stride == 1 and not self.offset:
            return maps
        if self.alignment == "corner":
            inner = ((height - 1) * self.stride + 1, (width - 1) * self.stride + 1)
            maps = F.interpolate(maps, inner, mode="bilinear", align_corners=True)
        else:
            maps = F.interpolate(maps, (height * self.stride, width * self.stride), mode="bilinear", align_corners=False)
        if self.offset > 0:
            maps = F.pad(maps, (self.offset, 0, self.offset, 0), mode="replicate")
        elif self.offset < 0:
            maps = maps[..., -self.offset :, -self.offset :]
        bottom, right = size[0] - maps.shape[-2], size[1] - maps.shape[-1]
        if bottom > 0 or right > 0:
            maps = F.pad(maps, (0, max(right, 0), 0, max(bottom, 0)), mode="replicate")
        return maps[..., : size[0], : size[1]]

    def spread(self, weights: Tensor, size: tuple[int, int]) -> Tensor:
        """The transpose of `upsample`: how much each cell counts in a sum over weighted pixels of the upsampled map.

        So a weighted sum of an upsampled map needs no map at pixel resolution, which has C times as many numbers.

        Args:
            weights: (..., H, W) of the pixels.
            size: (h, w) of the feature map.

        Returns:
            (..., h, w): their sum is that of the pixels.
        """
        rows, columns = (self._shares(cells, weights.shape[axis], weights) for cells, axis in zip(size, (-2, -1), strict=True))
        return rows.T @ weights @ columns

    def _shares(self, cells: int, pixels: int, like: Tensor) -> Tensor:
        """(pixels, cells) what each pixel along one side takes from each cell: `upsample` treats sides independently."""
        one_hot = torch.eye(cells, dtype=like.dtype, device=like.device)  # a map for each cell
        wide = abs(self.offset) // self.stride + 2  # enough to be shifted sideways; all columns are alike
        return self.upsample(one_hot[None, :, :, None].expand(-1, -1, -1, wide), (pixels, 1))[0, :, :, 0].T

    def centres(self, index: Tensor, width: int) -> Tensor:
        """(N, 2) the (x, y) in pixels of cells, given as places in h * w."""
        first = self.offset + (0.0 if self.alignment == "corner" else (self.stride - 1) / 2)
        return torch.stack([index % width, index // width], -1) * self.stride + first

    def regrid(self, maps: Tensor, source: "Grid", size: tuple[int, int]) -> Tensor:
        """Maps of another stride on this grid of (h, w) cells: finer ones are thinned out, coarser ones interpolated.

        Args:
            maps: (B, C, h', w') on `source`, laid over the same image.
            source: where the cells of the maps sit.
            size: (h, w) here.
        """
        if source.stride < self.stride:
            ratio = self.stride // source.stride
            maps = maps[..., ::ratio, ::ratio] if source.alignment == "corner" else F.max_pool2d(maps, ratio)
        ratio = max(1, source.stride // self.stride)
        return Grid(ratio, source.alignment).upsample(maps, size)  # also crops, or repeats the rim

    def _anchors(self, count: int, labels: Tensor) -> Tensor:
        """(count,) the pixel that each cell along one side sits on."""
        first = self.offset + (0 if self.alignment == "corner" else self.stride // 2)
        return torch.arange(count, device=labels.device) * self.stride + first


def _nearest(pixels: int, anchors: Tensor) -> Tensor:
    """(pixels, cells) one-hot rows: the cell whose anchor is nearest to each pixel."""
    distance = (torch.arange(pixels, device=anchors.device)[:, None] - anchors).abs()
    return F.one_hot(distance.argmin(1), len(anchors)).float()
