import pytest
import torch
from torch import nn

from cyctr.speed.fast_depthwise import DepthwiseConv2d


def convolution(size, dilation, padding=None, bias=True):
    padding = dilation * (size // 2) if padding is None else padding
    return nn.Conv2d(6, 6, size, padding=padding, dilation=dilation, groups=6, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("images", [(2, 6, 20, 20), (1, 6, 17, 23), (1, 6, 3, 2)], ids=str)
@pytest.mark.parametrize(("size", "dilation"), [(5, 4), (3, 8), (5, 5), (7, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_widely_dilated_convolution_is_the_same_without_dilation(size, dilation, images, bias):
    own = convolution(size, dilation, bias=bias)
    fast = DepthwiseConv2d(own)
    assert fast.in_phases
    for layout in (torch.contiguous_format, torch.channels_last):
        given = torch.randn(images).contiguous(memory_format=layout)
        torch.testing.assert_close(fast(given), own(given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "dilation", "padding"), [(5, 1, None), (5, 2, None), (3, 4, None), (5, 4, 4), (4, 4, 8), (17, 1, 8)]
)
def test_others_are_left_to_torch(size, dilation, padding):
    own = convolution(size, dilation, padding)
    fast = DepthwiseConv2d(own)
    assert not fast.in_phases
    given = torch.randn(1, 6, 40, 40)
    assert torch.equal(fast(given), own(given))


def test_gradients_pass_through():
    own = convolution(5, 4)
    given = torch.randn(1, 6, 16, 16, requires_grad=True)
    found, expected = (torch.autograd.grad(layer(given).square().sum(), given)[0] for layer in (DepthwiseConv2d(own), own))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
