"""What training asks of a method: to be built, to learn from groups of images, and to know its classes by name."""

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import load_backbone
from cyctr.config import Recipe
from cyctr.episodes.image_store import Store
from cyctr.episodes.sampler import Sampler
from cyctr.methods.base import KnowsClasses, Losses, Method, Step
from cyctr.training.fit_known_classes import OnImages, choose_images, fit_familiar
from cyctr.types import Episode, Features

Network = Method[Any]


def build_network(config: Recipe, kind: type[Network]) -> Network:
    """The untrained network; its first weights are a function of the seed."""
    backbone = load_backbone(config.model.backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return kind.build(config, backbone)


def network_to_test(network: Network, config: Recipe, encoder: Backbone, weights: Mapping[str, Tensor]) -> Network:
    """A copy of the network with other trained weights; it shares the encoder where the backbone does not learn."""
    if backbone_learns(network):
        tested = copy.deepcopy(network)
    else:
        tested = type(network).build(config, encoder).to(encoder.mean.device)
    tested.load_state_dict(weights, strict=False)  # all but what is frozen
    tested.backbone.accelerate()
    return tested


def backbone_learns(network: Network) -> bool:
    """Whether any part of the backbone is trained."""
    return any(value.requires_grad for value in network.backbone.parameters())


def learn(
    model: Network,
    features: Features,
    images: Tensor,
    labels: Tensor,
    padding: Tensor,
    roles: Tensor,
    seeds: Tensor,
    rotated: bool,
    drawn: Hashable,
) -> Losses:
    """The losses of the episodes that images make, given their features; arguments as in `Groups`."""
    query, supports = roles[:, 0], roles[:, 1:]
    episode = Episode(images[supports], labels[supports], images[query], labels[query], padding[query], trusted=True)
    of_query = features if rotated else features.changed(lambda maps: _take(maps, query))
    of_supports = features.changed(lambda maps: _take(maps, supports.flatten()))
    return model.learn(episode, of_query, of_supports, Step(seeds, drawn))


def _take(maps: Tensor, index: Tensor) -> Tensor:
    """(n, C, h, w): some of several maps, as they lie in memory: channels last."""
    return maps.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def recognises(network: Network) -> bool:
    """Whether the network has weights that `recognised` fits."""
    return isinstance(network, KnowsClasses) and network.known_classes > 0


def recognised(
    network: Network, store: Store, labelled: Sampler, backbone: Backbone, size: int, on_batch: OnImages | None = None
) -> dict[str, Tensor]:
    """What recognises the training classes, by its name in the network; the most frequent where there are more than rows.

    No trained weight depends on it: it is made for a test, or for a checkpoint that stays.

    Args:
        network: whose rows are filled.
        store: where the images are.
        labelled: the training classes and their images.
        backbone: of the weights to test.
        size: of the network's input.
        on_batch: called before each batch of the images that it is fitted to.
    """
    if not (isinstance(network, KnowsClasses) and network.known_classes):
        return {}
    frequent = sorted(labelled.holders, key=lambda number: (-len(labelled.holders[number]), number))[: network.known_classes]
    images = choose_images(labelled.holders, frequent, labelled.key)
    return network.knowing(fit_familiar(store, labelled.pairs, images, frequent, backbone, size, on_batch))
