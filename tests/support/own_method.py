"""Methods of one's own: the example of `docs/your-own-method.md` as the module `nearest`, one at several strides, and none."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from cyctr import Method, Prediction
from cyctr.config import BackboneConfig, BackboneOnly, OptimizerConfig, Recipe, setting
from cyctr.methods.parts.pooling import masked_average
from cyctr.methods.references import NearestPrototype

PAGE = Path(__file__).parents[2] / "docs/your-own-method.md"


def blocks(kind: str) -> list[str]:
    """The blocks of code of the page."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.S)


def nearest() -> types.ModuleType:
    """The module of the example, which can be imported from then on."""
    if "nearest" not in sys.modules:
        module = types.ModuleType("nearest")
        sys.modules["nearest"] = module
        exec(compile(blocks("python")[0], "nearest.py", "exec"), module.__dict__)
    return sys.modules["nearest"]


@dataclass(frozen=True)
class PyramidConfig(BackboneOnly):
    """Three levels, each at the stride that the network gives it."""

    backbone: BackboneConfig = BackboneConfig(taps=(-4, -2, -1), own_strides=True)
    channels: int = setting(16, "what each level is projected to")


@dataclass(frozen=True)
class PyramidRecipe(Recipe):
    """The network, and how it learns."""

    model: PyramidConfig = PyramidConfig()
    optimizer: OptimizerConfig = OptimizerConfig(convolutions="adamw", convolution_rate=1e-3)


class Pyramid(Method[tuple[torch.Tensor, ...]]):
    """The mean over levels of what the nearer of two prototypes says, each at the size of the level."""

    name = "pyramid"
    Config = PyramidRecipe

    def __init__(self, config, backbone):
        super().__init__()
        self.config, self.backbone = config, backbone
        self.project = nn.ModuleList(nn.Conv2d(width, config.channels, 1) for width in backbone.channels)

    @classmethod
    def build(cls, config, backbone):
        return cls(config.model, backbone)

    def encode_support(self, features, labels, seeds=None):
        found = []
        for maps, project, grid in zip(features.maps, self.project, self.backbone.grids, strict=True):
            cells = grid.cells(labels.flatten(0, 1), maps.shape[-2:]).unflatten(0, labels.shape[:2])  # (B, K, h, w)
            vectors = project(maps).unflatten(0, labels.shape[:2])  # (B, K, C, h, w)
            found.append(torch.stack([masked_average(vectors, cells == kind) for kind in (0, 1)], 1))  # (B, 2, C)
        return tuple(found)

    def predict(self, query, support, size, padding=None, explain=False):
        levels = zip(query.maps, self.project, self.backbone.grids, support, strict=True)
        return Prediction(
            torch.stack([compared(project(maps), own, grid, size) for maps, project, grid, own in levels]).mean(0)
        )


def compared(maps, prototypes, grid, size):
    """(B, 2, H, W) cosines of (B, C, h, w) maps to prototypes."""
    vectors, directions = F.normalize(maps.float(), dim=1), F.normalize(prototypes.float(), dim=-1)
    cosine = torch.einsum("bpc,bchw->bphw", directions.expand(len(maps), -1, -1), vectors)
    return grid.upsample(10 * cosine, size)


class Alike(NearestPrototype):
    """The reference under a name of one's own: it learns nothing."""

    name = "alike"


class NoMethod:
    """Not a method at all."""
