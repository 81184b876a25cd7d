"""Changes of single feature levels of a network: which of them learn, and how the deepest one ends."""

import torch
from torch import Tensor, nn

_PROBE = 65  # pixels


def train_levels(body: nn.Module, deepest: int, count: int) -> None:
    """Lets the last levels up to `deepest` learn: every parameter that only they depend on, but for those of BatchNorms.

    Args:
        body: images -> list of feature maps, all frozen.
        deepest: the last level that counts.
        count: how many levels learn; all parameters do where there are no more levels.
    """
    norms = (module for module in body.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    frozen = {id(value) for norm in norms for value in norm.parameters()}
    parameters = [value for value in body.parameters() if id(value) not in frozen]
    body.requires_grad_(True)
    with torch.enable_grad():
        levels = body(torch.zeros(1, 3, _PROBE, _PROBE))
        wanted = _used(levels[deepest], parameters)
        earlier = _used(levels[deepest - count], parameters) if count <= deepest else set()
    body.requires_grad_(False)
    for value in parameters:
        value.requires_grad_(id(value) in wanted - earlier)


def _used(level: Tensor, parameters: list[nn.Parameter]) -> set[int]:
    """The ids of the parameters that a level depends on."""
    found = torch.autograd.grad(level.sum(), parameters, retain_graph=True, allow_unused=True)
    return {id(value) for value, gradient in zip(parameters, found, strict=True) if gradient is not None}


@torch.no_grad()
def remove_last_relu(body: nn.Module, level: int) -> None:
    """Takes away the ReLU that a level ends with; a level that ends otherwise stays as it is."""
    ends: dict[int, str] = {}
    hooks = [
        module.register_forward_hook(lambda _module, _given, made, name=name: ends.__setitem__(id(made), name))
        for name, module in body.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    levels = body(torch.zeros(1, 3, _PROBE, _PROBE))  # alive until the ids are compared
    for hook in hooks:
        hook.remove()
    if id(levels[level]) in ends:
        parent, _, own = ends[id(levels[level])].rpartition(".")
        setattr(body.get_submodule(parent), own, nn.Identity())
