"""Small things to test with."""

import os
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cyctr.checkpoint import save_checkpoint
from cyctr.config import AugmentationConfig, BackboneConfig, TrainingConfig
from cyctr.methods.base import Losses, Method, Step
from cyctr.methods.cyctr.config import Config, EncoderConfig, ModelConfig, PriorConfig, SamplingConfig
from cyctr.methods.cyctr.network import CyCTR, build
from cyctr.methods.cyctr.state import Support
from cyctr.types import Episode, Features, Prediction


def episode(batch: int = 2, shots: int = 1, size: int = 65, query_size: int | None = None, seed: int = 0) -> Episode:
    """Noise images with a rectangle marked at another place in each."""
    generator = torch.Generator().manual_seed(seed)
    query_size = query_size or size
    return Episode(
        torch.rand(batch, shots, 3, size, size, generator=generator),
        rectangles((batch, shots), size, generator),
        torch.rand(batch, 3, query_size, query_size, generator=generator),
        rectangles((batch,), query_size, generator),
    )


def rectangles(shape: tuple[int, ...], size: int, generator: torch.Generator) -> torch.Tensor:
    labels = torch.zeros(*shape, size, size, dtype=torch.uint8)
    for label in labels.view(-1, size, size):
        top, left = torch.randint(0, size // 2, (2,), generator=generator).tolist()
        label[top : top + size // 3, left : left + size // 3] = 1
    return labels


def one(many: Episode, i: int) -> Episode:
    """The i-th episode alone."""
    labels = None if many.query_labels is None else many.query_labels[i : i + 1]
    here = slice(i, i + 1)
    return Episode(many.support_images[here], many.support_labels[here], many.query_images[here], labels)


def tiny(config: ModelConfig | None = None) -> CyCTR:
    """A network on the tiny backbone, narrow unless the config says otherwise, in evaluation mode."""
    config = config or ModelConfig(dim=32, encoder=EncoderConfig(heads=4, points=3))
    torch.manual_seed(1)
    return build(replace(config, backbone=BackboneConfig("tiny"))).eval()


def small_checkpoint(path: Path, size: int = 65) -> Path:
    """The file of such a network, with votes as the shipped ones, for inputs of a size."""
    config = ModelConfig(
        dim=16,
        backbone=BackboneConfig("tiny"),
        sampling=SamplingConfig(tokens_per_shot=32),
        prior=PriorConfig(votes=("mid", "high")),
        encoder=EncoderConfig(layers=1, heads=2, points=2),
    )
    training = TrainingConfig(augmentation=AugmentationConfig(size=size))
    save_checkpoint(path, tiny(config), Config(model=config, training=training))
    return path


def features(model: Method, images: torch.Tensor) -> Features:
    """What the backbone of a method says of images, of supports too: (B, K, 3, H, W) count as B * K."""
    return model.backbone(images.flatten(0, -4))


def encoded(model: Method, images: torch.Tensor, labels: torch.Tensor, *more: Any) -> Any:
    """The support that labelled images make."""
    return model.encode_support(features(model, images), labels, *more)


def answered(model: Method, images: torch.Tensor, support: Any, explain: bool = False) -> Prediction:
    """The answer to (B, 3, H, W) queries."""
    return model.predict(features(model, images), support, tuple(images.shape[-2:]), None, explain)


def losses(model: Method, given: Episode, seeds: torch.Tensor | None = None, drawn: Any = None) -> Losses:
    """What a method loses on episodes, as the training loop asks for it."""
    step = Step(torch.zeros(len(given.query_images), dtype=torch.int64) if seeds is None else seeds, drawn)
    return model.learn(given, features(model, given.query_images), features(model, given.support_images), step)


def explained(model: Method, given: Episode) -> Any:
    """What CyCTR shows of its answer."""
    return model(given, explain=True).extras.explanation


def support(tokens: torch.Tensor, is_foreground: torch.Tensor, valid: torch.Tensor | None = None) -> Support:
    """A support of bare tokens, (B, N, d) and (B, N)."""
    batch, count, dim = tokens.shape
    return Support(
        prototype=torch.zeros(batch, dim),
        high=torch.zeros(batch, 1, 1, 1),
        high_valid=torch.ones(batch, 1, 1, dtype=torch.bool),
        tokens=tokens,
        index=torch.arange(count).expand(batch, -1),
        is_foreground=is_foreground,
        valid=torch.ones_like(is_foreground) if valid is None else valid,
        maps=None,
        grid=(1, count),
    )


def assert_one_line(result, *words):
    """The user could mend it: nothing but one line of ours, and exit code 2."""
    code, _, error = result
    assert code == 2
    assert error.startswith("cyctr: ") and error.endswith("\n") and error.count("\n") == 1, error
    assert all(word in error for word in words), error


@contextmanager
def without_rights(folder, mode):
    """Gives a folder these rights; root has all of them whatever they are, and becomes somebody else for a while."""
    root, before = os.geteuid() == 0, folder.stat().st_mode
    folder.chmod(mode)
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(before)


def most_memory(call: Callable[[], object]) -> int:
    """Bytes that NumPy and Python hold at most, beside what was there, while something is called."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
