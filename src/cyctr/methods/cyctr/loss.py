"""Logits and labels -> scalars. The Dice loss (Milletari et al., 2016) and the auxiliary support loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cyctr.config import LossConfig
from cyctr.errors import DataError
from cyctr.types import IGNORE, Episode, Prediction


@dataclass(frozen=True, eq=False)
class Losses:
    """What a step minimises, and its parts.

    Attributes:
        total: main + weight * auxiliary.
        main: Dice loss of the query mask.
        auxiliary: Dice loss of the support masks; zero where the network does not predict them.
        each: (B,) what every episode adds to the mean that `total` is.
    """

    total: Tensor
    main: Tensor
    auxiliary: Tensor
    each: Tensor


def dice_loss(logits: Tensor, labels: Tensor, clamp: bool = False) -> Tensor:
    """(B,) 1 - 2 sum(p g) / (sum(p^2) + sum(g^2)) of the foreground.

    Args:
        logits: (B, 2, H, W) background and foreground; p is their softmax.
        labels: (B, H, W) uint8; pixels of 255 do not count.
        clamp: the divisor is kept above 1e-8; else a 1 is added above and below.
    """
    probability = logits.float().softmax(1)[:, 1]  # (B, H, W)
    return _dice(probability * (labels != IGNORE), labels == 1, clamp)


def two_channel_dice_loss(logits: Tensor, labels: Tensor, clamp: bool = False) -> Tensor:
    """(B,) in the release's form: sigmoid Dice of background and foreground, summed; 255 is left out of the targets alone."""
    background, foreground = logits.float().sigmoid().unbind(1)
    return _dice(background, labels == 0, clamp) + _dice(foreground, labels == 1, clamp)


def episode_loss(prediction: Prediction, episode: Episode, config: LossConfig) -> Losses:
    """The losses of a prediction on an episode with known query labels."""
    if episode.query_labels is None:
        raise DataError("the episode has no query_labels; expected (B, H, W) uint8 labels to compute a loss")
    dice = two_channel_dice_loss if config.both_channels else dice_loss
    main = dice(prediction.logits, episode.query_labels, config.clamp)  # (B,)
    auxiliary = torch.zeros_like(main)
    if prediction.auxiliary is not None:
        of_shots = dice(prediction.auxiliary.flatten(0, 1), episode.support_labels.flatten(0, 1), config.clamp)
        auxiliary = of_shots.view(len(main), -1).mean(1)  # (B,)
    each = main + config.auxiliary_weight * auxiliary
    return Losses(each.mean(), main.mean(), auxiliary.mean(), each)


def _dice(probability: Tensor, target: Tensor, clamp: bool) -> Tensor:
    """(B,) Dice loss of (B, H, W) maps. The 1 keeps an empty target defined: its loss is low when little is predicted."""
    probability, goal = probability.flatten(1), target.flatten(1).float()
    overlap = (probability * goal).sum(1)
    size = probability.square().sum(1) + goal.sum(1)
    return 1 - 2 * overlap / size.clamp_min(1e-8) if clamp else 1 - (2 * overlap + 1) / (size + 1)
