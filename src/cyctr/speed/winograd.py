"""3x3 convolution by Winograd's minimal filtering, for the CPU: the same result from a fifth of the multiplications.

A tile of 5x5 outputs needs 7x7 products instead of 9 * 25: inputs, kernel and products pass through small fixed
matrices, and the rest is 49 matrix multiplications. A dilated convolution is the same on interleaved sub-grids.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 5  # outputs per side; 473-pixel images have 60 cells, which 5 divides at dilations 1, 2 and 4
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5)  # with infinity, where the polynomials are evaluated
_SPAN = TILE + 2


@cache
def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """The 2D transforms of outputs (25, 49), kernels (49, 9) and inputs (49, 49), in float64 (Toom-Cook)."""
    points = torch.tensor(_POINTS, dtype=torch.float64)
    output, kernel, inputs = (torch.zeros(shape, dtype=torch.float64) for shape in ((TILE, _SPAN), (_SPAN, 3), (_SPAN, _SPAN)))
    for i, point in enumerate(_POINTS):
        others = [other for other in _POINTS if other != point]
        output[:, i] = points[i] ** torch.arange(TILE)
        kernel[i] = points[i] ** torch.arange(3) / math.prod(point - other for other in others)
        inputs[i, : _SPAN - 1] = _polynomial(others)
    output[-1, -1] = kernel[-1, -1] = 1
    inputs[-1] = _polynomial(list(_POINTS))
    return torch.kron(output, output), torch.kron(kernel, kernel), torch.kron(inputs, inputs)


def _polynomial(roots: list[float]) -> Tensor:
    """Coefficients, lowest first, of the monic polynomial with these roots."""
    coefficients = [1.0]
    for root in roots:
        shifted = [0.0, *coefficients]
        coefficients = [a - root * b for a, b in zip(shifted, [*coefficients, 0.0], strict=True)]
    return torch.tensor(coefficients, dtype=torch.float64)


class WinogradConv2d(nn.Module):
    """A frozen 3x3 convolution of stride 1 that runs by Winograd in float32 on the CPU, and as it was elsewhere."""

    to_input: Tensor
    to_output: Tensor

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        self._kernel: Tensor | None = None
        output, _, inputs = _matrices()
        self.register_buffer("to_input", inputs.float(), persistent=False)
        self.register_buffer("to_output", output.float(), persistent=False)

    @staticmethod
    def applies(module: nn.Module) -> bool:
        """Whether a module is such a convolution, on the CPU and wide enough to gain."""
        return (
            type(module) is nn.Conv2d
            and module.weight.device.type == "cpu"
            and module.kernel_size == (3, 3)
            and module.stride == (1, 1)
            and module.groups == 1
            and module.padding == module.dilation
            and module.dilation[0] == module.dilation[1]
            and module.padding_mode == "zeros"
            and module.in_channels >= 128
        )

    def kernel(self) -> Tensor:
        """(49, C_in, C_out), made when it is first needed: it is five times as large as the weights, which bfloat16 uses."""
        if self._kernel is None:
            with torch.inference_mode(False):
                weight = self.convolution.weight.detach().double().flatten(2).permute(2, 1, 0)  # (9, C_in, C_out)
                transformed = torch.tensordot(_matrices()[1], weight, 1)
                self._kernel = transformed.to(self.convolution.weight.dtype).contiguous()
        return self._kernel

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu" or images.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return self.convolution(images)
        (batch, channels, height, width), r = images.shape, self.convolution.dilation[0]
        rows, columns = -(-height // (TILE * r)), -(-width // (TILE * r))  # tiles per sub-grid
        margins = (0, 0, r, (TILE * columns + 1) * r - width, r, (TILE * rows + 1) * r - height)
        padded = F.pad(images.permute(0, 2, 3, 1), margins)  # (B, H, W, C)
        padded = padded.contiguous()
        image, row, column, _ = padded.stride()
        tiles = padded.as_strided(
            (_SPAN, _SPAN, batch, rows, r, columns, r, channels),  # place in tile, image, tile row, phase, tile column, phase
            (row * r, column * r, image, row * TILE * r, row, column * TILE * r, column, 1),
        ).reshape(_SPAN**2, -1)
        tiles = (self.to_input @ tiles).view(_SPAN**2, -1, channels)
        products = torch.bmm(tiles, self.kernel())  # (49, tiles, C_out)
        outputs = (self.to_output @ products.flatten(1)).view(TILE, TILE, batch, rows, r, columns, r, -1)
        outputs = outputs.permute(2, 3, 0, 4, 5, 1, 6, 7).reshape(batch, rows * TILE * r, columns * TILE * r, -1)
        outputs = outputs[:, :height, :width]
        if self.convolution.bias is not None:
            outputs = outputs + self.convolution.bias
        return outputs.permute(0, 3, 1, 2)  # channels last in memory
