"""What of a backbone may learn: the singular values of its convolutions, a few thousand numbers in all."""

from typing import Any

import torch
from torch import Tensor, nn

SPECTRUM = ".spectrum"
"""How the names of what learns end."""


class SpectralConv2d(nn.Conv2d):
    """A convolution whose singular values learn, and whose singular vectors do not (Sun et al., "Singular Value Fine-tuning").

    `spectrum` holds a factor for each singular value, one to begin with: then it computes what the plain convolution does, to
    the bit. The vectors come from the weights in double precision: every machine finds the same.

    Attributes:
        spectrum: (rank,) the factors.
        left: (out, rank) singular vectors of the outputs, times their values where there are more outputs than inputs.
        right: (rank, in * kernel) those of the inputs, else times their values.
    """

    spectrum: nn.Parameter
    left: Tensor | None
    right: Tensor | None

    def __init__(self, layer: nn.Conv2d) -> None:
        """Takes over the weights of a layer."""
        super().__init__(**_form(layer))
        self.weight, self.bias = layer.weight, layer.bias
        self.spectrum = nn.Parameter(torch.ones(min(layer.out_channels, layer.weight[0].numel())))
        self.forget()
        self.train(layer.training)

    def forget(self) -> None:
        """Forgets the singular vectors, because the weights have changed."""
        self.register_buffer("left", None, persistent=False)
        self.register_buffer("right", None, persistent=False)

    def factorise(self) -> None:
        """Finds the singular vectors, where the weights are, and keeps them."""
        with torch.inference_mode(False):  # tensors made in that mode could never learn
            self.left, self.right = self._vectors()

    @torch.no_grad()
    def _vectors(self) -> tuple[Tensor, Tensor]:
        flat = self.weight.clone().flatten(1).double()  # (out, in * kernel)
        tall = flat.shape[0] > flat.shape[1]
        vectors = torch.linalg.eigh(flat.T @ flat if tall else flat @ flat.T).eigenvectors
        left, right = (flat @ vectors, vectors.T) if tall else (vectors, vectors.T @ flat)
        return left.to(self.weight.dtype), right.to(self.weight.dtype)

    def learned(self) -> Tensor:
        """The weights with the singular values of now."""
        if self.left is None and not torch.compiler.is_compiling():  # which must not change the network
            self.factorise()
        left, right = (self.left, self.right) if self.left is not None and self.right is not None else self._vectors()
        with torch.autocast(self.weight.device.type, enabled=False):
            change = (left * (self.spectrum - 1)) @ right
        return self.weight + change.view_as(self.weight)

    def forward(self, maps: Tensor) -> Tensor:
        return self._conv_forward(maps, self.learned(), self.bias)

    @torch.no_grad()
    def plain(self) -> nn.Conv2d:
        """An ordinary convolution that computes the same."""
        unchanged = bool((self.spectrum == 1).all())
        weight = self.weight if unchanged else self.learned()
        made = nn.Conv2d(**_form(self))
        made.weight, made.bias = nn.Parameter(weight.detach(), requires_grad=False), self.bias
        return made.train(self.training)


def _form(layer: nn.Conv2d) -> dict[str, Any]:
    """What makes a convolution like this one, without weights."""
    same = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
    weightless = {"bias": layer.bias is not None, "device": "meta"}  # takes no memory, and draws no random number
    return {name: getattr(layer, name) for name in same} | weightless


def tune(parent: nn.Module) -> None:
    """Lets the convolutions of a frozen network learn, but for those that look at pixels or at each channel by itself."""
    for name, child in parent.named_children():
        if type(child) is nn.Conv2d and child.in_channels > 3 and child.groups == 1 and child.padding_mode == "zeros":
            setattr(parent, name, SpectralConv2d(child))
        else:
            tune(child)


def settle(parent: nn.Module) -> None:
    """Makes ordinary convolutions of those that learn."""
    for name, child in parent.named_children():
        if isinstance(child, SpectralConv2d):
            setattr(parent, name, child.plain())
        else:
            settle(child)


def factorise(parent: nn.Module) -> None:
    """Finds the singular vectors of all convolutions that learn."""
    for layer in parent.modules():
        if isinstance(layer, SpectralConv2d):
            layer.factorise()
