"""Depthwise convolution, one filter for each channel, in channels-last memory: libraries are slow where it is dilated."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIXELS, _CHANNELS = 32, 64


@triton.jit
def _depthwise_kernel(
    images, filters, bias, made, height, width, channels,
    size: tl.constexpr, dilation: tl.constexpr, padding: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    tile_pixels: tl.constexpr, tile_channels: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * tile_pixels + tl.arange(0, tile_pixels)
    channel = tl.program_id(1) * tile_channels + tl.arange(0, tile_channels)
    batch = tl.program_id(2).to(tl.int64)
    inside, present = pixel < rows * columns, channel < channels
    y, x = pixel // columns, pixel % columns
    source = images + batch * height * width * channels
    total = tl.zeros((tile_pixels, tile_channels), tl.float32)
    total += tl.load(bias + channel, mask=present, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(size * size):
        row, column = y - padding + (tap // size) * dilation, x - padding + (tap % size) * dilation
        there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = (row * width + column)[:, None] * channels + channel[None, :]
        read = tl.load(source + place, mask=there[:, None] & present[None, :], other=0.0).to(tl.float32)
        weight = tl.load(filters + tap * channels + channel, mask=present, other=0.0).to(tl.float32)
        total += read * weight[None, :]
    out = made + batch * rows * columns * channels + pixel[:, None] * channels + channel[None, :]
    tl.store(out, total, mask=inside[:, None] & present[None, :])


@torch.library.custom_op("cyctr::depthwise", mutates_args=())
def depthwise(images: Tensor, filters: Tensor, bias: Tensor, dilation: int, padding: int) -> Tensor:
    """A convolution of stride 1 with one square filter for each channel. Gradients reach the images only.

    Args:
        images: (B, C, H, W).
        filters: (size * size, C), row by row.
        bias: (C,).
        dilation: pixels from one tap of the filter to the next.
        padding: zeros added on each side.

    Returns:
        (B, C, H', W') of the images' type, channels last.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    made = _empty(images, filters, dilation, padding)
    batch, channels, rows, columns = made.shape
    size = int(filters.shape[0] ** 0.5)
    grid = (triton.cdiv(rows * columns, _PIXELS), triton.cdiv(channels, _CHANNELS), batch)
    with torch.cuda.device_of(images):
        _depthwise_kernel[grid](
            images, filters, bias, made, images.shape[2], images.shape[3], channels,
            size=size, dilation=dilation, padding=padding, rows=rows, columns=columns,
            tile_pixels=_PIXELS, tile_channels=_CHANNELS,
        )  # fmt: skip
    return made


@depthwise.register_fake
def _(images: Tensor, filters: Tensor, bias: Tensor, dilation: int, padding: int) -> Tensor:
    return _empty(images, filters, dilation, padding)


def _empty(images: Tensor, filters: Tensor, dilation: int, padding: int) -> Tensor:
    lost = dilation * (int(filters.shape[0] ** 0.5) - 1) - 2 * padding
    batch, channels, height, width = images.shape
    made = images.new_empty(batch, height - lost, width - lost, channels)
    return made.permute(0, 3, 1, 2)


def _keep(ctx, inputs, output):
    _, filters, _, ctx.dilation, ctx.padding = inputs
    ctx.save_for_backward(filters)


def _differentiate(ctx, gradient):
    """The same convolution once more, its filters turned by half a turn."""
    (filters,) = ctx.saved_tensors
    reach = ctx.dilation * (int(filters.shape[0] ** 0.5) - 1)
    none = filters.new_zeros(filters.shape[1])
    return depthwise(gradient, filters.flip(0), none, ctx.dilation, reach - ctx.padding), None, None, None, None


depthwise.register_autograd(_differentiate, setup_context=_keep)
