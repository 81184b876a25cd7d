"""How weights move: optimizers of convolutions, transformer and backbone, their schedule, and the moving average."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cyctr.config import OptimizerConfig
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.base import Method


class Optimization:
    """Everything that changes from step to step. All of it is in `state`; the rest is a function of the step's number."""

    def __init__(self, model: Method[Any], config: OptimizerConfig, steps: int) -> None:
        """Starts from the model's weights, which it moves.

        Args:
            model: to train.
            config: rates, decays and schedule.
            steps: of the whole schedule.
        """
        self.config, self.steps = config, steps
        self.weights = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not self.weights:
            raise ConfigError(
                f"nothing of {type(model).__name__} learns under this config; set model.backbone.trained, or test it as it is"
            )
        groups = self._groups(model)
        self._kinds = tuple(groups)
        self._optimizers = {kind: self._optimizer(kind, weights) for kind, weights in groups.items() if weights}
        self._average = {name: value.detach().clone() for name, value in self.weights.items()} if config.average else {}

    def _groups(self, model: Method[Any]) -> dict[str, dict[str, nn.Parameter]]:
        """The trained parameters by the group that the method puts them in, and by name."""
        names = {id(value): name for name, value in self.weights.items()}
        groups = {kind: {names.pop(id(v), ""): v for v in values} for kind, values in model.parameter_groups().items()}
        wrong = [*names.values(), *(f"something else in {kind!r}" for kind, values in groups.items() if "" in values)]
        if wrong:
            raise ConfigError(
                f"{type(model).__name__}.parameter_groups does not hold {wrong[0]} once; expected every trained parameter, once"
            )
        return groups

    def _optimizer(self, kind: str, weights: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Of a group: "transformer" and "backbone" have rates of their own, all others that of the convolutions."""
        config = self.config
        if kind == "transformer":
            return self._adamw(weights, config.transformer_rate, config.transformer_decay)
        if kind == "backbone":
            return self._made(config.backbone, weights, config.backbone_rate, config.backbone_decay)
        rate = config.convolution_rate * config.rate_multiplier
        return self._made(config.convolutions, weights, rate, config.convolution_decay)

    @property
    def _values(self) -> list[Tensor]:
        """The weights of now: a change of their layout in memory may have given them another place."""
        return [value.detach() for value in self.weights.values()]

    @property
    def tested(self) -> dict[str, Tensor]:
        """The weights to test and to save: the moving average, or the last ones."""
        source = self._average or self.weights
        return {name: value.detach() for name, value in source.items()}

    @property
    def finite(self) -> bool:
        """Whether all weights are numbers."""
        largest = torch._foreach_norm(self._values, math.inf)
        return bool(torch.stack(largest).isfinite().all())

    def rates(self, step: int) -> dict[str, float]:
        """The learning rates of a step."""
        config, done = self.config, min(1.0, step / self.steps)
        rising = min(1.0, (step + 1) / max(1.0, config.warm_up * self.steps))
        falling = self._falling(done)
        own = {
            "transformer": config.transformer_rate * rising * (falling if config.transformer_falls else 1.0),
            "backbone": config.backbone_rate * rising * falling,
        }
        usual = config.convolution_rate * config.rate_multiplier * rising * falling
        return {kind: own.get(kind, usual) for kind in self._kinds}

    def _falling(self, done: float) -> float:
        """The share of the full rates that is left when so much of the schedule is done."""
        if self.config.decay == "steps":
            return 0.1 ** sum(done >= share for share in self.config.drops)
        return (1 - done) ** self.config.poly_power if self.config.decay == "poly" else 0.5 * (1 + math.cos(math.pi * done))

    def shown_rates(self, step: int) -> dict[str, float]:
        """The learning rates of a step by their names in the metrics, such as convolution_rate of the group "convolutions"."""
        return {f"{kind.removesuffix('s')}_rate": rate for kind, rate in self.rates(step).items()}

    def step(self, number: int) -> None:
        """Moves the weights along their gradients, which are then gone."""
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.weights.values(), self.config.clip)
        for name, rate in self.rates(number).items():
            if name in self._optimizers:
                for group in self._optimizers[name].param_groups:
                    group["lr"] = rate
                self._optimizers[name].step()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        if self._average:
            keep = min(self.config.average, (1 + number) / (10 + number))  # the first weights are soon forgotten
            torch._foreach_lerp_(list(self._average.values()), self._values, 1 - keep)

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs, by name."""
        found = {f"weights.{name}": value.detach() for name, value in self.weights.items()}
        found |= {f"average.{name}": value for name, value in self._average.items()}
        for kind, optimizer in self._optimizers.items():
            for name, value in self._named(kind):
                for part, tensor in optimizer.state[value].items():
                    if isinstance(tensor, Tensor):
                        found[f"{kind}.{part}.{name}"] = tensor
        return found

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        targets: dict[str, Tensor] = {f"weights.{name}": value for name, value in self.weights.items()}
        targets |= {f"average.{name}": value for name, value in self._average.items()}
        saved = {key for key in state if key.startswith(("weights.", "average."))}
        if differing := sorted(saved ^ targets.keys()):
            key = differing[0]
            how = f"has {key!r}, which this network lacks" if key in saved else f"lacks {key!r}, which this network has"
            raise CheckpointError(f"the saved state {how}; resume with its own config")
        for key, target in targets.items():
            if state[key].shape != target.shape:
                shapes = f"{tuple(state[key].shape)} there, {tuple(target.shape)} in this network"
                raise CheckpointError(f"the saved {key!r} has another shape ({shapes}); restore the run's config.json")
            target.copy_(state[key])
        for kind, optimizer in self._optimizers.items():
            known = dict(self._named(kind))
            for key, tensor in state.items():
                if key.startswith(f"{kind}."):
                    part, _, name = key.removeprefix(f"{kind}.").partition(".")
                    on_device = tensor if part == "step" and not _fused(optimizer) else tensor.to(known[name].device)
                    optimizer.state[known[name]][part] = on_device.clone()

    def _named(self, kind: str) -> Iterable[tuple[str, Tensor]]:
        members = {id(value) for group in self._optimizers[kind].param_groups for value in group["params"]}
        return ((name, value) for name, value in self.weights.items() if id(value) in members)

    def _made(self, way: str, weights: dict[str, nn.Parameter], rate: float, decay: float) -> torch.optim.Optimizer:
        if way == "adamw":
            return self._adamw(weights, rate, decay)
        momentum, fused = self.config.momentum, _on_gpu(weights)
        return torch.optim.SGD(weights.values(), rate, momentum, weight_decay=decay, fused=fused)

    def _adamw(self, weights: dict[str, nn.Parameter], rate: float, decay: float) -> torch.optim.Optimizer:
        if self.config.decay_biases:
            groups = [{"params": list(weights.values()), "weight_decay": decay}]
        else:
            decayed = {name for name, value in weights.items() if value.ndim >= 2 or self._is_decayed_norm(name)}
            flat = [value for name, value in weights.items() if name not in decayed]
            wide = [value for name, value in weights.items() if name in decayed]
            groups = [{"params": wide, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, rate, fused=_on_gpu(weights))

    def _is_decayed_norm(self, name: str) -> bool:
        """Whether it is the weight of a norm, and those are to decay."""
        return self.config.decay_norms and "norm" in name and name.endswith(".weight")


def _on_gpu(weights: Mapping[str, Tensor]) -> bool:
    return all(value.device.type == "cuda" for value in weights.values())


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("fused") for group in optimizer.param_groups)
