"""Pictures of one image: overlays, heat maps, cycle maps. Arrays are (H, W, 3) uint8 RGB."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from cyctr.methods.base import TokenState
from cyctr.types import Pixels

Colour = tuple[int, int, int]

RED, BLUE, GREEN, GREY = (230, 57, 53), (33, 113, 214), (20, 160, 90), (98, 103, 110)
COLOURS = (RED, BLUE, GREEN, (245, 160, 0), (142, 68, 173), (0, 172, 193), (216, 27, 96), (124, 100, 60))
"""For classes, in this order, then again."""
INK, MUTED, PAPER = (32, 36, 42), (90, 96, 104), (255, 255, 255)

_STRIP = 2**20  # pixels that are made pale at a time: of a whole photograph the numbers in between would fill the memory
_HEAT = np.array([(13, 8, 60), (126, 3, 168), (204, 71, 120), (248, 149, 64), (240, 249, 33)], float)  # dark to bright
_TOKEN_COLOURS = {
    TokenState.INCONSISTENT: GREY,
    TokenState.CONSISTENT_BACKGROUND: BLUE,
    TokenState.CONSISTENT_FOREGROUND: RED,
}


def to_pixels(image: Tensor) -> Pixels:
    """(H, W, 3) uint8 of a (3, H, W) image, uint8 or float in [0, 1]."""
    if image.is_floating_point():
        image = (image.detach().float().clamp(0, 1) * 255).round().byte()
    return np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())


def enlarge(image: Pixels, factor: int) -> Pixels:
    """Every pixel as a square of `factor` pixels."""
    return image.repeat(factor, 0).repeat(factor, 1)


def overlay(image: Pixels, mask: NDArray[np.bool_], colour: Colour = RED) -> Pixels:
    """The image with what a mask marks in full colour, framed, and the rest pale."""
    return overlays(image, [mask], [colour])


def overlays(image: Pixels, masks: Sequence[NDArray[np.bool_]], colours: Sequence[Colour]) -> Pixels:
    """The image with what masks mark in full colour, each framed in a colour of its own, and the rest pale."""
    marked = np.zeros(image.shape[:2], bool)
    for mask in masks:
        marked |= mask
    out = np.empty(image.shape, np.uint8)
    rows = max(1, _STRIP // image.shape[1])
    for part in (slice(top, top + rows) for top in range(0, len(image), rows)):
        pale = image[part].astype(np.uint16)
        grey = pale[..., :1] + pale[..., 1:2] + pale[..., 2:]
        pale *= 9
        pale += 4 * grey
        pale //= 60  # 0.15 of the colour and 0.2 of its mean
        pale += 160
        out[part] = np.where(marked[part][..., None], image[part], pale)
    width = max(2, round(min(marked.shape) / 100))
    for place, mask in enumerate(masks):
        np.copyto(out, np.array(colours[place % len(colours)], np.uint8), where=outline(mask, width)[..., None])
    return out


def outline(mask: NDArray[np.bool_], width: int = 1) -> NDArray[np.bool_]:
    """The pixels of a mask within `width` steps of its outside; the image's border is not outside."""
    inner = mask.copy()
    for _ in range(width):
        padded = np.pad(inner, 1, mode="edge")
        for neighbour in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
            inner &= neighbour
    return mask > inner


def heat(values: NDArray[np.floating]) -> Pixels:
    """A (H, W) map in [0, 1] as colours from dark to bright."""
    level = np.clip(values, 0, 1) * (len(_HEAT) - 1)
    low = np.minimum(level.astype(int), len(_HEAT) - 2)
    return (_HEAT[low] + (_HEAT[low + 1] - _HEAT[low]) * (level - low)[..., None]).astype(np.uint8)


def cycle_map(image: Pixels, centres: NDArray[np.floating], state: Tensor, radius: float) -> Pixels:
    """A support image with its sampled tokens: red and blue for consistent foreground and background, grey for the rest.

    Args:
        image: the support image.
        centres: (N, 2) the (x, y) of each token, in pixels of the image.
        state: (N,) uint8 of `TokenState`.
        radius: of a token's dot, in pixels.
    """
    canvas = Image.fromarray((image * 0.45 + 140).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    for (x, y), kind in zip(centres.tolist(), state.tolist(), strict=True):
        if kind != TokenState.UNUSED:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_TOKEN_COLOURS[TokenState(kind)])
    return np.asarray(canvas)


def majority_state(state: Tensor) -> Tensor:
    """(N,) what most heads say of each token, from (heads, N)."""
    return state.mode(0).values


def sheet(
    rows: Sequence[Sequence[Pixels]], columns: Sequence[str], captions: Sequence[str], title: str, footer: str
) -> Image.Image:
    """A contact sheet: pictures under column titles, a caption below each row."""
    height = max(cell.shape[0] for row in rows for cell in row)
    width = max(cell.shape[1] for row in rows for cell in row)
    gap, margin = 12, 28
    title_font, head_font, text_font = (ImageFont.load_default(size) for size in (24, 16, 14))
    top, line, foot = margin + 34, 24, 30
    total_width = 2 * margin + len(columns) * width + (len(columns) - 1) * gap
    total_height = top + line + len(rows) * (height + line + gap) + foot
    page = Image.new("RGB", (total_width, total_height), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((margin, margin - 8), title, INK, title_font)
    for j, name in enumerate(columns):
        draw.text((margin + j * (width + gap), top), name, INK, head_font)
    for i, (row, caption) in enumerate(zip(rows, captions, strict=True)):
        y = top + line + i * (height + line + gap)
        for j, cell in enumerate(row):
            page.paste(Image.fromarray(cell), (margin + j * (width + gap), y))
        draw.text((margin, y + height + 4), caption, (90, 96, 104), text_font)
    draw.text((margin, total_height - foot), footer, (90, 96, 104), text_font)
    return page
