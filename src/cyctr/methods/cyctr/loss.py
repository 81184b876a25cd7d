"""Logits and labels -> scalars: the Dice loss (Milletari et al., 2016), in the paper's form and in the release's."""

import torch
from torch import Tensor

from cyctr.methods.base import Losses, known_labels
from cyctr.methods.cyctr.config import LossConfig
from cyctr.types import IGNORE, Episode


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


def episode_loss(logits: Tensor, auxiliary: Tensor | None, episode: Episode, config: LossConfig) -> Losses:
    """The losses of an answer to an episode with known query labels.

    Args:
        logits: (B, 2, H', W') of the queries.
        auxiliary: (B, K, 2, H, W) of the support masks, where they are predicted.
        episode: with the truth of both.
        config: which form, and the weight of the second.
    """
    dice = two_channel_dice_loss if config.both_channels else dice_loss
    main = dice(logits, known_labels(episode), config.clamp)  # (B,)
    of_supports = torch.zeros_like(main)
    if auxiliary is not None:
        of_shots = dice(auxiliary.flatten(0, 1), episode.support_labels.flatten(0, 1), config.clamp)
        of_supports = of_shots.view(len(main), -1).mean(1)  # (B,)
    each = main + config.auxiliary_weight * of_supports
    return Losses(each, {"main": main.mean(), "auxiliary": of_supports.mean()})


def _dice(probability: Tensor, target: Tensor, clamp: bool) -> Tensor:
    """(B,) Dice loss of (B, H, W) maps. The 1 keeps an empty target defined: its loss is low when little is predicted."""
    probability, goal = probability.flatten(1), target.flatten(1).float()
    overlap = (probability * goal).sum(1)
    size = probability.square().sum(1) + goal.sum(1)
    return 1 - 2 * overlap / size.clamp_min(1e-8) if clamp else 1 - (2 * overlap + 1) / (size + 1)
