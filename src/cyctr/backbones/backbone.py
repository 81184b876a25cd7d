"""Image -> Features: one adapter over timm's networks, frozen except for the parts that a config trains."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from cyctr.backbones.bodies import STRIDE, create_body
from cyctr.backbones.grid import Grid
from cyctr.backbones.levels import remove_last_relu, train_levels
from cyctr.backbones.tuning import SPECTRUM, SpectralConv2d, factorise, settle, tune
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError, WeightsError
from cyctr.speed.fusion import rewritten, use_depthwise
from cyctr.types import Features

_PROBE = 8 * STRIDE + 1  # pixels: shows where the cells sit
_CHUNK_PIXELS = 2**18  # a 473-pixel image: on the CPU the maps of one fit the cache, those of several do not


class Backbone(nn.Module):
    """A frozen ImageNet network that gives feature maps of some of its levels: all on one grid, or at their own strides.

    It stays in evaluation mode, BatchNorms included, whatever `train()` is called with. Its weights ask for no gradient, but
    for what learns: the singular values of its convolutions where `config.tuned`, the weights of its last levels where
    `config.trained`. It normalises images itself.

    Attributes:
        learned: the names of what learns.
        taps: the levels that it gives, the finest first.
        channels: of each of the maps.
        grids: where the cells of each map sit among the pixels; all alike, unless `config.own_strides`.
        grid: that of the map at stride 8, or of the finest that is coarser.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        if config.tuned and config.trained:
            raise ConfigError(f"backbone.trained is {config.trained} and backbone.tuned is true; a backbone learns in one way")
        self.config = config
        self.body, mean, std = create_body(config)
        self.requires_grad_(False).eval()
        levels = _probe(self.body, config.architecture)
        self.taps = _taps(config, len(levels))
        self.channels = tuple(levels[tap].shape[1] for tap in self.taps)
        self._factors = _factors(config, self.taps, len(levels))
        self._placed = [_place(config.architecture, levels[tap].shape[-1]) for tap in self.taps]
        # the cells are those of the tap at stride 8; without one, of the finest that is coarser
        order = range(len(self.taps))
        self._reference = min(order, key=lambda i: (self._placed[i].stride < STRIDE, self._placed[i].stride))
        offset = config.offset or 0
        self.grid = replace(self._placed[self._reference], offset=offset)
        self.grids = tuple(replace(placed, offset=offset) if config.own_strides else self.grid for placed in self._placed)
        if not config.last_relu and not config.blocks:
            remove_last_relu(self.body, self.taps[-1])
        if config.tuned:
            tune(self.body)  # after the probe, which would look for singular vectors
        if config.trained:
            train_levels(self.body, self.taps[-1], config.trained)
        self.learned = frozenset(name for name, value in self.named_parameters() if value.requires_grad)
        self.accelerated = False
        shape = (1, 3, 1, 1)
        self.register_buffer("mean", torch.tensor(config.mean or mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(config.std or std).view(shape), persistent=False)

    def forward(self, images: Tensor) -> Features:
        """Features of (B, 3, H, W) RGB images, uint8 or float in [0, 1]."""
        with torch.set_grad_enabled(self.config.learns and torch.is_grad_enabled()):
            if images.device.type == "cpu" and not torch.compiler.is_compiling():
                pieces = images.split(max(1, _CHUNK_PIXELS // images[0, 0].numel()))
            else:
                pieces = (images,)
            parts = [self._extract(piece) for piece in pieces]
            return parts[0] if len(parts) == 1 else Features.join(parts)

    def _extract(self, images: Tensor) -> Features:
        """The maps of a piece of the batch."""
        scale = 255 if images.dtype == torch.uint8 else 1
        images = (images.to(self.mean.dtype) / scale - self.mean) / self.std
        if self.accelerated:
            images = images.contiguous(memory_format=torch.channels_last)
        levels = self.body(images)
        taps = [levels[tap] for tap in self.taps]
        if self._factors is not None:
            taps = [tap * factor for tap, factor in zip(taps, self._factors, strict=True)]
        if self.config.own_strides:
            return Features(tuple(taps))
        size = (taps[self._reference].shape[-2], taps[self._reference].shape[-1])
        pairs = zip(taps, self._placed, strict=True)
        return Features(tuple(self.grid.regrid(tap, placed, size) for tap, placed in pairs))

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode: a frozen network has no other."""
        return super().train(False)

    def load(self, state: Mapping[str, Tensor]) -> Self:
        """Takes ImageNet weights with timm's names; a classifier among them is left out.

        Raises:
            WeightsError: they were made for another network.
        """
        if self.accelerated:
            raise WeightsError(
                f"{self.config.architecture} is accelerated and takes no weights any more; load them before accelerate()"
            )
        own = self.body.state_dict()
        joined = {name: name.replace("_", ".", 1) for name in own}  # timm joins stem.0 to stem_0
        flat = {name: other if name not in state and other in state else name for name, other in joined.items()}
        needed = {name: flat[name] for name in own if not name.endswith(("num_batches_tracked", SPECTRUM))}
        missing = [there for there in needed.values() if there not in state]
        wrong = [there for here, there in needed.items() if there in state and state[there].shape != own[here].shape]
        shared = {name.partition(".")[0] for name in needed.values()}
        known = set(flat.values())
        extra = [name for name in state if name not in known and name.partition(".")[0] in shared]
        for problem, names in (("lack", missing), ("have another shape for", wrong), ("also have", extra)):
            if names:
                others = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise WeightsError(
                    f"the weights {problem} {names[0]!r}{others}; they were made for another network than "
                    f"{self.config.architecture}: give the right file, or set backbone.name to its architecture"
                )
        self.body.load_state_dict({here: state[there].float() for here, there in needed.items()}, strict=False)
        for layer in self.body.modules():
            if isinstance(layer, SpectralConv2d):
                layer.forget()
        return self

    def learning(self) -> Self:
        """What learns in place of the backbone: it has the same parameters, and is faster on a GPU.

        Depthwise convolutions run as in `accelerate` where their weights are frozen, which on a CPU makes little difference
        here; memory is laid out channels last.
        """
        factorise(self.body)  # before anything is compiled
        same = {id(tensor): tensor for tensor in chain(self.parameters(), self.buffers())}
        twin = copy.deepcopy(self, same)
        if self.config.tuned:
            use_depthwise(twin.body)
        return twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def accelerate(self) -> Self:
        """Rewrites the network for speed, its output unchanged to 1e-3: for inference, after the weights are loaded.

        BatchNorms are folded into convolutions, memory is laid out channels last, depthwise convolutions run by a
        kernel of their own on a GPU and without wide dilation on the CPU. A network whose structure does not allow the
        folding keeps its BatchNorms. What was tuned stays so, and learns no more.
        """
        if self.accelerated:
            return self
        settle(self.body)
        image = torch.randn(1, 3, _PROBE, _PROBE, generator=torch.Generator().manual_seed(0))
        self.body = rewritten(self.body, image.to(self.mean.device))
        self.accelerated = True
        return self


def _probe(body: nn.Module, name: str) -> list[Tensor]:
    try:
        with torch.no_grad():
            levels = list(body(torch.zeros(1, 3, _PROBE, _PROBE)))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"backbone.name is {name!r}, which does not take images of any size ({error}); choose another"
        ) from error
    if len(levels) < 3:
        raise ConfigError(f"backbone.name is {name!r}, which has {len(levels)} feature levels; expected at least 3")
    if any(level.ndim != 4 or level.shape[-1] != level.shape[-2] for level in levels):
        raise ConfigError(f"backbone.name is {name!r}, whose features are not (B, C, H, W) maps; choose another")
    return levels


def _taps(config: BackboneConfig, levels: int) -> tuple[int, ...]:
    """The levels to give: those of the config, or the three deepest usual ones."""
    usual = 5 if config.architecture.startswith("vgg") else levels  # convolution blocks 1 to 5; the sixth level is a bare pool
    taps = tuple(tap if tap >= 0 else usual + tap for tap in config.taps or (-3, -2, -1))
    if not 0 <= taps[0] <= taps[-1] < levels:
        raise ConfigError(f"backbone.taps is {config.taps}; {config.architecture} has levels 0 to {levels - 1}")
    return taps


def _factors(config: BackboneConfig, taps: tuple[int, ...], levels: int) -> tuple[float, ...] | None:
    """What each tap is multiplied by; three factors for other taps are those of the default ones, and one elsewhere."""
    if config.scale is None or len(config.scale) == len(taps):
        return config.scale
    of_level = dict(zip(_taps(replace(config, taps=None, scale=None), levels), config.scale, strict=True))
    return tuple(of_level.get(tap, 1.0) for tap in taps)


def _place(name: str, side: int) -> Grid:
    """The grid of a tap that has `side` cells along an image of 65 pixels."""
    for stride in (1, 2, 4, 8, 16, 32):
        if side == (_PROBE - 1) // stride + 1:
            return Grid(stride, "corner")
        if side == (_PROBE - 1) // stride:
            return Grid(stride, "center")
    raise ConfigError(f"backbone.name is {name!r}, which gives {side} cells for {_PROBE} pixels; expected a stride of 1 to 32")
