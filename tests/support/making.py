"""Small things to test with."""

import os
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from cyctr.checkpoint import save_checkpoint
from cyctr.config import (
    AugmentationConfig,
    BackboneConfig,
    Config,
    EncoderConfig,
    ModelConfig,
    PriorConfig,
    SamplingConfig,
    TrainingConfig,
)
from cyctr.methods.cyctr import CyCTR, build
from cyctr.types import Episode, Support


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
