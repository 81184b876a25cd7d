"""Latent classes of a run: as an earlier session found them, else looked for; and the episodes that have them."""

import hashlib
import json
from dataclasses import dataclass, replace

import torch

from cyctr.backbones.backbone import Backbone
from cyctr.checkpoint import weights_digest
from cyctr.config import to_dict
from cyctr.datasets.dataset import Dataset, OnProgress
from cyctr.datasets.index import Index
from cyctr.episodes.image_store import Store
from cyctr.episodes.latent import LatentStore, MixedSampler, Regions, latent_names, latent_sampler
from cyctr.episodes.sampler import Sampler
from cyctr.seeding import Stream
from cyctr.training.find_latent import mine
from cyctr.training.plan import Plan

_LATENT_IMAGES = 2000  # where latent classes are looked for


@dataclass(frozen=True, eq=False)
class Latent:
    """Where latent classes are, and a digest of what that depends on."""

    regions: Regions
    digest: str


@dataclass(frozen=True, eq=False)
class Extended:
    """What is learned from.

    Attributes:
        dataset: with the names of latent classes.
        store: with their masks.
        sampler: of labelled and latent classes.
        fresh: what was found now, to be kept.
    """

    dataset: Dataset
    store: Store
    sampler: Sampler | MixedSampler
    fresh: Latent | None = None


def add_latent_classes(
    plan: Plan,
    store: Store,
    index: Index,
    labelled: Sampler,
    backbone: Backbone,
    encoder: Backbone,
    progress: OnProgress | None,
) -> Extended:
    """What is learned from; only labelled classes where the plan asks for no others, or the images are too few.

    Args:
        plan: of the run.
        store: all images.
        index: of their masks.
        labelled: draws from the labelled classes.
        backbone: as it is before it learns.
        encoder: the same, for speed.
        progress: told while latent classes are looked for.
    """
    training = plan.config.training
    if not training.latent_classes:
        return Extended(plan.dataset, store, labelled)
    images = _images(labelled)
    digest = _digest(plan, index, labelled, images, backbone)
    fresh: list[Latent] = []

    def found() -> Regions:
        regions = plan.folder.load_regions(digest) if plan.resume else None
        if regions is None:
            count, size, unsure = training.latent_classes, training.augmentation.size, training.latent_unsure
            with plan.precision():
                regions = mine(store, labelled.pairs, images, encoder, count, size, unsure, progress)
            fresh.append(Latent(regions, digest))
        return regions.to(torch.device("cpu"))

    regions = plan.world.share(found).to(plan.device)  # rounding differs between devices: all have those of the first
    extended = LatentStore(store, regions, labelled.pairs, len(plan.dataset.classes))
    latent = latent_sampler(labelled, plan.dataset, plan.fold, extended, training.latent_classes, training.seed)
    kept = fresh[0] if fresh else None
    if latent is None:
        return Extended(plan.dataset, store, labelled, kept)
    dataset = replace(plan.dataset, classes=latent_names(plan.dataset, training.latent_classes))
    return Extended(dataset, extended, MixedSampler(labelled, latent, training.latent_share), kept)


def _images(labelled: Sampler) -> list[int]:
    """Where latent classes are looked for."""
    order = Stream("latent images", *labelled.key).choose(len(labelled.images), len(labelled.images))
    return sorted(labelled.images[place] for place in order[:_LATENT_IMAGES])


def _digest(plan: Plan, index: Index, labelled: Sampler, images: list[int], backbone: Backbone) -> str:
    """Of everything that the regions depend on."""
    training = plan.config.training
    count, unsure, augmentation = training.latent_classes, training.latent_unsure, training.augmentation
    network = {name: value for name, value in to_dict(plan.config.model.backbone).items() if name not in ("tuned", "trained")}
    if network["last_relu"]:  # as where there was no such setting
        del network["last_relu"]
    weights = [network, weights_digest(backbone)]
    depends = [index.digest, labelled.pairs, images, weights, count, unsure, augmentation.size, augmentation.longest]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()
