"""The views of an image that the network sees: whole or a window, as it is or mirrored, at one size or several."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cyctr.config import InputConfig
from cyctr.images.edges import enlarge, follow
from cyctr.images.geometry import Size, planes, restore, restore_rows
from cyctr.inference.segment_options import SegmentOptions
from cyctr.inference.tiles import Window, strips, windows
from cyctr.types import Pixels


class View(NamedTuple):
    """One look at an image.

    Attributes:
        window: the part of the image.
        scale: of the network's input, in that of the size it was trained on.
        mirrored: left and right change places.
    """

    window: Window
    scale: float
    mirrored: bool

    @property
    def size(self) -> Size:
        """(height, width) of the window."""
        return self.window.height, self.window.width

    def pixels(self, image: Pixels, device: torch.device) -> Tensor:
        """(3, height, width) uint8 of the window, not mirrored yet, on a device."""
        part = image[self.window.slices]
        large = len(strips(self.window)) > 1  # then a copy takes much memory
        return (torch.from_numpy(part).permute(2, 0, 1) if large else planes(part)).to(device)

    def restored(self, values: Tensor, config: InputConfig, rows: slice) -> Tensor:
        """Some rows of an (S, S) answer -> (rows, width) of the window."""
        back = self._enlarged(values[None], config, rows)[0]
        return back.flip(-1) if self.mirrored else back

    def followed(self, maps: Tensor, shown: Tensor, config: InputConfig, rows: slice) -> Tensor:
        """Some rows of an answer that follows edges -> (rows, width) of the window.

        Args:
            maps: (4, s, s) linear maps of `edge_maps`.
            shown: (3, height, width) what `pixels` gave.
            config: of the network's input.
            rows: of the window.
        """
        whole = self._enlarged(enlarge(maps[None], config.size)[0], config, rows)
        part = shown[:, rows]
        back = follow(whole, part.flip(-1) if self.mirrored else part)
        return back.flip(-1) if self.mirrored else back

    def _enlarged(self, maps: Tensor, config: InputConfig, rows: slice) -> Tensor:
        """Some rows of (C, S, S) maps -> (C, rows, width)."""
        return restore(maps, self.size, config) if rows == slice(None) else restore_rows(maps, self.size, config, rows)


def views_of(size: Size, options: SegmentOptions) -> Iterator[View]:
    """Every look at an image of that size."""
    for scale in options.scales:
        for window in windows(size, options.tile, options.overlap):
            for mirrored in (False, True) if options.flip else (False,):
                yield View(window, scale, mirrored)


def scaled_size(size: int, scale: float) -> int:
    """An input size near `scale` times the network's own, of 8 n + 1 pixels as that is."""
    return size if scale == 1 else 8 * max(8, round(size * scale / 8)) + 1
