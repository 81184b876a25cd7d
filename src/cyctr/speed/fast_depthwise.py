"""A depthwise convolution that is fast, dilated or not: by a kernel of its own on a GPU, without the dilation on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr.speed import kernels

_REACH = 8  # pixels to either side from which on torch has no fast way on a CPU


class DepthwiseConv2d(nn.Module):
    """Takes the place of a frozen `nn.Conv2d` of stride 1 with one filter for each channel."""

    filters: Tensor
    bias: Tensor

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        weight = convolution.weight.detach()  # (C, 1, size, size)
        none = torch.zeros(len(weight), device=weight.device)
        self.register_buffer("filters", weight.flatten(1).T.contiguous(), persistent=False)
        self.register_buffer("bias", none if convolution.bias is None else convolution.bias.detach(), persistent=False)
        (size, _), (dilation, _), padding = convolution.kernel_size, convolution.dilation, convolution.padding[0]
        reach = dilation * (size // 2)
        self.in_phases = size % 2 == 1 and dilation > 1 and reach >= _REACH and padding == reach

    @staticmethod
    def applies(module: nn.Module) -> bool:
        """Whether a module is such a convolution."""
        return (
            type(module) is nn.Conv2d  # its subclasses pad in their own ways
            and module.groups == module.in_channels == module.out_channels > 1
            and module.stride == (1, 1)
            and module.kernel_size[0] == module.kernel_size[1]
            and module.dilation[0] == module.dilation[1]
            and isinstance(module.padding, tuple)
            and module.padding[0] == module.padding[1]
            and module.padding_mode == "zeros"
        )

    def forward(self, images: Tensor) -> Tensor:
        if not kernels.usable(images):
            return self._in_phases(images) if self.in_phases else self.convolution(images)
        if torch.is_autocast_enabled("cuda"):
            images = images.to(torch.get_autocast_dtype("cuda"))
        dilation, padding = self.convolution.dilation[0], self.convolution.padding[0]
        assert isinstance(padding, int)
        return kernels.depthwise(images, self.filters, self.bias, dilation, padding)

    def _in_phases(self, images: Tensor) -> Tensor:
        """The same without dilation: every d-th pixel is of one image of its own, d x d of them, put together again."""
        step, size = self.convolution.dilation[0], self.convolution.kernel_size[0]
        count, channels, height, width = images.shape
        rows, columns = -(-height // step), -(-width // step)
        places = F.pad(images, (0, columns * step - width, 0, rows * step - height)).permute(0, 2, 3, 1)  # channels last
        parts = places.reshape(count, rows, step, columns, step, channels).permute(0, 2, 4, 1, 3, 5)
        parts = parts.reshape(-1, rows, columns, channels).permute(0, 3, 1, 2)
        weight, bias = self.convolution.weight, self.convolution.bias
        found = F.conv2d(parts, weight, bias, padding=size // 2, groups=channels).permute(0, 2, 3, 1)
        found = found.reshape(count, step, step, rows, columns, channels).permute(0, 3, 1, 4, 2, 5)
        return found.reshape(count, rows * step, columns * step, channels)[:, :height, :width].permute(0, 3, 1, 2)
