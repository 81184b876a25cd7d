"""A click -> a mask, without weights of its own: features of the clicked place, colours, and the edges of the photo.

The backbone's features say which cells belong together, in two looks: at the whole photo, then closer. Colours sharpen that,
and a guided filter lets it follow edges.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.images.edges import edge_maps
from cyctr.images.geometry import content_size, fit_image, padding_of
from cyctr.inference.predictor import Predictor
from cyctr.inference.tiles import Window, strips
from cyctr.inference.views import View
from cyctr.studio.refusals import RefusedError
from cyctr.types import Pixels

Bools = NDArray[np.bool_]
Point = tuple[float, float]
Corners = tuple[float, float, float, float]

_HIGH = 0.3  # weight of high features beside the middle ones
_SHARPNESS, _REACH = 8.0, 4.0  # of steps: how much likeness counts, and how many cells they go
_RIM, _CLICK, _GUESS = 0.5, 10.0, 0.5  # how strongly the rim, a click and the middle of a box hold, in degrees of a cell
_STEEPNESS = 1.5  # log odds where a cell is as clear as cells are on average
_COLOUR = 0.6  # weight of colours beside features
_BINS = 12  # of each colour
_CLOSER = 0.75  # side of a window that is worth a second look, in that of the photo
_MARGIN = 0.35  # of what was found, around it


class Clicked(NamedTuple):
    """A mask that was made of clicks.

    Attributes:
        mask: (H, W).
        agreement: 0 to 1, how clearly the mask stands out.
    """

    mask: Bools
    agreement: float


def propose(
    network: Predictor, pixels: Pixels, points: Sequence[Point], outside: Sequence[Point], box: Corners | None
) -> Clicked:
    """The mask of what was clicked.

    Args:
        network: whose backbone is used.
        pixels: (H, W, 3).
        points: (x, y) on the thing.
        outside: (x, y) beside it.
        box: left, top, right, bottom around it.
    """
    size = (pixels.shape[0], pixels.shape[1])
    if not points and box is None:
        raise RefusedError("there is no click on the thing; click on it, or draw a box around it")
    for x, y in [*points, *outside]:
        if not (0 <= x < size[1] and 0 <= y < size[0]):
            raise RefusedError(f"the place is {x:g},{y:g}; expected x below {size[1]} and y below {size[0]}")
    if box is not None and not (0 <= box[0] < box[2] <= size[1] and 0 <= box[1] < box[3] <= size[0]):
        raise RefusedError(f"the box is {box}; expected left, top, right, bottom inside {size[1]} x {size[0]}")
    window = Window(0, 0, *size) if box is None else _grown(box, size)
    probability = _look(network, pixels, window, points, outside, box)
    mask = _chosen(probability > 0.5, window, points, outside)
    near = _around(mask, window, size, points)
    if near is not None:
        second = _look(network, pixels, near, points, outside, box)
        closer = _chosen(second > 0.5, near, points, outside)
        if closer.any():
            window, probability, mask = near, second, closer
    whole = np.zeros(size, np.bool_)
    whole[window.slices] = mask
    clear = np.abs(probability[mask] - 0.5).mean() * 2 if mask.any() else 0.0
    return Clicked(whole, round(float(clear), 3))


@torch.inference_mode()
def _look(
    network: Predictor,
    pixels: Pixels,
    window: Window,
    points: Sequence[Point],
    outside: Sequence[Point],
    box: Corners | None,
) -> NDArray[np.float32]:
    """(h, w) probability of being clicked, in a window."""
    config = InputConfig(network.input.size)
    view = View(window, 1.0, False)
    shown = view.pixels(pixels, network.device)
    fitted = fit_image(shown, config)
    height, width = content_size(view.size, config)
    features = _features(network, fitted)  # (C, h, w)
    rows, columns = features.shape[1:]
    cells = (max(2, -(-height * rows // config.size)), max(2, -(-width * columns // config.size)))
    features = features[:, : cells[0], : cells[1]]
    inside = _cells(points, window, cells)
    beside = _cells(outside, window, cells)
    allowed = _allowed(box, window, cells)
    odds = _odds(features, inside, beside, allowed)  # (h, w)
    large = F.interpolate(odds[None, None], (height, width), mode="bilinear", align_corners=False)[0, 0]
    content = fitted[:, :height, :width]
    large = large + _COLOUR * _colour_odds(content, large)
    answer = torch.zeros(config.size, config.size, device=large.device)
    answer[:height, :width] = large.sigmoid()
    padding = padding_of([view.size], config, network.device)
    maps = edge_maps(fitted[None], answer[None, None], ~padding)[0, 0]
    parts = [view.followed(maps, shown, config, part) for part in strips(window)]
    found = torch.cat(parts).float().cpu().numpy()
    if box is not None:
        left, top, right, bottom = (round(side) for side in box)
        keep = np.zeros(found.shape, np.bool_)
        keep[max(0, top - window.top) : bottom - window.top, max(0, left - window.left) : right - window.left] = True
        found[~keep] = 0
    return found


def _features(network: Predictor, fitted: Tensor) -> Tensor:
    """(C, h, w) features of length 1, without what all of the photo has; of every other cell."""
    with network.precision():
        *middle, high = network.features(fitted[None].to(network.device)).maps
    middle = [maps for maps in middle if maps.shape[-2:] == high.shape[-2:]]  # others have strides of their own
    parts = []
    for maps, weight in ((torch.cat(middle, 1) if middle else high, 1.0), (high, _HIGH)):
        small = F.normalize(F.avg_pool2d(maps.float(), 2, ceil_mode=True)[0], dim=0)
        parts.append(weight * F.normalize(small - small.flatten(1).mean(1)[:, None, None], dim=0))
    return F.normalize(torch.cat(parts), dim=0)


def _odds(features: Tensor, inside: Sequence[tuple[int, int]], beside: Sequence[tuple[int, int]], allowed: Bools) -> Tensor:
    """(h, w) log odds of each cell to belong to the clicked ones, by a random walk between cells that look alike.

    A walk begins at a cell and steps to near cells, the more alike the likelier. The chance that it meets a click on the
    thing before one beside it, or the rim of what is looked at, is high all over the thing, whatever its parts look like.
    """
    _, height, width = features.shape
    flat = features.flatten(1)  # (C, hw)
    likeness = flat.T @ flat  # (hw, hw)
    rows, columns = torch.meshgrid(*(torch.arange(side, device=flat.device) for side in (height, width)), indexing="ij")
    places = torch.stack([rows, columns], -1).view(-1, 2).float()
    steps = (_SHARPNESS * (likeness - 1)).exp() * (-((torch.cdist(places, places) / _REACH) ** 2)).exp()
    steps.fill_diagonal_(0)
    degree = steps.sum(1)
    usual = degree.mean()
    rim = ((places == 0) | (places == places.new_tensor([height - 1, width - 1]))).any(1)
    clicked = [row * width + column for row, column in inside]
    seeds = clicked or _middle(allowed, width)
    outside = [row * width + column for row, column in beside]
    pull = usual * _RIM * rim * (1 - likeness[seeds].amax(0).clamp_min(0)) ** 2
    pull[~torch.from_numpy(allowed).to(flat.device).flatten()] = _CLICK * usual
    pull[outside] = _CLICK * usual
    value = torch.zeros_like(pull)
    value[seeds] = _CLICK * usual if clicked else _GUESS * usual
    chance: Tensor = torch.linalg.solve(torch.diag(degree + pull + value) - steps, value)
    level = _divide(chance)
    spread = (chance - level).abs().mean().clamp_min(1e-6)
    return (_STEEPNESS * (chance - level) / spread).clamp(-6, 6).view(height, width)


def _divide(values: Tensor) -> Tensor:
    """The level that divides values in two groups that are each as alike as can be (Otsu)."""
    ordered = values.sort().values
    count = len(ordered)
    if count < 2:
        return ordered[0]
    below = torch.arange(1, count, device=values.device)
    total = ordered.cumsum(0)
    apart = total[:-1] / below - (total[-1] - total[:-1]) / (count - below)
    place = (below * (count - below) * apart**2).argmax()
    return (ordered[place] + ordered[place + 1]) / 2


def _colour_odds(content: Tensor, odds: Tensor) -> Tensor:
    """(h, w) log odds of the colour of each pixel, by how often it is inside and outside of what resembles the click."""
    bins = (content.long() * _BINS) // 256  # (3, h, w)
    index = (bins[0] * _BINS + bins[1]) * _BINS + bins[2]
    weight = odds.sigmoid()
    cube = []
    for share in (weight, 1 - weight):
        counts = torch.zeros(_BINS**3, device=odds.device).index_add_(0, index.flatten(), share.flatten())
        smooth = F.avg_pool3d(counts.view(1, 1, _BINS, _BINS, _BINS), 3, 1, 1).flatten()
        cube.append((smooth + 1e-3) / (smooth.sum() + 1))
    return (cube[0] / cube[1]).log().clamp(-4, 4)[index]


def _cells(points: Sequence[Point], window: Window, cells: tuple[int, int]) -> list[tuple[int, int]]:
    """The cells (row, column) of points that lie in a window."""
    found = []
    for x, y in points:
        row, column = (y - window.top) / window.height * cells[0], (x - window.left) / window.width * cells[1]
        if 0 <= row < cells[0] and 0 <= column < cells[1]:
            found.append((int(row), int(column)))
    return found


def _allowed(box: Corners | None, window: Window, cells: tuple[int, int]) -> Bools:
    """(h, w) the cells that a box holds."""
    allowed = np.ones(cells, np.bool_)
    if box is not None:
        rows = (np.arange(cells[0]) + 0.5) / cells[0] * window.height + window.top
        columns = (np.arange(cells[1]) + 0.5) / cells[1] * window.width + window.left
        allowed &= ((rows >= box[1]) & (rows < box[3]))[:, None] & ((columns >= box[0]) & (columns < box[2]))
        if not allowed.any():
            allowed[:] = True
    return allowed


def _middle(allowed: Bools, width: int) -> list[int]:
    """The cells in the middle of those that are allowed: what a box is drawn around is there."""
    rows, columns = np.nonzero(allowed)
    spans = (rows.max() - rows.min() + 1) / 6, (columns.max() - columns.min() + 1) / 6
    near = (np.abs(rows - rows.mean()) <= spans[0]) & (np.abs(columns - columns.mean()) <= spans[1])
    return [int(place) for place in (rows * width + columns)[near]]


def _chosen(mask: Bools, window: Window, points: Sequence[Point], outside: Sequence[Point]) -> Bools:
    """The parts of a mask that were clicked, without holes; all of it where only a box was drawn."""
    filled: Bools = ndimage.binary_fill_holes(mask)
    for x, y in outside:  # a hole that was clicked as not of it stays
        row, column = int(y) - window.top, int(x) - window.left
        if 0 <= row < mask.shape[0] and 0 <= column < mask.shape[1] and not mask[row, column]:
            numbers, _ = ndimage.label(~mask)
            filled &= numbers != numbers[row, column]
    numbers, count = ndimage.label(filled, np.ones((3, 3)))
    wanted = set()
    for x, y in points:
        row, column = int(y) - window.top, int(x) - window.left
        if 0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]:
            near = numbers[max(0, row - 4) : row + 5, max(0, column - 4) : column + 5]
            wanted |= set(np.unique(near[near > 0]).tolist())
    if not wanted and count:
        wanted = {1 + int(np.bincount(numbers.ravel())[1:].argmax())}
    chosen: Bools = np.isin(numbers, sorted(wanted))
    return chosen


def _around(mask: Bools, window: Window, size: tuple[int, int], points: Sequence[Point]) -> Window | None:
    """A window around what was found and clicked; none where it is hardly smaller than the photo."""
    rows, columns = (np.flatnonzero(mask.any(axis=1 - axis)) for axis in (0, 1))
    if not len(rows):
        return None
    xs, ys = [window.left + columns[0], window.left + columns[-1] + 1], [window.top + rows[0], window.top + rows[-1] + 1]
    xs += [x for x, _ in points]
    ys += [y for _, y in points]
    near = _grown((float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))), size)
    return near if max(near.height, near.width) < _CLOSER * max(window.height, window.width) else None


def _grown(box: Corners, size: tuple[int, int]) -> Window:
    """A square window around a box, with a margin, inside the photo."""
    side = max(64.0, max(box[2] - box[0], box[3] - box[1]) * (1 + 2 * _MARGIN))
    middle = (box[1] + box[3]) / 2, (box[0] + box[2]) / 2
    lengths = [min(round(side), whole) for whole in size]
    starts = [
        min(max(0, round(centre - length / 2)), whole - length)
        for centre, length, whole in zip(middle, lengths, size, strict=True)
    ]
    return Window(starts[0], starts[1], lengths[0], lengths[1])
