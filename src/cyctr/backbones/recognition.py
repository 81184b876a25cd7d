"""What a backbone's ImageNet weights make of its last features: scores of the 1,000 classes, for a few cells.

Weights come with the classifier they were trained with, which the backbone leaves out. Here it says what a region shows.
"""

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import CATALOGUE, cache

_EPSILON = 1e-3  # of the BatchNorms of EfficientNet-Lite
_MOST = 6.0  # where its ReLU6 ends
_BASES = ("tf_efficientnet_lite", "resnet")  # architectures whose classifier is known here


class Recogniser(nn.Module):
    """The classifier that ImageNet weights come with.

    Attributes:
        widen: (W, C) and (W,) the linear map and shift before the mean over cells; None where there is none.
        classify: (classes, W) and (classes,) the classifier.
    """

    classify: Tensor
    bias: Tensor
    widen: Tensor | None
    shift: Tensor | None

    def __init__(self, classify: Tensor, bias: Tensor, widen: Tensor | None = None, shift: Tensor | None = None) -> None:
        super().__init__()
        parts = {"classify": classify, "bias": bias, "widen": widen, "shift": shift}
        for name, values in parts.items():
            self.register_buffer(name, None if values is None else values.float(), persistent=False)

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor], scale: float) -> Self:
        """The classifier in a state dict with timm's names.

        Args:
            state: of an EfficientNet-Lite or of a ResNet.
            scale: what the backbone multiplies its last features by.
        """
        if "fc.weight" in state:
            return cls(state["fc.weight"].float() / scale, state["fc.bias"])
        factor = state["bn2.weight"].float() / (state["bn2.running_var"].float() + _EPSILON).sqrt()  # (W,)
        widen = state["conv_head.weight"].float()[:, :, 0, 0] * factor[:, None] / scale
        shift = state["bn2.bias"].float() - factor * state["bn2.running_mean"].float()
        return cls(state["classifier.weight"], state["classifier.bias"], widen, shift)

    def describe(self, cells: Tensor) -> Tensor:
        """(..., W) what the classifier takes the mean of, for (..., C) last features of cells."""
        if self.widen is None or self.shift is None:
            return cells.float()
        return (cells.float() @ self.widen.T + self.shift).clamp(0, _MOST)

    def scores(self, described: Tensor) -> Tensor:
        """(..., classes) for (..., W) means of `describe`."""
        return described @ self.classify.T + self.bias


def load_recogniser(backbone: Backbone) -> Recogniser | None:
    """The classifier that a backbone's weights came with; None where its weights are not in the cache, or have none we know."""
    config = backbone.config
    entry = CATALOGUE.get(config.weights or "")
    if entry is None or not entry.architecture.startswith(_BASES) or cache.cached(entry) is None:
        return None
    # the deepest features are not those that it was trained on, or lie on another grid than what was measured
    if config.taps or config.trained or not config.last_relu or config.own_strides:
        return None
    scale = config.scale[2] if config.scale else 1.0
    with torch.no_grad():
        found = Recogniser.of_state(cache.load(entry), scale)
    return found.eval()
