"""A name or a checkpoint -> something that answers episodes on a device."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from cyctr import pretrained
from cyctr.backbones.weights import CATALOGUE
from cyctr.checkpoint import describe_checkpoint, load_checkpoint, load_model
from cyctr.config import BackboneConfig, Recipe, from_dict, to_dict
from cyctr.devices import choose_device
from cyctr.errors import ConfigError
from cyctr.images.edges import BENCHMARK_RADIUS, follow_edges
from cyctr.methods.base import Method, find_method, name_of, query_size
from cyctr.methods.recipes import recipes_of
from cyctr.methods.references import REFERENCES, check_reference, reference
from cyctr.methods.table import METHODS, USUAL
from cyctr.types import Episode, Features, Prediction

_PIXELS = ("support_images", "support_labels", "query_images", "query_padding")
Precision = Literal["auto", "float32", "bfloat16"]
R = TypeVar("R", bound=Recipe)


def check_method(name: str, weights: str, device: str, precision: str) -> None:
    """Raises what `open_method` would, as far as that can be known without loading anything."""
    half_of(choose_device(device), precision)
    if name.partition(":")[0] in REFERENCES:
        check_reference(name)
        backbone_of(weights)
    elif is_class(name):
        find_method(name)
        backbone_of(weights)
    elif name in METHODS:
        raise ConfigError(f"method is {name!r}, which learns; expected the path of a checkpoint that a training of it has made")
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
    if name.partition(":")[0] in REFERENCES:
        config = backbone_of(weights)
        network: nn.Module = reference(name, config, device)
        if any(True for _ in network.parameters()):
            about["backbone"] = to_dict(config)
        about |= {part: getattr(network, part) for part in ("threshold", "level") if hasattr(network, part)}
    elif is_class(name):
        config = backbone_of(weights)
        network = open_untrained(name, config).to(device).accelerate()
        about["backbone"] = to_dict(config)
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


def is_class(name: str) -> bool:
    """Whether a name is that of a class, as package.module:Class; a reference has a colon before a variant."""
    return ":" in name and name.partition(":")[0] not in REFERENCES and not Path(name).is_file()


def open_untrained(name: str, backbone: BackboneConfig) -> Method[Any]:
    """A method of one's own that learns nothing, on a backbone with its weights."""
    kind = find_method(name)
    config = recipes_of(name).preset()
    taps = config.model.backbone.taps
    backbone = replace(backbone, taps=taps if taps is not None and taps[0] < 0 else None)
    method = load_model(replace(config, model=replace(config.model, backbone=backbone)), kind)
    if learns := method.parameter_count().trained:
        raise ConfigError(f"method is {name!r}, which learns {learns:,} numbers; expected the path of a checkpoint of it")
    return method


def backbone_of(weights: str) -> BackboneConfig:
    """The backbone that weights of the catalogue, or "tiny", are made for."""
    if weights in CATALOGUE:
        return BackboneConfig(CATALOGUE[weights].architecture, weights)
    if weights == "tiny":
        return BackboneConfig("tiny")
    raise ConfigError(
        f"weights is {weights!r}; expected a name of `cyctr weights list`: {', '.join(CATALOGUE)}, or tiny; "
        "model.backbone.weights takes files"
    )


def with_weights(config: R, weights: str) -> R:
    """The same network and recipe on another backbone, that of weights of the catalogue, which learns where the other did.

    Where the weights are those that the network has, nothing changes; where they are others of the same architecture, its
    form stays. A recipe that has an offset gets that of the other weights.
    """
    own, other = config.model.backbone, backbone_of(weights)
    if weights == own.weights:
        return config
    offset = CATALOGUE[weights].offset if own.offset is not None and weights in CATALOGUE else None
    taps = own.taps if own.taps is not None and own.taps[0] < 0 else None  # others are numbers of the other network
    other = replace(other, taps=taps, tuned=own.tuned, trained=own.trained, last_relu=own.last_relu, offset=offset)
    return replace(config, model=replace(config.model, backbone=other))


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
    if name.partition(":")[0] in REFERENCES or is_class(name):
        return None
    size: int = describe_checkpoint(pretrained.find(name))[0].training.augmentation.size
    return size
