"""Rewrites of a frozen network that leave its output as it was and make it faster."""

from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cyctr.speed.fast_depthwise import DepthwiseConv2d
from cyctr.speed.winograd import WinogradConv2d


def use_winograd(parent: nn.Module) -> None:
    """Replaces, in place, every convolution below `parent` that gains on a CPU."""
    _replace(parent, WinogradConv2d)


def use_depthwise(parent: nn.Module) -> None:
    """Replaces, in place, every depthwise convolution below `parent` that gains."""
    _replace(parent, DepthwiseConv2d)


def _replace(parent: nn.Module, kind: type[WinogradConv2d] | type[DepthwiseConv2d]) -> None:
    for name, child in parent.named_children():
        if kind.applies(child):
            setattr(parent, name, kind(child))  # type: ignore[arg-type]
        else:
            _replace(child, kind)


def fold_batchnorms(parent: nn.Module) -> None:
    """Merges, in place, every frozen BatchNorm below `parent` into the convolution registered right before it."""
    for (first, convolution), (second, norm) in pairwise(list(parent.named_children())):
        if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            if convolution.out_channels != norm.num_features:
                continue
            setattr(parent, first, fuse_conv_bn_eval(convolution, norm))
            after = [getattr(norm, part) for part in ("drop", "act") if hasattr(norm, part)]  # timm's BatchNormAct2d
            setattr(parent, second, nn.Sequential(*after))
    for child in parent.children():
        fold_batchnorms(child)
