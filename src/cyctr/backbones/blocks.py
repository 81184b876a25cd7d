"""A network whose levels are its blocks instead of its stages, for methods that compare many layers."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.backbones.levels import remove_last_relu
from cyctr.errors import ConfigError

_PROBE = 65  # pixels


class BlockBody(nn.Module):
    """A chain of layers and of stages, each a chain of blocks, that gives what every block makes.

    It has the parts of the network it was made of, under the same names.
    """

    def __init__(self, body: nn.Module, name: str, last_relu: bool) -> None:
        """Takes over the parts of a network.

        Args:
            body: images -> list of feature maps, whose parts are called one after the other.
            name: of the network, for errors.
            last_relu: false: blocks are given as they are before their final ReLU.
        """
        super().__init__()
        for own, part in body.named_children():
            self.add_module(own, part)
        self._ends = tuple(own for own, _ in _chain(self) if "." in own)
        self._bare: frozenset[str] = frozenset()
        image = torch.randn(1, 3, _PROBE, _PROBE, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            try:
                same = torch.equal(self(image)[-1], list(body(image))[-1])
            except (RuntimeError, TypeError, IndexError, AttributeError):
                same = False
        if not same:
            raise ConfigError(
                f"backbone.blocks is true for {name}, which is no chain of blocks; choose a ResNet, or set it to false"
            )
        if not last_relu:
            for level, end in enumerate(self._ends):
                if remove_last_relu(self, level):
                    self._bare |= {end}

    def forward(self, images: Tensor) -> list[Tensor]:
        levels = []
        for name, part in _chain(self):
            images = part(images)
            if name in self._ends:
                levels.append(images)
                images = F.relu(images) if name in self._bare else images
        return levels


def _chain(parent: nn.Module, above: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers and blocks of a network in their order, by name: nested sequences are opened."""
    for name, part in parent.named_children():
        if isinstance(part, nn.Sequential):
            yield from _chain(part, f"{above}{name}.")
        else:
            yield f"{above}{name}", part
