"""Pictures of whole episodes: what was given, what the network saw in it, what it answered."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cyctr.backbones.grid import Grid
from cyctr.errors import DataError
from cyctr.types import Episode, Pixels, Prediction
from cyctr.visual.draw import BLUE, GREEN, cycle_map, enlarge, heat, majority_state, overlay, sheet, to_pixels

COLUMNS = ("support and label", "query and truth", "prior map", "cycle consistency", "prediction")
LEGEND = "Cycle consistency, on the support: red = consistent foreground, blue = consistent background, grey = filtered out."


def episode_sheet(
    episode: Episode, prediction: Prediction, title: str, captions: Sequence[str], factor: int = 2
) -> Image.Image:
    """One row per episode, its first shot shown, each pixel as `factor` x `factor`.

    Args:
        episode: with query labels.
        prediction: made with `explain=True` by a network that attends to support tokens.
        title: above the sheet.
        captions: one line below each row.
        factor: how many times larger than life.
    """
    explanation = getattr(prediction.extras, "explanation", None)
    if explanation is None or not explanation.cross or episode.query_labels is None:
        raise DataError("the sheet needs query_labels and a prediction with explain=True of a network with cross-attention")
    rows = [_row(episode, prediction, i, factor) for i in range(len(episode.query_images))]
    return sheet(rows, COLUMNS, captions, title, LEGEND)


def _row(episode: Episode, prediction: Prediction, i: int, factor: int) -> list[Pixels]:
    explanation = prediction.extras.explanation
    assert episode.query_labels is not None
    support, query = (enlarge(to_pixels(image), factor) for image in (episode.support_images[i, 0], episode.query_images[i]))
    grid = Grid(explanation.stride, explanation.alignment, explanation.offset)
    size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
    prior = enlarge(heat(grid.upsample(explanation.prior[i, None, None], size)[0, 0].cpu().numpy()), factor)
    height, width = explanation.support_grid
    first = explanation.index[i] < height * width  # tokens of the first shot
    state = majority_state(explanation.cross[-1].state[i])[first]
    centres = grid.centres(explanation.index[i][first], width).cpu().numpy() * factor + (factor - 1) / 2
    return [
        overlay(support, _enlarged(episode.support_labels[i, 0] == 1, factor)),
        overlay(query, _enlarged(episode.query_labels[i] == 1, factor), BLUE),
        prior,
        cycle_map(support, centres, state, radius=0.33 * grid.stride * factor),
        overlay(query, _enlarged(prediction.mask[i], factor), GREEN),
    ]


def _enlarged(mask: Tensor, factor: int) -> NDArray[np.bool_]:
    return mask.cpu().numpy().repeat(factor, 0).repeat(factor, 1)
