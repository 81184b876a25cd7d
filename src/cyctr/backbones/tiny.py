"""A backbone small enough for tests and demonstrations: fixed random filters, no file to load."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyBody(nn.Module):
    """Five levels like a ResNet's, strides 2, 4, 8, 8 and 8, with weights that are the same everywhere.

    What random filters can tell apart is textures, so that is what it is made for: each filter sums to zero, the first
    ones in each colour, and answers to patterns rather than to brightness; the average over a neighbourhood keeps how
    strong the answers are there and forgets where exactly.
    """

    channels = (24, 48, 64, 64, 64)

    def __init__(self, own_strides: bool = False) -> None:
        """Makes the filters; with their own strides the last levels have 16 and 32."""
        super().__init__()
        self.strides = (2, 2, 2, 2, 2) if own_strides else (2, 2, 2, 1, 1)
        widths = (3, *self.channels)
        plan = zip(widths, self.channels, (1, 1, 1, 1, 1 if own_strides else 2), strict=False)
        blocks = [nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation) for before, after, dilation in plan]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for block in blocks:
                block.weight.normal_(0, (8 / block.weight[0].numel()) ** 0.5, generator=generator)
                block.weight -= block.weight.mean((2, 3) if block is blocks[0] else (1, 2, 3), keepdim=True)
                block.bias.zero_()  # type: ignore[union-attr]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, images: Tensor) -> list[Tensor]:
        levels = []
        for block, stride in zip(self.blocks, self.strides, strict=True):
            images = F.avg_pool2d(F.relu(block(images)), 3, stride, padding=1, count_include_pad=False)
            levels.append(images)
        return levels
