"""Rewrites of a frozen network that leave its output as it was and make it faster."""

import copy
from collections.abc import Collection
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cyctr.speed.fast_depthwise import DepthwiseConv2d

REWRITES = ("folded BatchNorms", "depthwise", "channels last")


def rewritten(network: nn.Module, images: Tensor, only: Collection[str] = REWRITES) -> nn.Module:
    """A frozen copy of a network of convolutions with the same output, for inference.

    Args:
        network: gives a list of feature maps.
        images: an example of what it takes. BatchNorms stay where folding them would change what it gives for these.
        only: which of `REWRITES` to apply; fewer are for measuring what each gains.
    """
    fast = copy.deepcopy(network)
    if "folded BatchNorms" in only:
        fold_batchnorms(fast)
        if not _agree(network, fast, images):
            fast = copy.deepcopy(network)
    if "depthwise" in only:
        use_depthwise(fast)
    if "channels last" in only:
        fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fast.requires_grad_(False).eval()


def _agree(one: nn.Module, other: nn.Module, images: Tensor) -> bool:
    exact = torch.backends.cudnn.flags(allow_tf32=False)
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False), exact:
        pairs = zip(one(images), other(images), strict=True)
        return all(bool((a - b).abs().max() <= 1e-3 * (a.abs().max() + 1e-6)) for a, b in pairs)


def use_depthwise(parent: nn.Module) -> None:
    """Replaces, in place, every depthwise convolution below `parent` that gains."""
    for name, child in parent.named_children():
        if DepthwiseConv2d.applies(child):
            setattr(parent, name, DepthwiseConv2d(child))  # type: ignore[arg-type]
        else:
            use_depthwise(child)


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
