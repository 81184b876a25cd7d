"""Where to compute."""

import torch

from cyctr.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch sees no CUDA here; use --device cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"device is {name!r}; expected cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; expected auto, cpu, cuda or cuda:N")
    return device
