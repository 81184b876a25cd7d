"""A backbone small enough for tests and demonstrations: fixed random filters, no file to load."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyBody(nn.Module):
    """Five levels like a ResNet's, strides 2, 4, 8, 8 and 8, with weights that are the same everywhere."""

    channels = (24, 48, 64, 64, 64)

    def __init__(self) -> None:
        super().__init__()
        widths = (3, *self.channels)
        plan = zip(widths, widths[1:], (2, 2, 2, 1, 1), (1, 1, 1, 1, 2), strict=False)
        blocks = [
            nn.Conv2d(before, after, 3, stride, padding=dilation, dilation=dilation) for before, after, stride, dilation in plan
        ]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for block in blocks:
                block.weight.normal_(0, (2 / block.weight[0].numel()) ** 0.5, generator=generator)
                block.bias.zero_()  # type: ignore[union-attr]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, images: Tensor) -> list[Tensor]:
        levels = []
        for block in self.blocks:
            images = F.relu(block(images))
            levels.append(images)
        return levels
