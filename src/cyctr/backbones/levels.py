"""Changes of single feature levels of a network: which of them learn, and how the deepest one ends."""

import copy

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
    with torch.inference_mode(False), torch.enable_grad():  # what is made in inference mode has no gradients to follow
        twin = copy.deepcopy(body).requires_grad_(True)
        parameters = dict(twin.named_parameters())
        levels = twin(torch.zeros(1, 3, _PROBE, _PROBE))
        wanted = _used(levels[deepest], parameters)
        if count <= deepest:
            wanted -= _used(levels[deepest - count], parameters)
    norms = [name for name, module in body.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for name, value in body.named_parameters():
        value.requires_grad_(name in wanted and name.rpartition(".")[0] not in norms)


def _used(level: Tensor, parameters: dict[str, nn.Parameter]) -> set[str]:
    """The names of the parameters that a level depends on."""
    found = torch.autograd.grad(level.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    return {name for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


@torch.no_grad()
def remove_last_relu(body: nn.Module, level: int) -> bool:
    """Takes away the ReLU that a level ends with, and says whether there was one; otherwise the level stays as it is."""
    ends: dict[int, str] = {}
    hooks = [
        module.register_forward_hook(lambda _module, _given, made, name=name: ends.__setitem__(id(made), name))
        for name, module in body.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    levels = body(torch.zeros(1, 3, _PROBE, _PROBE))  # alive until the ids are compared
    for hook in hooks:
        hook.remove()
    end = ends.get(id(levels[level]))
    if end is None:
        return False
    parent, _, own = end.rpartition(".")
    setattr(body.get_submodule(parent), own, nn.Identity())
    return True
