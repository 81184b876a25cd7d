import pytest
import torch
from torch import nn

from cyctr.speed.fusion import fold_batchnorms, use_winograd
from cyctr.speed.winograd import WinogradConv2d


@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("size", [(60, 60), (13, 27), (1, 1)])
def test_winograd_gives_what_the_convolution_gives(dilation, size):
    convolution = nn.Conv2d(128, 24, 3, padding=dilation, dilation=dilation).requires_grad_(False)
    images = torch.randn(2, 128, *size)
    fast = WinogradConv2d(convolution)(images)
    torch.testing.assert_close(fast, convolution(images), atol=1e-4, rtol=1e-3)


def test_winograd_takes_any_memory_layout_and_a_missing_bias():
    convolution = nn.Conv2d(128, 8, 3, padding=1, bias=False).requires_grad_(False)
    images = torch.randn(2, 128, 9, 9)
    fast = WinogradConv2d(convolution)
    torch.testing.assert_close(fast(images), fast(images.to(memory_format=torch.channels_last)))
    torch.testing.assert_close(fast(images), convolution(images), atol=1e-4, rtol=1e-3)


def test_under_autocast_the_convolution_itself_runs():
    convolution = nn.Conv2d(128, 8, 3, padding=1).requires_grad_(False)
    images = torch.randn(1, 128, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(WinogradConv2d(convolution)(images), convolution(images))


def test_memory_is_taken_only_where_the_kernel_is_used():
    fast = WinogradConv2d(nn.Conv2d(128, 8, 3, padding=1).requires_grad_(False))
    assert sum(one.numel() for one in fast.buffers()) < fast.convolution.weight.numel()
    images = torch.randn(1, 128, 9, 9, requires_grad=True)
    with torch.inference_mode():
        fast(images)
    fast(images).sum().backward()  # what was made while nothing could be learned serves here too
    assert images.grad.abs().max() > 0


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(128, 128, 1),
        nn.Conv2d(128, 128, 3, stride=2, padding=1),
        nn.Conv2d(128, 128, 3, padding=1, groups=128),
        nn.Conv2d(128, 128, 3, padding=2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.Linear(128, 128),
    ],
)
def test_other_layers_are_left_as_they_are(other):
    parent = nn.Sequential(other)
    use_winograd(parent)
    assert parent[0] is other


def test_folding_a_batchnorm_leaves_the_output_as_it_was():
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(5)).eval()
    images = torch.randn(2, 3, 9, 9)
    before = plain[:3](images)
    fold_batchnorms(plain)
    assert not isinstance(plain[1], nn.BatchNorm2d)
    assert isinstance(plain[4], nn.BatchNorm2d)  # of another width: not the convolution's
    torch.testing.assert_close(plain[:3](images), before)
