"""Episodes -> a contact sheet, before any network has seen them."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from cyctr.config import TrainingConfig
from cyctr.episodes.image_store import open_store
from cyctr.episodes.sampler import Draw, Sampler
from cyctr.episodes.training_batches import TrainingEpisodes
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import RunKey
from cyctr.types import Pixels
from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, RED, to_pixels

_SIDE = 200


def episode_contact_sheet(
    evaluation: Evaluation, run_key: RunKey, numbers: Sequence[int], augment: bool = False
) -> Image.Image:
    """Each episode's supports with their masks, then its query with the truth.

    Args:
        evaluation: which dataset, split and protocol.
        run_key: fold, shots and seed.
        numbers: which episodes.
        augment: show the images scaled, turned, flipped, blurred and cropped as in training.
    """
    sampler = evaluation.sampler(run_key)
    blocks = []
    for number in numbers:
        draw = sampler(number)
        tiles = _augmented(evaluation, sampler, number) if augment else _plain(evaluation, draw)
        caption = f"{number}: {evaluation.dataset.classes[draw.category]}, query {evaluation.pool.keys[draw.query]}"
        blocks.append(Block(tiles, caption))
    name = evaluation.dataset.name
    title = f"{name}: {evaluation.split} episodes of fold {run_key.fold}, {run_key.shots}-shot, seed {run_key.seed}"
    return contact_sheet(blocks, title, "Red outline: a support and its mask. Blue outline: the query and the truth.")


def _plain(evaluation: Evaluation, draw: Draw) -> list[Pixels]:
    pool = evaluation.pool
    chosen = [*((i, RED) for i in draw.supports), (draw.query, BLUE)]
    return [tile(pool.image(i), pool.label(i, draw.category) == 1, _SIDE, colour) for i, colour in chosen]


def _augmented(evaluation: Evaluation, sampler: Sampler, number: int) -> list[Pixels]:
    device = torch.device("cpu")
    store = open_store(evaluation.pool, evaluation.index, sampler.pairs, device, resident=False, workers=1)
    config = TrainingConfig(batch=1, shots=sampler.shots)
    episode = next(TrainingEpisodes(store, sampler, config, device).steps([number])).episode
    assert episode.query_labels is not None
    shown = [(image, label, RED) for image, label in zip(episode.support_images[0], episode.support_labels[0], strict=True)]
    shown.append((episode.query_images[0], episode.query_labels[0], BLUE))
    return [tile(to_pixels(image), np.asarray(label == 1), _SIDE, colour) for image, label, colour in shown]
