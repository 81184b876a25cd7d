"""The networks that a backbone can be, in the form that its config asks for."""

import difflib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyctr import compat
from cyctr.backbones.blocks import BlockBody
from cyctr.backbones.tiny import TinyBody
from cyctr.config import BackboneConfig
from cyctr.errors import ConfigError

STRIDE = 8
"""The coarsest that maps on one grid may be, in pixels."""
_CANNOT = (TypeError, AssertionError, RuntimeError, AttributeError, ValueError)
"""How timm says that it cannot make a network in some form."""
_PLAIN_LAYERS = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def create_body(config: BackboneConfig) -> tuple[nn.Module, Any, Any]:
    """A network that maps normalised images to a list of feature maps, with the mean and std it was trained for.

    It has the form that the config asks for, random weights, and is in evaluation mode.
    """
    body: Any
    name = config.architecture
    if name == "tiny":
        body, defaults = TinyBody(config.own_strides), {}
    else:
        _check_name(config)
        body = _plain(name) if config.own_strides else _dilated(name)
        defaults = body.default_cfg
    if config.stride_in_1x1:
        _move_strides(body, name)
    if config.dilates_first:
        _dilate_first_blocks(body, name)
    body.eval()
    if config.blocks:
        body = BlockBody(body, name, config.last_relu)
    return body, defaults.get("mean", _IMAGENET_MEAN), defaults.get("std", _IMAGENET_STD)


def _dilated(name: str) -> Any:
    """A network of timm whose maps have at most stride 8, where it can be dilated."""
    try:
        return compat.timm().create_model(name, features_only=True, output_stride=STRIDE)
    except _CANNOT:
        body = _plain(name)
        if all(isinstance(layer, _PLAIN_LAYERS) for layer in body.children()):
            _dilate(body)
        return body


def _plain(name: str) -> Any:
    """A network of timm as it was trained."""
    try:
        return compat.timm().create_model(name, features_only=True)
    except _CANNOT as error:
        raise ConfigError(f"backbone.name is {name!r}, which gives no feature maps ({error}); choose another") from error


def _check_name(config: BackboneConfig) -> None:
    timm, name = compat.timm(), config.name
    if config.deep_stem and not timm.is_model(config.architecture):
        raise ConfigError(
            f"backbone.deep_stem is true and backbone.name is {name!r}, which has no such form; set deep_stem to false"
        )
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists them"
        raise ConfigError(f"backbone.name is {name!r}; expected 'tiny' or the name of a timm network: {hint}")


def _dilate(body: nn.Module) -> None:
    """Keeps a plain chain of layers (VGG) at stride 8: later pools stop striding, later convolutions are dilated."""
    stride = dilation = 1
    for name, layer in body.named_children():
        if isinstance(layer, nn.MaxPool2d):
            if stride < STRIDE:
                stride *= 2
            else:
                setattr(body, name, _DensePool(dilation))
                dilation *= 2
        elif isinstance(layer, nn.Conv2d) and dilation > 1:
            layer.dilation = (dilation, dilation)
            layer.padding = (dilation, dilation)  # they are all 3x3


class _DensePool(nn.Module):
    """A 2x2 maximum at every cell instead of every second one."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation

    def forward(self, maps: Tensor) -> Tensor:
        padded = F.pad(maps, (0, self.dilation, 0, self.dilation), value=-torch.inf)
        return F.max_pool2d(padded, 2, stride=1, dilation=self.dilation)


def _move_strides(body: nn.Module, name: str) -> None:
    """Moves the stride of each stage from the 3x3 to the 1x1 convolution of its first block, as in the original ResNet."""
    for first, *_ in _bottleneck_stages(body, name, "stride_in_1x1"):
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride


def _dilate_first_blocks(body: nn.Module, name: str) -> None:
    """Dilates the first block of each stage like its others.

    timm dilates it like the stage before, which is right where a stage's stride sits in the 3x3 convolution. Where it sits in
    the 1x1 before it, only this computes at every 2nd or 4th cell what the undilated network does.
    """
    for first, second, *_ in _bottleneck_stages(body, name, "dilate_first"):
        first.conv2.dilation, first.conv2.padding = second.conv2.dilation, second.conv2.padding


def _bottleneck_stages(body: nn.Module, name: str, setting: str) -> list[Any]:
    """The stages of a ResNet, each a chain of blocks."""
    stages = [stage for stage in body.children() if isinstance(stage, nn.Sequential) and hasattr(stage[0], "conv3")]
    if not stages:
        raise ConfigError(
            f"backbone.{setting} is set for {name}; only ResNets with bottleneck blocks have that form: set it to false"
        )
    return stages
