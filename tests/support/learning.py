"""Small training runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from miniature import write
from safetensors.torch import load_file

from cyctr.config import AugmentationConfig, BackboneConfig, TrainingConfig
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.synthetic import draw_image
from cyctr.datasets.synthetic_pool import SyntheticPool, open_synthetic
from cyctr.methods.cyctr.config import BEST, Config, EncoderConfig, ModelConfig, SamplingConfig
from cyctr.training import loop as session
from cyctr.training.loop import Trainer
from cyctr.training.options import Options
from cyctr.training.plan import Plan
from cyctr.training.run import prepare
from cyctr.training.run_folder import STATE, RunFolder

CPU = torch.device("cpu")
SIZE = 65
QUIET = Options(validation_episodes=3, tensorboard=False)
SMALL = Config(
    model=ModelConfig(
        dim=16,
        backbone=BackboneConfig("tiny"),
        sampling=SamplingConfig(tokens_per_shot=32),
        encoder=EncoderConfig(layers=1, heads=2, points=2),
    ),
    optimizer=replace(BEST.optimizer, average=0.9),
    training=TrainingConfig(episodes=24, batch=4, augmentation=AugmentationConfig(size=SIZE)),
)
_TIMES = ("seconds", "episodes_per_second")


def changed(config: Config, **parts: Any) -> Config:
    """The config with some fields of its parts changed: changed(SMALL, training={"shots": 2})."""
    return replace(config, **{part: replace(getattr(config, part), **fields) for part, fields in parts.items()})


def without_dropout(config: Config) -> Config:
    """The config with nothing random in its network."""
    return changed(config, model={"encoder": replace(config.model.encoder, dropout=0.0)})


def textures(each: int = 4) -> Dataset:
    """Eight classes of a few small images each, in four folds of two test classes."""
    return open_synthetic(SyntheticPool(8, each, SIZE))


def photos(root: Path, classes: int = 4, each: int = 4) -> Path:
    """A user's folder of classes thing0, thing1, ..."""
    for number in range(classes):
        for i in range(each):
            image, label = draw_image(number, SIZE, np.random.default_rng((number, i)))
            write(root / "images" / f"{number}{i}.png", image)
            write(root / "masks" / f"thing{number}" / f"{number}{i}.png", 255 * label)
    return root


def prepared(path: Path, config: Config = SMALL, options: Options = QUIET, **others: Any) -> Trainer:
    """A trainer that has neither begun nor resumed."""
    given = {"dataset": textures(), "fold": 0, "device": CPU, **others}
    asked = {name: given.pop(name) for name in ("dataset", "fold", "device", "world", "resume", "method") if name in given}
    return Trainer(prepare(Plan(config=config, folder=RunFolder(path), options=options, **asked), **given))


def begun(path: Path, config: Config = SMALL, options: Options = QUIET, **others: Any) -> Trainer:
    """A trainer at its first step."""
    trainer = prepared(path, config, options, **others)
    trainer.begin()
    return trainer


def resumed(path: Path, config: Config = SMALL, options: Options = QUIET, **others: Any) -> Trainer:
    """A new trainer that goes on with the run in the folder."""
    trainer = prepared(path, config, options, resume=True, **others)
    trainer.begin()
    return trainer


def go(trainer: Trainer, until: int | None = None) -> session.Outcome:
    """Trains to the end, or to a step at which somebody asks it to stop."""
    return trainer.run(stop=lambda: trainer.step == until)


def trained(path: Path, config: Config = SMALL, options: Options = QUIET, **others: Any) -> Trainer:
    """A run from its first to its last step."""
    trainer = begun(path, config, options, **others)
    assert go(trainer) == "finished"
    return trainer


def timeless(path: Path) -> list[dict[str, Any]]:
    """The lines of the metrics, without what a clock says."""
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in _TIMES} for line in lines]


def state_of(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of the saved state: weights, their average, and what the optimizers remember."""
    return load_file(path / STATE)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether all tensors are equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal but for rounding."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )
