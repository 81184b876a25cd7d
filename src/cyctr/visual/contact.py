"""Contact sheets: many labelled images on one page, for a person to look through."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from cyctr.types import Pixels
from cyctr.visual.draw import INK, PAPER, RED, overlay

_MUTED = (90, 96, 104)
_MARGIN, _GAP, _LINE = 24, 8, 20


@dataclass(frozen=True, eq=False)
class Block:
    """Pictures that belong together, and a line below them."""

    tiles: Sequence[Pixels]
    caption: str


def tile(image: Pixels, mask: NDArray[np.bool_] | None, side: int = 200, colour: tuple[int, int, int] = RED) -> Pixels:
    """(side, side, 3): the image as large as fits, centred on white, what the mask marks in full colour.

    Args:
        image: (H, W, 3).
        mask: (H, W), or None to show the image as it is.
        side: of the square.
        colour: of the mask's outline.
    """
    picture = fitted(image, side)
    size = (picture.shape[1], picture.shape[0])
    if mask is not None:
        small = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        picture = overlay(picture, small, colour)
    page = Image.new("RGB", (side, side), PAPER)
    page.paste(Image.fromarray(picture), ((side - size[0]) // 2, (side - size[1]) // 2))
    return np.asarray(page)


def fitted(image: Pixels, side: int) -> Pixels:
    """The image with its longer side of `side` pixels."""
    height, width = image.shape[:2]
    ratio = side / max(height, width)
    size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def contact_sheet(blocks: Sequence[Block], title: str, footer: str, across: int = 6) -> Image.Image:
    """Blocks from left to right, then down, about `across` tiles in a row."""
    side, tiles = blocks[0].tiles[0].shape[0], max(len(block.tiles) for block in blocks)
    per_row = max(1, min(len(blocks), across // tiles))
    width = tiles * side + (tiles - 1) * _GAP
    rows = -(-len(blocks) // per_row)
    heading, text = ImageFont.load_default(22), ImageFont.load_default(13)
    lines = round(max(heading.getlength(title), text.getlength(footer)))
    page_width = 2 * _MARGIN + max(per_row * width + (per_row - 1) * 3 * _GAP, lines)
    top = _MARGIN + 40
    page = Image.new("RGB", (page_width, top + rows * (side + _LINE + 2 * _GAP) + _LINE + _MARGIN), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((_MARGIN, _MARGIN - 4), title, INK, heading)
    for place, block in enumerate(blocks):
        row, column = divmod(place, per_row)
        x, y = _MARGIN + column * (width + 3 * _GAP), top + row * (side + _LINE + 2 * _GAP)
        for j, cell in enumerate(block.tiles):
            page.paste(Image.fromarray(cell), (x + j * (side + _GAP), y))
        draw.text((x, y + side + 3), _shortened(block.caption, text, width), _MUTED, text)
    draw.text((_MARGIN, page.height - _MARGIN - 4), footer, _MUTED, text)
    return page


def _shortened(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    while len(line) > 1 and font.getlength(line) > width:
        line = line[:-2] + "…"
    return line
