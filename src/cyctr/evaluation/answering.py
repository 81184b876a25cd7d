"""A name or a checkpoint -> something that answers episodes on a device."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cyctr import pretrained
from cyctr.checkpoint import describe_checkpoint, load_checkpoint
from cyctr.config import from_dict, to_dict
from cyctr.devices import choose_device
from cyctr.errors import ConfigError
from cyctr.images.edges import BENCHMARK_RADIUS, follow_edges
from cyctr.methods.backbone_choice import backbone_of
from cyctr.methods.base import Method, query_size
from cyctr.methods.recipes import recipes_of
from cyctr.methods.references import CONSTANTS, REFERENCES, Constant
from cyctr.methods.table import METHODS, USUAL, name_of
from cyctr.methods.untrained import check_untrained, is_untrained, open_untrained
from cyctr.types import Episode, Features, Prediction

_PIXELS = ("support_images", "support_labels", "query_images", "query_padding")
Precision = Literal["auto", "float32", "bfloat16"]


def check_method(name: str, weights: str, device: str, precision: str) -> None:
    """Raises what `open_method` would, as far as that can be known without loading anything."""
    half_of(choose_device(device), precision)
    if name in CONSTANTS:
        backbone_of(weights)
    elif is_untrained(name) or name in METHODS:
        check_untrained(name, weights)
    elif name not in pretrained.NAMES and not Path(name).is_file():
        known = ", ".join((*REFERENCES, *pretrained.NAMES))
        raise ConfigError(
            f"method is {name!r}; expected {known}, or the path of a checkpoint; a method of your own that learns nothing is "
            "named package.module:Class"
        )


class NetworkMethod:
    """A network on a device, in a precision; remembers features where its caller does."""

    def __init__(self, network: nn.Module, device: torch.device, half: bool, flip: bool = False, edges: bool = False) -> None:
        """Moves the network to the device.

        Args:
            network: answers episodes.
            device: where.
            half: in bfloat16, where that is safe.
            flip: the mean of what it answers to an episode and to its mirror image.
            edges: answers follow the edges of the query.
        """
        self.network, self.device, self.half = network.to(device).eval(), device, half
        self.flip, self.edges = flip, edges

    def __call__(self, episode: Episode) -> Prediction:
        """The answer to an episode."""
        with self._precision():
            prediction = self.network(episode)
            if self.flip:
                prediction = _mean(prediction, self.network(_mirrored(episode)))
            return self._finished(prediction, episode)

    @property
    def encodes(self) -> bool:
        """Whether the network has a backbone whose features may be made once for each image."""
        return isinstance(self.network, Method)

    @property
    def _method(self) -> Method[Any]:
        assert isinstance(self.network, Method)
        return self.network

    def encode(self, images: Tensor) -> Features:
        """What the backbone says of (B, 3, H, W) images, and behind that, in more channels, of their mirror images."""
        with self._precision():
            found = self._method.backbone(images)
            return Features.join([found, self._method.backbone(images.flip(-1))], 1) if self.flip else found

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        """The answer to an episode whose features `encode` made; those of the support are (B * K, C, h, w)."""
        with self._precision():
            if not self.flip:
                return self._finished(self._matched(query, support, episode), episode)
            (query, mirrored_query), (support, mirrored_support) = _halves(query), _halves(support)
            mirrored = self._matched(mirrored_query, mirrored_support, _mirrored(episode))
            return self._finished(_mean(self._matched(query, support, episode), mirrored), episode)

    def _matched(self, query: Features, support: Features, episode: Episode) -> Prediction:
        encoded = self._method.encode_support(support, episode.support_labels)
        return self._method.predict(query, encoded, query_size(episode), episode.query_padding)

    def _finished(self, prediction: Prediction, episode: Episode) -> Prediction:
        """The answer as it is, or with the edges of the query."""
        return along_edges(prediction, episode.query_images) if self.edges else prediction

    def _precision(self) -> AbstractContextManager[object]:
        if self.half:
            return torch.autocast(self.device.type, torch.bfloat16)
        # float32 means it: torch would round the inputs of convolutions on a GPU to TF32
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def along_edges(prediction: Prediction, images: Tensor) -> Prediction:
    """The answers to (B, 3, S, S) images with the edges of those."""
    with torch.autocast(images.device.type, enabled=False):
        odds = torch.logit(follow_edges(images, prediction.probability, radius=BENCHMARK_RADIUS), eps=1e-4)
    return Prediction(torch.stack([torch.zeros_like(odds), odds], 1))


def _mirrored(episode: Episode) -> Episode:
    """The same, left and right exchanged."""
    own = {name: getattr(episode, name) for name in _PIXELS}
    return replace(episode, **{name: value.flip(-1) for name, value in own.items() if value is not None})


def _mean(prediction: Prediction, mirrored: Prediction) -> Prediction:
    """Of the answers to an episode and to its mirror image."""
    return Prediction((prediction.logits + mirrored.logits.flip(-1)) / 2)


def _halves(features: Features) -> tuple[Features, Features]:
    """Of images, and of their mirror images."""
    return features.changed(lambda maps: maps.chunk(2, 1)[0]), features.changed(lambda maps: maps.chunk(2, 1)[1])


def open_method(
    name: str, weights: str, device: torch.device, precision: Precision = "auto", flip: bool = False, edges: bool = False
) -> tuple[NetworkMethod, dict[str, Any]]:
    """A method ready to answer, and what decides its answers.

    Args:
        name: one of the training-free references, a network that comes with the package, or the path of a checkpoint.
        weights: of the references' backbone: a name of the catalogue.
        device: where it runs.
        precision: "auto" is bfloat16 on a GPU and float32 elsewhere.
        flip: average the answers to each episode and to its mirror image.
        edges: let answers follow the edges of the query.
    """
    half = half_of(device, precision)
    about: dict[str, Any] = {"name": name, "precision": "bfloat16" if half else "float32"}
    network: nn.Module
    if name in CONSTANTS:
        network = Constant(name == "foreground")
    elif is_untrained(name):
        network = method = open_untrained(name, weights).to(device).accelerate()
        about["backbone"] = to_dict(method.config.backbone)
        about |= {part: getattr(method.config, part) for part in ("threshold", "level") if hasattr(method.config, part)}
    else:
        path = pretrained.find(name)
        network, about["checkpoint"] = _from_checkpoint(path, device)
        about["name"] = path.stem
    about |= {option: True for option, wanted in (("flip", flip), ("edges", edges)) if wanted}
    return NetworkMethod(network, device, half, flip, edges), about


def half_of(device: torch.device, precision: str) -> bool:
    """Whether to compute in bfloat16: "auto" does on a GPU."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision is {precision!r}; expected auto, float32 or bfloat16")
    return device.type == "cuda" if precision == "auto" else precision == "bfloat16"


def in_this_version(about: Mapping[str, Any]) -> dict[str, Any]:
    """What earlier results say of a method, with the fields that its configs have now; unchanged where they cannot be read."""
    checkpoint = dict(about.get("checkpoint", {}))
    try:
        kind = type(recipes_of(str(checkpoint.get("method", USUAL))).kind().model)
        checkpoint["model"] = plain(to_dict(from_dict(kind, checkpoint["model"])))
    except (ConfigError, KeyError):
        return dict(about)
    return {**about, "checkpoint": checkpoint}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON gives them back: tuples are lists."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _from_checkpoint(path: Path, device: torch.device) -> tuple[nn.Module, dict[str, Any]]:
    network, config = load_checkpoint(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    about = {"sha256": digest, "model": to_dict(config.model)}
    if (name := name_of(type(network))) != USUAL:
        about["method"] = name
    if data := describe_checkpoint(path)[1]:
        about["data"] = data
    return network.to(device).accelerate(), about  # in this order: what is faster depends on the device


def input_size(name: str) -> int | None:
    """Height and width of what a checkpoint learned from; none for a reference, which has learned nothing."""
    if is_untrained(name):
        return None
    size: int = describe_checkpoint(pretrained.find(name))[0].training.augmentation.size
    return size
