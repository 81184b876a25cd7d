"""Coord: the sinusoidal encoding of a cell's row and column (Parmar et al., 2018)."""

import math

import torch
from torch import Tensor


def coordinates(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """(hw, dim) float32: the first half of the channels encodes the row, the second the column.

    Args:
        height: rows of cells.
        width: columns of cells.
        dim: channels, a multiple of 4.
        device: where to make it.
    """
    quarter = dim // 4
    rate = torch.exp(torch.arange(quarter, device=device) * (-math.log(10_000) / quarter))  # (dim / 4,)
    rows = _waves(torch.arange(height, device=device), rate)[:, None].expand(height, width, -1)
    columns = _waves(torch.arange(width, device=device), rate)[None].expand(height, width, -1)
    return torch.cat([rows, columns], -1).flatten(0, 1)  # (hw, dim)


def _waves(position: Tensor, rate: Tensor) -> Tensor:
    angle = position[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)
