"""What is asked for -> the parts of a training run, checked and ready to turn."""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import require_named_weights
from cyctr.datasets.dataset import Dataset, OnProgress
from cyctr.datasets.index import Index
from cyctr.episodes.image_store import Store, open_store
from cyctr.episodes.sampler import Sampler
from cyctr.episodes.training_batches import TrainingEpisodes, groups_of_part
from cyctr.evaluation.protocol import Evaluation
from cyctr.methods.base import Losses
from cyctr.methods.table import find_method
from cyctr.training.latent_classes import Latent, add_latent_classes
from cyctr.training.network import Network, backbone_learns, build_network, learn
from cyctr.training.optimiser import Optimization
from cyctr.training.plan import Plan, advising_on_memory, with_held_out, with_length
from cyctr.training.state import Standing, Start, describe_data, require_same
from cyctr.training.validation import open_validation
from cyctr.types import Features


@dataclass(frozen=True, eq=False)
class Parts:
    """What a run is made of.

    Attributes:
        plan: what was asked for, with the lengths and held-out classes that the data decide.
        data: which classes are learned from, validated and tested on.
        dataset: with latent classes where those are learned from.
        network: that learns.
        encoder: the backbone as it is at first, for speed; it stays so unless it learns.
        store: all images.
        labelled: draws episodes of the labelled classes.
        episodes: what each step learns from.
        optimization: moves the weights, and holds their state.
        validation: episodes to validate on, or none.
        latent: where latent classes were found, unless an earlier session kept that.
        start: where this session begins.
        encode: images -> features, compiled where that is worth it.
        learn: features and labels -> losses, likewise.
    """

    plan: Plan
    data: dict[str, Any]
    dataset: Dataset
    network: Network
    encoder: Backbone
    store: Store
    labelled: Sampler
    episodes: TrainingEpisodes
    optimization: Optimization
    validation: Evaluation | None
    latent: Latent | None
    start: Start
    encode: Callable[[Tensor], Features]
    learn: Callable[..., Losses]


def prepare(
    plan: Plan,
    progress: OnProgress | None = None,
    mining: OnProgress | None = None,
    store: Store | None = None,
    validation: Evaluation | None = None,
) -> Parts:
    """The parts of a run. Everything is checked before the first image is read; nothing is written.

    Args:
        plan: what is asked for.
        progress: told while masks, then images, are read.
        mining: told while latent classes are looked for.
        store: where several runs share what they have read, all images of this one.
        validation: likewise, of the same split.
    """
    with advising_on_memory(plan):
        checked = _check(plan, progress)
        plan, index, labelled = checked.plan, checked.index, checked.labelled
        validation = validation or (open_validation(plan, progress) if plan.world.leads else None)
        network = build_network(plan.config, find_method(plan.method)).to(plan.device)
        optimization = Optimization(network, plan.config.optimizer, plan.config.training.steps)  # refuses what cannot learn
        encoder = copy.deepcopy(network.backbone).accelerate()
        store = store or _open_store(plan, index, labelled, progress)
        found = add_latent_classes(plan, store, index, labelled, network.backbone, encoder, mining)
        episodes = TrainingEpisodes(found.store, found.sampler, plan.config.training, plan.device)
        start = _restore(checked, optimization)
        encode, learning = _functions(plan, network, encoder, episodes)
        return Parts(
            plan=plan,
            data=describe_data(plan.dataset, plan.fold),
            dataset=found.dataset,
            network=network,
            encoder=encoder,
            store=store,
            labelled=labelled,
            episodes=episodes,
            optimization=optimization,
            validation=validation,
            latent=found.fresh,
            start=start,
            encode=encode,
            learn=learning,
        )


@dataclass(frozen=True, eq=False)
class _Checked:
    """A plan that can be carried out, and what was read to know it: no image yet.

    Attributes:
        plan: with the lengths and held-out classes that the data decide.
        index: of the masks.
        labelled: draws episodes of the training classes.
        sessions: the earlier ones of a run that is resumed.
        kept: its state.
    """

    plan: Plan
    index: Index
    labelled: Sampler
    sessions: list[Any]
    kept: tuple[dict[str, Tensor], Standing] | None


def _check(plan: Plan, progress: OnProgress | None) -> _Checked:
    """Refuses what cannot be carried out."""
    require_named_weights(plan.config.model.backbone)
    if plan.options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch looks at its first product, and never again
    plan = replace(plan, dataset=with_held_out(plan.dataset, plan.fold, plan.config.training.hold_out))
    index = plan.dataset.pool("train").index(progress)
    labelled = draw_labelled(plan, index)  # refuses shots that the data cannot give
    plan = with_length(plan, len(labelled.images))
    sessions = _earlier_sessions(plan) if plan.resume else []
    kept = plan.world.share(plan.folder.load_state) if plan.resume else None
    groups_of_part(plan.config.training, plan.world.size, plan.options.accumulate)  # refuses what cannot be shared
    return _Checked(plan, index, labelled, sessions, kept)


def _restore(checked: _Checked, optimization: Optimization) -> Start:
    """Where the session begins; the optimization takes back what an earlier one kept."""
    if checked.kept is None:
        return Start(sessions=checked.sessions)
    tensors, standing = checked.kept
    optimization.restore(tensors)
    plan = checked.plan
    return Start(standing, checked.sessions, plan.world.share(lambda: plan.folder.seconds(standing.step)), saved=True)


def draw_labelled(plan: Plan, index: Index) -> Sampler:
    """Draws episodes of the training classes."""
    training = plan.config.training
    key = (training.shots, training.seed, training.order)
    return Sampler(plan.dataset, index, plan.fold, "train", *key, drop_novel=training.drop_novel)


def _earlier_sessions(plan: Plan) -> list[Any]:
    """The sessions of the run in the folder, refused where it learns otherwise."""
    found = plan.world.share(plan.folder.read_config)
    require_same(found, plan.about, plan.folder.path)
    return found.get("sessions", [])


def _open_store(plan: Plan, index: Index, labelled: Sampler, progress: OnProgress | None) -> Store:
    pool, options = plan.dataset.pool("train"), plan.options
    longest = plan.config.training.augmentation.longest
    return open_store(pool, index, labelled.pairs, plan.device, longest, options.resident, options.workers, progress)


def _functions(
    plan: Plan, network: Network, encoder: Backbone, episodes: TrainingEpisodes
) -> tuple[Callable[[Tensor], Features], Callable[..., Losses]]:
    """What makes features and what makes losses, compiled where that is worth it."""
    encode: Callable[[Tensor], Features] = network.backbone.learning() if backbone_learns(network) else encoder
    if not plan.compiles:
        return encode, learn
    episodes.compile()
    # a new number of tokens would be compiled again
    learning = torch.compile(learn, dynamic=False) if network.draws_alike else learn
    return torch.compile(encode, dynamic=False), learning
