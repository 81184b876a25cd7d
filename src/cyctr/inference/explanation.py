"""Why a pixel was marked: the prior map, the cycle through the query and back, what a place of the query looks at."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from cyctr.backbones.grid import Grid
from cyctr.errors import ConfigError, DataError
from cyctr.images.edges import follow_edges
from cyctr.images.geometry import content_size, fit_image, padding_of, planes
from cyctr.images.imaging import write_image
from cyctr.inference.inputs import ImageLike, to_image
from cyctr.inference.matching import WEIGHT
from cyctr.inference.segment_options import SegmentOptions
from cyctr.inference.segmenter import Segmenter
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.methods.base import ExplainsItself, Explanation, TokenState
from cyctr.storage import write_atomically
from cyctr.types import Pixels, Prediction
from cyctr.visual.contact import Block
from cyctr.visual.draw import GREEN, INK, MUTED, PAPER, RED, cycle_map, heat, majority_state, overlay, to_pixels
from cyctr.visual.page import Section, page

_LEGEND = (
    "Red: foreground whose match in the query leads back to foreground; blue: background likewise; grey: lost. "
    "Cycle and attention are the network's; votes have no part in them."
)
_MOST = 5  # shots that are shown
_LINE, _GAP, _MARGIN = 26, 14, 28
_TITLE, _CAPTION = 17, 14  # sizes of letters


@dataclass(frozen=True, eq=False)
class Picture:
    """One panel.

    Attributes:
        title: above it.
        caption: what it shows, in a line.
        pixels: (H, W, 3).
    """

    title: str
    caption: str
    pixels: Pixels


@dataclass(frozen=True, eq=False)
class Explained:
    """Panels that show how an answer came about.

    Attributes:
        title: above all.
        lines: for the answer, then for each shot, the panels from left to right.
        consistent: shares of the support's foreground and background tokens that survive the cycle, mean over heads.
    """

    title: str
    lines: tuple[tuple[Picture, ...], ...]
    consistent: tuple[float, float]

    def sheet(self) -> Image.Image:
        """All panels on one picture, each under its title and above a line that says what it shows."""
        side = max(_width(cell) for line in self.lines for cell in line)
        rows = [np.concatenate(_side_by_side([_labelled(cell, side) for cell in line]), 1) for line in self.lines]
        width, height = max(row.shape[1] for row in rows), sum(row.shape[0] + _GAP for row in rows)
        canvas = Image.new("RGB", (max(width, 900) + 2 * _MARGIN, height + 2 * _MARGIN + 70), PAPER)
        draw = ImageDraw.Draw(canvas)
        draw.text((_MARGIN, _MARGIN - 6), self.title, INK, ImageFont.load_default(24))
        top = _MARGIN + 40
        for row in rows:
            canvas.paste(Image.fromarray(row), (_MARGIN, top))
            top += row.shape[0] + _GAP
        draw.text((_MARGIN, top), _LEGEND, MUTED, ImageFont.load_default(15))
        return canvas

    def save(self, path: str | Path) -> None:
        """Writes the panels as a PNG or JPEG, or as a page where the name ends in .html; what is there is replaced."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            return write_image(path, np.asarray(self.sheet()))
        sections = [
            Section(line[0].title, "", [Block((cell.pixels,), f"{cell.title}: {cell.caption}") for cell in line])
            for line in self.lines
        ]
        try:
            write_atomically(path, page(self.title, _LEGEND, (), sections).encode())
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
        return None


