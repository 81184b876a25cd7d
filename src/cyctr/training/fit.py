"""A plain training loop, for demonstrations and tests: one AdamW over everything trainable."""

import math
from collections.abc import Callable
from typing import Protocol

import torch

from cyctr.evaluation.metrics import Counts
from cyctr.evaluation.metrics import count as count_pixels
from cyctr.methods.base import Losses, Step
from cyctr.methods.cyctr.network import CyCTR
from cyctr.seeding import random_bits
from cyctr.types import Episode


class EpisodeSource(Protocol):
    """Anything that gives consecutive episodes."""

    def batch(self, start: int, count: int) -> Episode:
        """Episodes `start` to `start + count - 1`, with query labels."""
        ...


def fit(
    model: CyCTR,
    episodes: EpisodeSource,
    steps: int,
    batch: int = 8,
    rate: float = 1e-3,
    seed: int = 0,
    on_step: Callable[[int, Losses], None] | None = None,
) -> None:
    """Trains in place. Step i sees episodes i * batch and on; the same seed gives the same network."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_at(step, steps))
    model.train()
    with torch.random.fork_rng(devices=[]):  # dropout has no generator of its own
        torch.manual_seed(seed)
        for step in range(steps):
            episode = episodes.batch(step * batch, batch)
            seeds = torch.arange(step * batch, (step + 1) * batch)
            position = random_bits(seeds[:1], 1).item() / 2**32
            tokens = model.config.sampling.training_tokens(position, episode.shots)
            query, support = model.backbone(episode.query_images), model.backbone(episode.support_images.flatten(0, 1))
            losses = model.learn(episode, query, support, Step(seeds, tokens))
            optimizer.zero_grad()
            losses.total.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            if on_step is not None:
                on_step(step, losses)
    model.eval()


def _rate_at(step: int, steps: int) -> float:
    """The share of the full rate: up over the first tenth, then down along half a cosine."""
    warm_up = min(1.0, (step + 1) / max(1.0, 0.1 * steps))
    return warm_up * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.inference_mode()
def overlaps(model: CyCTR, episodes: EpisodeSource, count: int, batch: int = 8) -> list[Counts]:
    """How prediction and truth agree in each of the first `count` episodes."""
    found: list[Counts] = []
    for start in range(0, count, batch):
        episode = episodes.batch(start, min(batch, count - start))
        assert episode.query_labels is not None
        found += [count_pixels(mask, labels) for mask, labels in zip(model(episode).mask, episode.query_labels, strict=True)]
    return found


def score(model: CyCTR, episodes: EpisodeSource, count: int) -> Counts:
    """The same over the first `count` episodes together."""
    return sum(overlaps(model, episodes, count), start=Counts())
