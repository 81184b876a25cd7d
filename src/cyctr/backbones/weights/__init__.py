"""Pretrained backbones: a catalogue, a user cache, and the way from a configuration to a loaded network."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from cyctr import compat
from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import cache, convert
from cyctr.backbones.weights.catalogue import CATALOGUE, REFINERS, Entry, find
from cyctr.backbones.weights.files import read_state
from cyctr.config import BackboneConfig
from cyctr.errors import WeightsError

__all__ = ["CATALOGUE", "INSIDE", "REFINERS", "Entry", "find", "load_backbone"]

INSIDE = "inside"
"""The `backbone.weights` of a checkpoint that holds its backbone."""
_TIMM = "timm:"
Triple = tuple[float, float, float]


def load_backbone(config: BackboneConfig) -> Backbone:
    """The backbone of a configuration with the weights it names, or random ones where it names none.

    `config.weights` is a name of the catalogue (its settings, such as where strides sit, are then honoured),
    'timm:TAG' for one of timm's own pretrained tags, or a file with torchvision's or timm's names.
    """
    if config.weights is None:
        return Backbone(config)
    if config.weights == INSIDE:
        raise WeightsError(
            f"backbone.weights is {INSIDE!r}, as of a checkpoint that holds its backbone; load_checkpoint reads that: give a "
            "name of `cyctr weights list`, 'timm:TAG' or a file here"
        )
    if config.weights in CATALOGUE:
        entry = find(config.weights)
        if config.architecture != entry.architecture:
            shallow = ", and backbone.deep_stem to false" if config.deep_stem else ""
            raise WeightsError(
                f"backbone.weights is {entry.name!r}, made for {entry.architecture}, "
                f"but backbone.name is {config.architecture!r}; set backbone.name to {entry.architecture!r}{shallow}"
            )
        own = {name: value for name in ("mean", "std", "scale", "offset") if (value := getattr(config, name)) is not None}
        return Backbone(replace(config, **{**entry.settings, **own})).load(cache.load(entry))
    if config.weights.startswith(_TIMM):
        state, mean, std = _from_timm(config.weights.removeprefix(_TIMM))
        return Backbone(replace(config, mean=config.mean or mean, std=config.std or std)).load(state)
    return Backbone(config).load(_from_file(config.weights, config.architecture))


def _from_file(file: str, architecture: str) -> dict[str, Tensor]:
    path = Path(file)
    if not path.exists():
        raise WeightsError(f"backbone.weights is {file!r}; expected a file, 'timm:TAG' or one of {', '.join(CATALOGUE)}")
    state = read_state(path)
    return state if architecture == "tiny" else convert.to_timm_names(state, architecture)


def _from_timm(tag: str) -> tuple[dict[str, Tensor], Triple, Triple]:
    """The state dict of one of timm's pretrained tags, and the mean and std its images need."""
    timm = compat.timm()
    if not timm.is_model_pretrained(tag):
        raise WeightsError(
            f"backbone.weights is 'timm:{tag}'; timm has no pretrained weights of that name: see timm.list_pretrained()"
        )
    try:
        network = timm.create_model(tag, pretrained=True)
    except Exception as error:  # whatever the hub's client raises when it cannot reach it
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        raise WeightsError(f"'timm:{tag}' could not be fetched ({reason}); check the network, or give a local file") from error
    return network.state_dict(), network.pretrained_cfg["mean"], network.pretrained_cfg["std"]