@torch.inference_mode()
def explain(
    segmenter: Segmenter,
    image: ImageLike,
    support: EncodedSupport,
    at: tuple[int, int] | None = None,
    votes: float | None = None,
    edges: bool = True,
) -> Explained:
    """How the answer of `Segmenter.segment` for an image came about: what the network says, and what plain matching does.

    Args:
        segmenter: of the support.
        image: the query.
        support: of at most five images.
        at: (x, y) of the place whose attention is shown, in pixels of the image; by default where the class is likeliest.
        votes: weight of plain matching, as of `segment`.
        edges: whether the answer follows the edges of the image, as of `segment`.
    """
    SegmentOptions(votes=votes, edges=edges)  # checked
    pixels = to_image(image)
    size, network = (pixels.shape[0], pixels.shape[1]), segmenter.network
    _check(segmenter, support, at, size)
    config = network.input
    fitted, ready = fit_image(planes(pixels), config), support.to(network.device)
    with network.precision():
        padding = padding_of([size], config, network.device)
        query = network.prepared(fitted[None].to(network.device))
        prediction, _ = network.predicted(query, ready, padding, explain=True)
    explanation = _explanation(segmenter, prediction)
    height, width = content_size(size, config)
    seen = to_pixels(fitted)[:height, :width]
    said = network.blended(prediction, ready, votes).float()
    if edges:
        inside = torch.zeros_like(said, dtype=torch.bool)
        inside[:, :height, :width] = True
        said = follow_edges(fitted[None].to(said.device), said, inside)
    learned, blended, matched = (
        None if values is None else values[0, :height, :width].float().cpu().numpy()
        for values in (prediction.probability, said, network.matched(prediction, ready))
    )
    assert learned is not None and blended is not None
    grid = network.model.backbone.grid
    if at is None:
        row, column = divmod(int(blended.argmax()), width)
    else:
        row, column = int(at[1] * height / size[0]), int(at[0] * width / size[1])
    prior = grid.upsample(explanation.prior[:, None].float(), (config.size, config.size))[0, 0, :height, :width].cpu().numpy()
    weight = 0.0 if matched is None else WEIGHT if votes is None else votes
    mask = blended > 0.5
    answer = [
        Picture("query", "the place whose attention is shown is marked", _pointed(seen, row, column)),
        Picture("answer", f"{100 * mask.mean():.1f} % of the image", overlay(seen, mask, GREEN)),
        Picture("network", f"probability by the network; {_share(1 - weight)}", heat(learned)),
        *([] if matched is None else [Picture("votes", f"by plain matching; {_share(weight)}", heat(matched))]),
        Picture("prior map", "likeness to the support before any learning", heat(prior)),
    ]
    lines = [tuple(answer), *(_of_shot(support, shot, explanation, grid, (row, column)) for shot in range(support.shots))]
    foreground, background = consistent = _consistent(explanation)
    title = f"{support.name}: {100 * foreground:.0f} % of the foreground, {100 * background:.0f} % of the background return"
    return Explained(title, tuple(lines), consistent)


def _check(segmenter: Segmenter, support: EncodedSupport, at: tuple[int, int] | None, size: tuple[int, int]) -> None:
    """Raises for what cannot be explained, and warns where `segment` with tiles would answer otherwise."""
    segmenter.check_support(support)
    method = segmenter.network.model
    if not isinstance(method, ExplainsItself):
        raise ConfigError(
            f"{segmenter.name} is of {type(method).__name__}, which does not explain itself; "
            "choose a network that does, such as lite0"
        )
    if support.tile is not None:
        cut = f"support {support.name!r} was cut in windows of {support.tile} pixels"
        warnings.warn(f"{cut}, and the whole image is explained: the answer with tiles may differ", stacklevel=3)
    if support.shots > _MOST:
        raise ConfigError(f"the support has {support.shots} images; expected at most {_MOST} to explain: give fewer")
    if at is not None and not (0 <= at[0] < size[1] and 0 <= at[1] < size[0]):
        raise ConfigError(f"the place is {at[0]},{at[1]}; expected x below {size[1]} and y below {size[0]}")


def _explanation(segmenter: Segmenter, prediction: Prediction) -> Explanation:
    """The method's own account of its prediction."""
    method = segmenter.network.model
    explanation = method.explanation(prediction) if isinstance(method, ExplainsItself) else None
    if explanation is None or explanation.state is None:
        raise ConfigError("this network attends to no support tokens; expected encoder.cross 'cycle' or 'vanilla'")
    return explanation


