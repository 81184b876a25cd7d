"""Everything that training knows of CyCTR; the other files of this folder work with what these functions give."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import load_backbone
from cyctr.config import Config, LossConfig
from cyctr.episodes.image_store import Store
from cyctr.episodes.sampler import Sampler
from cyctr.methods.cyctr import CyCTR
from cyctr.methods.cyctr.loss import Losses, episode_loss
from cyctr.methods.cyctr.network import TokenCount
from cyctr.seeding import Stream
from cyctr.training.fit_known_classes import OnBatch, choose_images, fit_familiar
from cyctr.types import Episode, Features

Network = CyCTR
Drawn = TokenCount
"""What is drawn for a whole step."""


def build_network(config: Config) -> Network:
    """The untrained network; its first weights are a function of the seed."""
    backbone = load_backbone(config.model.backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return CyCTR(config.model, backbone)


def network_to_test(network: Network, encoder: Backbone, weights: Mapping[str, Tensor]) -> Network:
    """A copy of the network with other trained weights; it shares the encoder where the backbone does not learn."""
    config = network.config
    tested = copy.deepcopy(network) if config.backbone.tuned else CyCTR(config, encoder).to(encoder.mean.device)
    tested.load_state_dict(weights, strict=False)  # all but what is frozen
    tested.backbone.accelerate()
    return tested


def parameter_groups(network: Network) -> dict[str, dict[str, nn.Parameter]]:
    """Every trained parameter by its name, in groups that have rates of their own."""
    groups: dict[str, dict[str, nn.Parameter]] = {"convolutions": {}}
    for name, value in network.named_parameters():
        if value.requires_grad:
            of_transformer = network.config.mixer == "transformer" and name.startswith("mixer.")
            kind = "transformer" if of_transformer else "backbone" if name.startswith("backbone.") else "convolutions"
            groups.setdefault(kind, {})[name] = value
    return groups


def draw(config: Config, step: int) -> Drawn:
    """N_s per shot of a step; one for each layer where each draws its own."""
    model, training = config.model, config.training
    if model.draws_per_layer:
        streams = [Stream("tokens", training.seed, step, layer) for layer in range(model.encoder.layers)]
        return tuple(model.sampling.training_tokens(stream.uniform(), training.shots) for stream in streams)
    return model.sampling.training_tokens(Stream("tokens", training.seed, step).uniform(), training.shots)


def draws_alike(config: Config) -> bool:
    """Whether `draw` gives the same for every step, so that `learn` is worth compiling."""
    return config.model.sampling.training_scale == config.model.sampling.training_scale_many == (1.0, 1.0)


def learn(
    model: Network,
    features: Features,
    images: Tensor,
    labels: Tensor,
    padding: Tensor,
    roles: Tensor,
    seeds: Tensor,
    rotated: bool,
    drawn: Drawn,
    config: LossConfig,
) -> Losses:
    """The losses of the episodes that images make, given their features; arguments as in `Groups`."""
    query, supports = roles[:, 0], roles[:, 1:]
    episode = Episode(images[supports], labels[supports], images[query], labels[query], padding[query], trusted=True)
    of_query = features if rotated else Features(_take(features.mid, query), _take(features.high, query))
    of_supports = Features(_take(features.mid, supports.flatten()), _take(features.high, supports.flatten()))
    return episode_loss(model.match(of_query, of_supports, episode, seeds, drawn), episode, config)


def _take(maps: Tensor, index: Tensor) -> Tensor:
    """(n, C, h, w): some of several maps, as they lie in memory: channels last."""
    return maps.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def recognises(network: Network) -> bool:
    """Whether the network has weights that `recognised` fits."""
    return network.familiar is not None


def recognised(
    network: Network, store: Store, labelled: Sampler, backbone: Backbone, size: int, on_batch: OnBatch | None = None
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
    if network.familiar is None:
        return {}
    rows = torch.zeros_like(network.familiar.weight)
    frequent = sorted(labelled.holders, key=lambda number: (-len(labelled.holders[number]), number))[: len(rows)]
    images = choose_images(labelled.holders, frequent, labelled.key)
    found = fit_familiar(store, labelled.pairs, images, frequent, backbone, size, on_batch)
    rows[: len(found)] = found
    return {"familiar.weight": rows}
