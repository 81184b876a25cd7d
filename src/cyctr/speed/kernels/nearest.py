"""The most similar token of another set, without ever writing down a similarity."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 128, 64
_MEMORY = 48 * 2**10  # bytes for the tiles of a block, which every card has; larger ones also run out of registers


@triton.jit
def _nearest_kernel(
    a, b, usable, found, rows, columns, channels,
    heads: tl.constexpr, masked: tl.constexpr, precision: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    tile, group = tl.program_id(0), tl.program_id(1).to(tl.int64)  # group: batch * heads + head
    row = tile * tile_rows + tl.arange(0, tile_rows)
    channel = tl.arange(0, wide)
    own = a + group * rows * channels + row[:, None] * channels + channel[None, :]
    left = tl.load(own, mask=(row < rows)[:, None] & (channel < channels)[None, :], other=0.0)  # (tile_rows, wide)
    best = tl.full((tile_rows,), float("-inf"), tl.float32)
    place = tl.zeros((tile_rows,), tl.int32)
    for start in range(0, columns, tile_columns):
        column = start + tl.arange(0, tile_columns)
        other = b + group * columns * channels + column[:, None] * channels + channel[None, :]
        right = tl.load(other, mask=(column < columns)[:, None] & (channel < channels)[None, :], other=0.0)
        affinity = tl.dot(left, tl.trans(right), input_precision=precision)  # (tile_rows, tile_columns) float32
        allowed = column < columns
        if masked:
            allowed = allowed & (tl.load(usable + (group // heads) * columns + column, mask=allowed, other=0) != 0)
        affinity = tl.where(allowed[None, :], affinity, float("-inf"))
        value, index = tl.max(affinity, 1, return_indices=True, return_indices_tie_break_left=True)
        place = tl.where(value > best, start + index, place)  # the first of equals stays
        best = tl.maximum(value, best)
    tl.store(found + group * rows + row, place.to(tl.int64), mask=row < rows)


def tiles(wide: int, item: int) -> tuple[int, int]:
    """How many rows and columns to compare at a time: as many as fit, each of `wide` numbers of `item` bytes."""
    rows, columns = _ROWS, _COLUMNS
    while rows > 16 and wide * item * (rows + 2 * columns) > _MEMORY:  # the next columns are read while these are compared
        rows, columns = rows // 2, max(16, columns // 2)
    return rows, columns


def _launch(a: Tensor, b: Tensor, usable: Tensor, masked: bool) -> Tensor:
    batch, heads, rows, channels = a.shape
    columns = b.shape[2]
    wide = max(16, triton.next_power_of_2(channels))
    tile_rows, tile_columns = tiles(wide, a.element_size())
    found = torch.empty(batch, heads, rows, dtype=torch.int64, device=a.device)
    with torch.cuda.device_of(a):
        _nearest_kernel[(triton.cdiv(rows, tile_rows), batch * heads)](
            a, b, usable, found, rows, columns, channels,
            heads=heads, masked=masked, precision="ieee" if a.dtype == torch.float32 else "tf32",
            tile_rows=tile_rows, tile_columns=tile_columns, wide=wide,
        )  # fmt: skip
    return found


@torch.library.custom_op("cyctr::nearest", mutates_args=())
def nearest(q: Tensor, k: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """As `nearest_neighbours` of cycle_attention.

    Args:
        q: (B, heads, hw, C).
        k: (B, heads, N, C) of the same type.
        valid: (B, N) uint8.
    """
    q, k = q.contiguous(), k.contiguous()
    return _launch(k, q, valid, masked=False), _launch(q, k, valid.contiguous(), masked=True)


@nearest.register_fake
def _(q: Tensor, k: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    return k.new_empty(k.shape[:3], dtype=torch.int64), q.new_empty(q.shape[:3], dtype=torch.int64)
