"""A training run: a network, the episodes it learns from, and the state of both."""

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cyctr.backbones.backbone import Backbone
from cyctr.backbones.weights import load_backbone
from cyctr.checkpoint import checkpoint_bytes, require_named_weights, weights_digest
from cyctr.config import from_dict, to_dict
from cyctr.datasets.dataset import Dataset, OnProgress, Split
from cyctr.datasets.folds import hold_out
from cyctr.datasets.index import Index
from cyctr.devices import episodes_together, free_memory
from cyctr.episodes.image_store import ResidentStore, Store, open_store
from cyctr.episodes.latent import LatentStore, MixedSampler, Regions, latent_names, latent_sampler
from cyctr.episodes.sampler import Sampler
from cyctr.episodes.training_batches import Groups, TrainingEpisodes, groups_of_part
from cyctr.errors import ConfigError
from cyctr.evaluation.answering import NetworkMethod
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, RunKey, differences
from cyctr.evaluation.run import environment
from cyctr.methods.base import Losses, Step
from cyctr.methods.cyctr.config import Config
from cyctr.methods.cyctr.network import CyCTR
from cyctr.methods.cyctr.sampling import TokenCount
from cyctr.seeding import Stream
from cyctr.training.distributed import World
from cyctr.training.find_latent import mine
from cyctr.training.fit_known_classes import choose_images, fit_familiar
from cyctr.training.optimiser import Optimization
from cyctr.training.run_folder import LAST, RunFolder, Standing
from cyctr.types import Episode, Features

_WORTH_COMPILING = 20_000  # episodes: compiling takes half a minute
_VALIDATION_SEED = 1_000_003  # not one that results are reported for
_LATENT_IMAGES = 2000  # where latent classes are looked for
_REMEMBERED = 0.3  # of the free memory: features of validation images
_LEAST = {
    "workers": 1,
    "accumulate": 1,
    "save_minutes": 0,
    "keep_every": 0,
    "validate_every": 0,
    "validation_episodes": 0,
    "max_minutes": 0,
}
_KEPT = ("accumulate", "deterministic", "keep_every", "validate_every", "validation_episodes")


@dataclass(frozen=True)
class Options:
    """What of a run does not change what it learns, but for rounding, and for what dropout drops in the parts of a step.

    Attributes:
        half: bfloat16 where it is safe.
        compile: whether to compile the network; by default on a GPU, where the run is long enough to gain.
        resident: whether all images lie on the device; by default where they fit.
        workers: threads that read images.
        accumulate: parts of a step that are computed one after the other, to take less memory.
        deterministic: the same bits each time on a GPU too, more slowly.
        save_minutes: how often the state is kept.
        keep_every: episodes after which a checkpoint is kept for good; 0 keeps none.
        validate_every: episodes between validations; 0 validates at the end alone, and None after each tenth of the schedule.
        validation_episodes: of each validation; 0 validates never.
        max_minutes: ends the run in good order.
        tensorboard: write events for TensorBoard, where it is installed.
    """

    half: bool = False
    compile: bool | None = None
    resident: bool | None = None
    workers: int | None = None
    accumulate: int = 1
    deterministic: bool = False
    save_minutes: float = 2.0
    keep_every: int = 0
    validate_every: int | None = 0
    validation_episodes: int = 200
    max_minutes: float = math.inf
    tensorboard: bool = True

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value, kind = getattr(self, name), int | float if name.endswith("minutes") else int
            if value is None and name in ("workers", "validate_every"):
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= least:
                expected = "a number" if name.endswith("minutes") else "a whole number"
                raise ConfigError(f"{name} is {value!r}; expected {expected}, at least {least}")
        for name in ("half", "deterministic", "tensorboard", "compile", "resident"):
            value, may_be_none = getattr(self, name), name in ("compile", "resident")
            if not isinstance(value, bool) and not (value is None and may_be_none):
                raise ConfigError(f"{name} is {value!r}; expected True or False{', or None' * may_be_none}")


