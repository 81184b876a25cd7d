"""The demonstration: a small network, the classes it learns from and those it has never seen."""

from collections.abc import Callable

import torch

from cyctr.config import BackboneConfig
from cyctr.datasets.synthetic import SyntheticEpisodes
from cyctr.methods.base import Losses
from cyctr.methods.cyctr.config import EncoderConfig, ModelConfig
from cyctr.methods.cyctr.network import CyCTR, build
from cyctr.training.fit import fit

BASE = SyntheticEpisodes(range(400), size=129, seed=1)
NOVEL = SyntheticEpisodes(range(1000, 1100), size=129, seed=2)
STEPS = 240


def untrained(seed: int = 0) -> CyCTR:
    """The network before it has seen anything."""
    config = ModelConfig(dim=64, backbone=BackboneConfig("tiny"), encoder=EncoderConfig(heads=4, points=4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config).eval()


def train(model: CyCTR, steps: int = STEPS, seed: int = 0, on_step: Callable[[int, Losses], None] | None = None) -> None:
    """About a minute of training on the base classes."""
    fit(model, BASE, steps, rate=2e-3, seed=seed, on_step=on_step)