def _consistent(explanation: Explanation) -> tuple[float, float]:
    """The shares of foreground and of background tokens that return to their own class."""
    assert explanation.state is not None
    state, used, is_foreground = explanation.state[0], explanation.valid[0], explanation.is_foreground[0]
    shares = [
        float((state == kept)[:, used & mine].float().mean()) if bool((used & mine).any()) else 0.0
        for kept, mine in (
            (TokenState.CONSISTENT_FOREGROUND, is_foreground),
            (TokenState.CONSISTENT_BACKGROUND, ~is_foreground),
        )
    ]
    return shares[0], shares[1]


def _share(weight: float) -> str:
    return f"{100 * weight:.0f} % of the answer"


def _of_shot(
    support: EncodedSupport, shot: int, explanation: Explanation, grid: Grid, place: tuple[int, int]
) -> tuple[Picture, ...]:
    """What became of one support image."""
    label = support.labels[shot]
    inside = (label != 255).nonzero()
    height, width = (int(inside[:, axis].max()) + 1 for axis in (0, 1))
    image = to_pixels(support.images[shot])[:height, :width]
    rows, columns = explanation.support_grid
    cells = rows * columns
    own = (explanation.index[0] // cells == shot) & explanation.valid[0]
    centres = grid.centres(explanation.index[0][own] % cells, columns).cpu().numpy()
    radius = 0.36 * grid.stride
    cell = _cell(grid, place, (explanation.prior.shape[-2], explanation.prior.shape[-1]))
    weight = explanation.attention(*cell).mean(1)[0]  # (N,) mean over heads
    shown = (weight / weight.max().clamp_min(1e-12))[own].sqrt().float().cpu().numpy()
    assert explanation.state is not None
    state = majority_state(explanation.state[0])[own]
    goes = f"{100 * float(weight[own].sum()):.0f} % of it goes to this image"
    return (
        Picture(f"support {shot + 1}", "what was marked", overlay(image, (label == 1).numpy()[:height, :width], RED)),
        Picture("cycle consistency", "tokens sampled from it", cycle_map(image, centres, state.cpu(), radius)),
        Picture("attention of the marked place", goes, _dots(image, centres, shown, radius)),
    )


def _cell(grid: Grid, place: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """The cell nearest to a (row, column) in pixels."""
    shift = grid.offset + (0 if grid.alignment == "corner" else (grid.stride - 1) / 2)
    row, column = (round((where - shift) / grid.stride) for where in place)
    return min(max(0, row), size[0] - 1), min(max(0, column), size[1] - 1)


def _pointed(image: Pixels, row: int, column: int) -> Pixels:
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    for radius, colour, width in ((12, "white", 5), (12, GREEN, 3)):
        draw.ellipse((column - radius, row - radius, column + radius, row + radius), outline=colour, width=width)
    return np.asarray(canvas)


def _dots(image: Pixels, centres: NDArray[np.floating], values: NDArray[np.floating], radius: float) -> Pixels:
    """An image with a dot for each token, the brighter the more it is looked at."""
    canvas = Image.fromarray((image * 0.45).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    colours = heat(values[None])[0]
    for place in np.argsort(values):
        (x, y), colour = centres[place], tuple(int(v) for v in colours[place])
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    return np.asarray(canvas)


def _width(cell: Picture) -> int:
    """Of a panel, or of its words where they are wider."""
    words = ImageFont.load_default(_TITLE).getlength(cell.title), ImageFont.load_default(_CAPTION).getlength(cell.caption)
    return max(cell.pixels.shape[1], *map(math.ceil, words))


def _labelled(cell: Picture, side: int) -> Pixels:
    """A panel with its words, as wide as all others."""
    height = cell.pixels.shape[0]
    canvas = Image.new("RGB", (side, height + 2 * _LINE), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((0, 2), cell.title, INK, ImageFont.load_default(_TITLE))
    canvas.paste(Image.fromarray(cell.pixels), (0, _LINE))
    draw.text((0, height + _LINE + 4), cell.caption, MUTED, ImageFont.load_default(_CAPTION))
    return np.asarray(canvas)


def _side_by_side(cells: Sequence[Pixels]) -> list[Pixels]:
    """Panels filled to one height, with white between them."""
    height = max(cell.shape[0] for cell in cells)
    return [np.pad(cell, ((0, height - cell.shape[0]), (0, _GAP), (0, 0)), constant_values=255) for cell in cells]