def kept_options(session: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Which fields of `Options` a resumed run has unless others are given: those of its last session, as it wrote them.

    The others say how this session runs alone. An older run did not write all of them.
    """
    found = {name: session[name] for name in _KEPT if name in session}
    if "precision" in session and str(session.get("device")).startswith(device.type):  # what suits one may not suit another
        found["half"] = session["precision"] == "bfloat16"
    return found


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Someone asked a run to stop while its network was validated."""


class Trainer:
    """One run: a network, the episodes it learns from, the state of both."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        fold: int,
        folder: RunFolder,
        device: torch.device,
        options: Options | None = None,
        world: World | None = None,
        progress: OnProgress | None = None,
        resume: bool = False,
        store: Store | None = None,
        validation: Evaluation | None = None,
        mining: OnProgress | None = None,
    ) -> None:
        """Checks everything, then reads the images.

        Args:
            config: the network and how it learns.
            dataset: images, classes and folds.
            fold: which classes it learns from.
            folder: where files go; of several processes the first reads and writes there, for all.
            device: where it computes.
            options: how.
            world: the processes that share the work.
            progress: told while masks, then images, are read.
            resume: go on where the run in the folder stopped; refused where it was made in another way.
            store: where several runs share what they have read, all images of this one.
            validation: likewise, of the same split.
            mining: told while latent classes are looked for.
        """
        self.config, self.fold, self.folder, self.device = config, fold, folder, device
        self.options, self.world = options or Options(), world or World()
        require_named_weights(config.model.backbone)
        if self.options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch looks at its first product, and never again
        self.dataset = with_held_out(dataset, fold, config.training.hold_out)
        index = self.dataset.pool("train").index(progress)
        self._recorded = False
        labelled = self._labelled(index)  # refuses shots that the data cannot give
        self.config = config = replace(config, training=config.training.with_length(len(labelled.images)))
        if self.options.validate_every is None:
            self.options = replace(self.options, validate_every=self.config.training.length // 10)
        self._sessions = self._earlier_sessions() if resume else []
        kept = self.world.share(folder.load_state) if resume else None
        groups_of_part(config.training, self.world.size, self.options.accumulate)  # refuses what cannot be shared
        self.validation = validation or self._open_validation(progress)
        self.model = build_network(config).to(device)
        self.encoder = copy.deepcopy(self.model.backbone).accelerate()  # as the backbone is at first, and for ever unless tuned
        store = store or self._open_store(index, labelled, progress)
        self.resident = isinstance(store, ResidentStore)
        self._store, self._labelled_sampler = store, labelled
        self._recognised: tuple[int, Tensor] | None = None  # with the step that it was made after
        self._new_regions: tuple[Regions, str] | None = None  # with the digest of what they depend on
        self.episodes = self._open_episodes(store, index, labelled, resume, mining)
        self.optimization = Optimization(self.model, config.optimizer, config.training.steps)
        self.step, self.validated, self.best = Standing()
        self.seconds = 0.0  # of earlier sessions of this run
        self.saved = kept is not None  # whether there is a state to go on from, which not every process can see
        if kept is not None:
            self.optimization.restore(kept[0])
            self.step, self.validated, self.best = kept[1]
            self.seconds = self.world.share(self._seconds)
        encoder = self.model.backbone.learning() if config.model.backbone.tuned else self.encoder
        self._encode: Callable[[Tensor], Features] = encoder
        self._learn: Callable[..., Losses] = learn
        if self._compiles():
            self.episodes.compile()
            self._encode = torch.compile(encoder, dynamic=False)
            if self.model.draws_alike:
                self._learn = torch.compile(learn, dynamic=False)  # a new number of tokens would be compiled anew

    def about(self) -> dict[str, Any]:
        """What decides what is learned: a resumed run must have the same."""
        return {"config": to_dict(self.config), "data": self.data}

    @cached_property
    def data(self) -> dict[str, Any]:
        """Which classes of which dataset are learned from, and which are kept for validation and test."""
        sides, pool, names = self.dataset.fold(self.fold), self.dataset.pool("train"), self.dataset.classes
        return {
            "name": self.dataset.name,
            "fold": self.fold,
            "images": len(pool.keys),
            "index_sha256": pool.index().digest,
            "train": [names[number] for number in sides.train],
            "validation": [names[number] for number in sides.validation],
            "test": [names[number] for number in sides.test],
        }

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, not even the last validation."""
        return self.step == self.validated == self.config.training.steps

    def begin(self) -> None:
        """Says in the folder how the run is made, and makes it ready to go on; a finished run is left as it is."""
        if self.world.leads and not self.finished:
            self.folder.tidy()
            if not self._sessions:
                self.record_session()  # first: it makes the folder that of a run
            self.folder.forget_after(self.step, self.validated)
            if self._new_regions is not None:
                self.folder.save_regions(*self._new_regions)

    def record_session(self) -> None:
        """Says in the folder that there was this session. One that is resumed is told of when it first saves something.

        A session of which nothing stays, and its options, are none of the run's.
        """
        if not self._recorded:
            self.folder.write_config({**self.about(), "sessions": [*self._sessions, self._session()]})
            self._recorded = True

    def _session(self) -> dict[str, Any]:
        """What changes from session to session, and results at most by rounding."""
        return {
            **environment(self.device),
            "precision": "bfloat16" if self.options.half else "float32",
            "compile": self._compiles(),
            "processes": self.world.size,
            **{name: getattr(self.options, name) for name in _KEPT},
        }

    @property
    def changed(self) -> list[str]:
        """What of the last session of a resumed run is otherwise now, so that the network will not be the same to the bit."""
        if not self._sessions:
            return []
        now = self._session()
        names = ("precision", "accumulate", "processes")
        before = {name: self._sessions[-1].get(name, now[name]) for name in names}
        return [f"{name} {before[name]}, now {now[name]}" for name in names if before[name] != now[name]]

    def _seconds(self) -> float:
        """How long the run in the folder has taken to get here."""
        return max((line.get("seconds", 0.0) for line in self.folder.records() if line["step"] <= self.step), default=0.0)

    def _earlier_sessions(self) -> list[Any]:
        """The sessions of the run in the folder, refused where it was made in another way."""
        found = self.world.share(self.folder.read_config)
        there = {"config": _with_defaults(found.get("config")), "data": found.get("data")}
        differing = differences(there, _plain(self.about()))
        differing = ["images or masks have changed" if text.startswith("data.index_sha256") else text for text in differing]
        if differing:
            raise ConfigError(
                f"the run in {self.folder.path} was made with other settings (there / here: {'; '.join(differing)}); "
                "give the same options, or another --output"
            )
        return found.get("sessions", [])

    def losses(self, groups: Groups, tokens: TokenCount) -> Losses:
        """What the network loses on groups of images; backward is the caller's."""
        with self.precision():
            features = self._encode(groups.images)
            tensors = (groups.images, groups.labels, groups.padding, groups.roles, groups.seeds)
            return self._learn(self.model, features, *tensors, groups.rotated, tokens)

    def tokens(self, step: int) -> TokenCount:
        """N_s per shot of a step; one for each layer where each draws its own."""
        return self.model.draw(self.config.training.seed, step, self.config.training.shots)

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.options.half else nullcontext()

    def method(self, on_batch: Callable[[], None] | None = None) -> NetworkMethod:
        """The weights to test, ready to answer; training goes on beside them. Arguments as in `recognised`."""
        network = self._tested_network()
        network.load_state_dict(self.recognised(network.backbone, on_batch), strict=False)
        return NetworkMethod(network, self.device, self.options.half)

    def _tested_network(self) -> CyCTR:
        if self.config.model.backbone.tuned:
            network = copy.deepcopy(self.model)
        else:
            network = CyCTR.build(self.config, self.encoder).to(self.device)
        network.load_state_dict(self.optimization.tested, strict=False)  # all but what is frozen
        network.backbone.accelerate()
        return network

    def recognised(self, backbone: Backbone | None = None, on_batch: Callable[[], None] | None = None) -> dict[str, Tensor]:
        """What recognises the training classes, fitted to the weights to test, by its name in the network.

        Nothing that is learned depends on it: it is made for a test, or for a checkpoint that stays.

        Args:
            backbone: of the weights to test, where it is at hand; made here otherwise.
            on_batch: called before each batch of the images that it is fitted to.
        """
        if self.model.familiar is None:
            return {}
        if self._recognised is None or self._recognised[0] != self.step:
            backbone = backbone or self._tested_network().backbone
            rows = torch.zeros_like(self.model.familiar.weight)
            self._recognised = (self.step, self._recognise(rows, backbone, on_batch))
        return {"familiar.weight": self._recognised[1]}

    def _recognise(self, rows: Tensor, backbone: Backbone, on_batch: Callable[[], None] | None) -> Tensor:
        """Fills rows, of the most frequent classes where there are more."""
        labelled, size = self._labelled_sampler, self.config.training.augmentation.size
        frequent = sorted(labelled.holders, key=lambda number: (-len(labelled.holders[number]), number))[: len(rows)]
        images = choose_images(labelled.holders, frequent, labelled.key)
        with self.precision():
            found = fit_familiar(self._store, labelled.pairs, images, frequent, backbone, size, on_batch)
        rows[: len(found)] = found
        return rows

    def validate(self, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """MIoU and FB-IoU of the weights to test, on classes that are not learned from.

        Args:
            stop: asked on the way whether to break it off.

        Raises:
            Stopped: it was.
        """
        assert self.validation is not None
        setting = RunKey(self.fold, self.config.training.shots, _VALIDATION_SEED)
        results = Results({})
        remember = int(_REMEMBERED * free_memory(self.device))
        workers = 16 if self.device.type == "cuda" else 2
        batch = episodes_together(self.device, self.config.training.shots)
        episodes = self.options.validation_episodes

        def go_on(*_: object) -> None:
            if stop is not None and stop():
                raise Stopped

        self.validation.run(
            self.method(go_on), results, [setting], episodes, self.device, batch, workers, on_batch=go_on, remember=remember
        )
        result = results.runs[setting].result()
        names = self.dataset.classes
        return {
            "split": self.validation.split,
            "miou": result.miou,
            "fb_iou": result.fb_iou,
            "classes": {names[number]: iou for number, iou in result.classes.items()},
        }

    def save(self, name: str = LAST, recognising: bool = True) -> None:
        """Writes the network, ready for use.

        Args:
            name: of the file.
            recognising: with what `recognised` gives; without, it is written sooner, and takes training classes for others.
        """
        weights = {**self.optimization.tested, **(self.recognised() if recognising else {})}
        self.folder.write(name, checkpoint_bytes(self.model, self.config, weights, data=self.data))

    def _labelled(self, index: Index) -> Sampler:
        """Draws episodes of the training classes."""
        training = self.config.training
        return Sampler(
            self.dataset,
            index,
            self.fold,
            "train",
            training.shots,
            training.seed,
            training.order,
            drop_novel=training.drop_novel,
        )

    def _open_store(self, index: Index, labelled: Sampler, progress: OnProgress | None) -> Store:
        pool, options = self.dataset.pool("train"), self.options
        longest = self.config.training.augmentation.longest
        return open_store(pool, index, labelled.pairs, self.device, longest, options.resident, options.workers, progress)

    def _open_episodes(
        self, store: Store, index: Index, labelled: Sampler, resume: bool, mining: OnProgress | None
    ) -> TrainingEpisodes:
        """What is learned from: labelled classes, and latent ones where that is asked for."""
        training = self.config.training
        sampler: Sampler | MixedSampler = labelled
        if training.latent_classes:
            regions = self._regions(store, index, labelled, resume, mining)
            store, sampler = self._with_latent_classes(store, labelled, regions)
        return TrainingEpisodes(store, sampler, training, self.device)

    def _regions(self, store: Store, index: Index, labelled: Sampler, resume: bool, mining: OnProgress | None) -> Regions:
        """Where latent classes are: as the run in the folder found them, else looked for."""
        training = self.config.training
        order = Stream("latent images", *labelled.key).choose(len(labelled.images), len(labelled.images))
        images = sorted(labelled.images[place] for place in order[:_LATENT_IMAGES])
        count, unsure, size = training.latent_classes, training.latent_unsure, training.augmentation.size
        network = {name: value for name, value in to_dict(self.config.model.backbone).items() if name != "tuned"}
        backbone = [network, weights_digest(self.model.backbone)]  # as it is before it learns
        depends = [index.digest, labelled.pairs, images, backbone, count, unsure, size, training.augmentation.longest]
        digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()

        def found() -> Regions:
            regions = self.folder.load_regions(digest) if resume else None
            if regions is None:
                with self.precision():
                    regions = mine(store, labelled.pairs, images, self.encoder, count, size, unsure, mining)
                self._new_regions = (regions, digest)
            return regions.to(torch.device("cpu"))

        return self.world.share(found).to(self.device)  # rounding differs from device to device: all have those of the first

    def _with_latent_classes(self, store: Store, labelled: Sampler, regions: Regions) -> tuple[Store, Sampler | MixedSampler]:
        """The store with latent classes, and a sampler of both kinds; as they are where the images are too few for any."""
        training, count = self.config.training, self.config.training.latent_classes
        extended = LatentStore(store, regions, labelled.pairs, len(self.dataset.classes))
        latent = latent_sampler(labelled, self.dataset, self.fold, extended, count, training.seed)
        if latent is None:
            return store, labelled
        self.dataset = replace(self.dataset, classes=latent_names(self.dataset, count))
        return extended, MixedSampler(labelled, latent, training.latent_share)

    def _open_validation(self, progress: OnProgress | None) -> Evaluation | None:
        """Episodes of classes that are held out; else of the test classes, to watch and not to choose by."""
        sides = self.dataset.fold(self.fold)
        split: Split = "validation" if sides.validation else "test"
        if not sides.classes(split) or not self.world.leads or not self.options.validation_episodes:
            return None
        if split == "test" and "test" not in self.dataset.pools:
            return None
        training = self.config.training
        measure = self.dataset.protocol()
        measure = replace(measure, order="shuffled", input=replace(measure.input, size=training.augmentation.size))
        evaluation = Evaluation(self.dataset, measure, split, progress)
        evaluation.sampler(RunKey(self.fold, training.shots, _VALIDATION_SEED))  # refuses what cannot be drawn
        return evaluation

    def _compiles(self) -> bool:
        if self.options.compile is not None:
            return self.options.compile
        return self.device.type == "cuda" and not self.options.deterministic and self.config.training.length >= _WORTH_COMPILING


def with_held_out(dataset: Dataset, fold: int, count: int) -> Dataset:
    """The dataset with some training classes of a fold kept for validation."""
    if not count:
        return dataset
    changed = hold_out(dataset.fold(fold), count)
    return replace(dataset, folds=(*dataset.folds[:fold], changed, *dataset.folds[fold + 1 :]))


def learn(
    model: CyCTR,
    features: Features,
    images: Tensor,
    labels: Tensor,
    padding: Tensor,
    roles: Tensor,
    seeds: Tensor,
    rotated: bool,
    tokens: TokenCount,
) -> Losses:
    """The losses of the episodes that images make, given their features; arguments as in `Groups`."""
    query, supports = roles[:, 0], roles[:, 1:]
    episode = Episode(images[supports], labels[supports], images[query], labels[query], padding[query], trusted=True)
    of_query = features if rotated else features.changed(lambda maps: _take(maps, query))
    of_supports = features.changed(lambda maps: _take(maps, supports.flatten()))
    return model.learn(episode, of_query, of_supports, Step(seeds, tokens))


def _take(maps: Tensor, index: Tensor) -> Tensor:
    """(n, C, h, w): some of several maps, as they lie in memory: channels last."""
    return maps.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)


def build_network(config: Config) -> CyCTR:
    """The untrained network; its first weights are a function of the seed."""
    backbone = load_backbone(config.model.backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return CyCTR.build(config, backbone)


def _with_defaults(config: Any) -> Any:
    """The settings of an earlier run with those that there were none of yet; as they are where they cannot be read."""
    try:
        return _plain(to_dict(from_dict(Config, config)))
    except ConfigError:
        return config


def _plain(about: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(about))
