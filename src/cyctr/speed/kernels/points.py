"""The weighted sum of a map at predicted places, read straight into the sum: nothing of size tokens * points is written."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 32
_NUMBERS = 2048  # of a tile, which has fewer tokens where they are wide: more do not fit into registers


@triton.jit
def _forward_kernel(
    values, offsets, weights, mixed, tokens, height, width,
    heads: tl.constexpr, points: tl.constexpr, channels: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * tile + tl.arange(0, tile)
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    inside = token < tokens
    channel = tl.arange(0, wide)
    present = channel < channels
    maps = values + (batch * tokens * heads + head) * channels  # + cell * heads * channels + channel
    here = ((batch * tokens + token) * heads + head) * points  # of the weights; twice that of the offsets
    total = tl.zeros((tile, wide), tl.float32)
    for point in range(points):
        x = (token % width).to(tl.float32) + tl.load(offsets + 2 * (here + point), mask=inside, other=0.0)
        y = (token // width).to(tl.float32) + tl.load(offsets + 2 * (here + point) + 1, mask=inside, other=0.0)
        share = tl.load(weights + here + point, mask=inside, other=0.0)
        left, top = tl.floor(x), tl.floor(y)
        for corner in tl.static_range(4):
            column, row = left + (corner % 2), top + (corner // 2)
            part = (1 - tl.abs(x - column)) * (1 - tl.abs(y - row)) * share
            there = inside & (column >= 0) & (column < width) & (row >= 0) & (row < height)
            cell = (row.to(tl.int32) * width + column.to(tl.int32)) * (heads * channels)
            read = tl.load(maps + cell[:, None] + channel[None, :], mask=there[:, None] & present[None, :], other=0.0)
            total += read.to(tl.float32) * part[:, None]
    out = mixed + ((batch * tokens + token) * heads + head)[:, None] * channels + channel[None, :]
    tl.store(out, total, mask=inside[:, None] & present[None, :])


@triton.jit
def _backward_kernel(
    values, offsets, weights, grad, grad_values, grad_offsets, grad_weights, tokens, height, width,
    heads: tl.constexpr, points: tl.constexpr, channels: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * tile + tl.arange(0, tile)
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    inside = token < tokens
    channel = tl.arange(0, wide)
    present = channel < channels
    start = (batch * tokens * heads + head) * channels
    here = ((batch * tokens + token) * heads + head) * points
    own = ((batch * tokens + token) * heads + head)[:, None] * channels + channel[None, :]
    pull = tl.load(grad + own, mask=inside[:, None] & present[None, :], other=0.0).to(tl.float32)  # (tile, wide)
    for point in range(points):
        x = (token % width).to(tl.float32) + tl.load(offsets + 2 * (here + point), mask=inside, other=0.0)
        y = (token // width).to(tl.float32) + tl.load(offsets + 2 * (here + point) + 1, mask=inside, other=0.0)
        share = tl.load(weights + here + point, mask=inside, other=0.0)
        left, top = tl.floor(x), tl.floor(y)
        of_share = tl.zeros((tile,), tl.float32)
        of_x = tl.zeros((tile,), tl.float32)
        of_y = tl.zeros((tile,), tl.float32)
        for corner in tl.static_range(4):
            right, below = corner % 2, corner // 2
            column, row = left + right, top + below
            across, down = 1 - tl.abs(x - column), 1 - tl.abs(y - row)
            there = inside & (column >= 0) & (column < width) & (row >= 0) & (row < height)
            cell = start + ((row.to(tl.int32) * width + column.to(tl.int32)) * (heads * channels))[:, None] + channel[None, :]
            mask = there[:, None] & present[None, :]
            read = tl.load(values + cell, mask=mask, other=0.0).to(tl.float32)
            gain = tl.sum(read * pull, 1)  # (tile,)
            of_share += across * down * gain
            of_x += (2 * right - 1) * down * gain
            of_y += (2 * below - 1) * across * gain
            tl.atomic_add(grad_values + cell, pull * (across * down * share)[:, None], mask=mask, sem="relaxed")
        tl.store(grad_weights + here + point, of_share, mask=inside)
        tl.store(grad_offsets + 2 * (here + point), of_x * share, mask=inside)
        tl.store(grad_offsets + 2 * (here + point) + 1, of_y * share, mask=inside)


def _sizes(values: Tensor, weights: Tensor) -> dict[str, int]:
    channels = values.shape[-1]
    wide = triton.next_power_of_2(channels)
    return {
        "heads": values.shape[2],
        "points": weights.shape[-1],
        "channels": channels,
        "wide": wide,
        "tile": max(1, min(_TOKENS, _NUMBERS // wide)),
    }


@torch.library.custom_op("cyctr::mix_points", mutates_args=())
def mix_points(values: Tensor, offsets: Tensor, weights: Tensor, height: int, width: int) -> Tensor:
    """For each token and head, the sum over points of weight times the map at the token's place plus the offset.

    Bilinear between cells, zero outside.

    Args:
        values: (B, hw, heads, C), the map.
        offsets: (B, hw, heads, P, 2) float32 as (x, y) in cells.
        weights: (B, hw, heads, P) float32.
        height: h.
        width: w.

    Returns:
        (B, hw, heads, C) of the values' type.
    """
    batch, tokens, heads, _ = values.shape
    values, offsets, weights = values.contiguous(), offsets.contiguous(), weights.contiguous()
    mixed = torch.empty_like(values)
    sizes = _sizes(values, weights)
    grid = (triton.cdiv(tokens, sizes["tile"]), heads, batch)
    with torch.cuda.device_of(values):
        _forward_kernel[grid](values, offsets, weights, mixed, tokens, height, width, **sizes)
    return mixed


@mix_points.register_fake
def _(values: Tensor, offsets: Tensor, weights: Tensor, height: int, width: int) -> Tensor:
    return values.new_empty(values.shape)


@torch.library.custom_op("cyctr::mix_points_backward", mutates_args=())
def _backward(
    grad: Tensor, values: Tensor, offsets: Tensor, weights: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, heads, _ = values.shape
    values, offsets, weights, grad = (part.contiguous() for part in (values, offsets, weights, grad))
    grad_values = torch.zeros(values.shape, dtype=torch.float32, device=values.device)
    grad_offsets, grad_weights = torch.empty_like(offsets), torch.empty_like(weights)
    sizes = _sizes(values, weights)
    grid = (triton.cdiv(tokens, sizes["tile"]), heads, batch)
    with torch.cuda.device_of(values):
        _backward_kernel[grid](
            values, offsets, weights, grad, grad_values, grad_offsets, grad_weights, tokens, height, width, **sizes
        )
    return grad_values.to(values.dtype), grad_offsets, grad_weights


@_backward.register_fake
def _(grad: Tensor, values: Tensor, offsets: Tensor, weights: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    return values.new_empty(values.shape), offsets.new_empty(offsets.shape), weights.new_empty(weights.shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.size = inputs[3:]  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors, *ctx.size), None, None  # type: ignore[attr-defined]


mix_points.register_autograd(_differentiate, setup_context=_keep)
