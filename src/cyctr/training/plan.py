"""What is asked of a training run, and the checks that it passes before anything is read."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cyctr.config import Recipe, to_dict
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.folds import hold_out
from cyctr.datasets.joined import ALL, fold_to_learn, learn_from_everything
from cyctr.errors import ConfigError
from cyctr.methods.table import USUAL
from cyctr.training.distributed import World
from cyctr.training.options import Options, kept_options
from cyctr.training.run_folder import RunFolder
from cyctr.training.state import describe_data

_WORTH_COMPILING = 20_000  # episodes: compiling takes half a minute


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        config: the network and how it learns.
        dataset: images, classes and folds.
        fold: which classes it learns from.
        folder: where files go; of several processes the first reads and writes there, for all.
        device: where it computes.
        options: how.
        world: the processes that share the work.
        method: by which `find_method` finds it.
        resume: go on where the run in the folder stopped.
        replace: begin where another run is, whose files go then.
    """

    config: Recipe
    dataset: Dataset
    fold: int
    folder: RunFolder
    device: torch.device
    options: Options = field(default_factory=Options)
    world: World = field(default_factory=World)
    method: str = USUAL
    resume: bool = False
    replace: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What decides what is learned: a resumed run must have the same."""
        return {"method": self.method, "config": to_dict(self.config), "data": describe_data(self.dataset, self.fold)}

    @property
    def compiles(self) -> bool:
        """Whether the network is compiled."""
        if self.options.compile is not None:
            return self.options.compile
        long = self.config.training.length >= _WORTH_COMPILING
        return self.device.type == "cuda" and not self.options.deterministic and long

    def precision(self) -> AbstractContextManager[object]:
        """The context in which the network computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.options.half else nullcontext()


def plan_run(
    config: Recipe,
    dataset: Dataset,
    folder: RunFolder,
    device: torch.device,
    given: Mapping[str, Any],
    usual: Mapping[str, Any] | None = None,
    fold: int | str | None = None,
    keeps: bool = False,
    world: World | None = None,
    resume: bool = False,
    force: bool = False,
    method: str = USUAL,
) -> Plan:
    """What is asked for, in a folder that may be written.

    Args:
        config: the network and how it learns.
        dataset: images, classes and folds.
        folder: where files go.
        device: where it computes.
        given: fields of `Options`.
        usual: fields that a run has unless they are given, or a resumed run keeps others.
        fold: a number, or "all"; by default that of the run that is resumed, else 0 where the dataset has test classes.
        keeps: whether the user has named classes to keep for the test.
        world: the processes that share the work.
        resume: go on with the run in the folder.
        force: replace it; its files go when `Trainer.begin` is called.
        method: by which `find_method` finds it; the config is of its kind.
    """
    world = world or World()
    if resume and force:
        raise ConfigError(
            "resume goes on with the run that is there, and force replaces it; give one of them", "resume", "force"
        )
    if not resume:
        world.share(folder.check_ours)
    if not resume and not force and world.share(lambda: folder.begun):
        raise ConfigError(
            f"{folder.path}: holds a run already; resume it, replace it, or choose another output", "resume", "force", "output"
        )
    if resume and fold is None:
        fold = _fold_of(world.share(folder.data), dataset, keeps)
    dataset, number = fold_to_learn(dataset, fold, kept=keeps)
    kept = world.share(lambda: kept_options(folder.last_session(), device)) if resume else {}
    options = Options(**{"half": device.type == "cuda", **(usual or {}), **kept, **given})
    if world.size > 1 and device.index is not None:
        raise ConfigError(
            f"device is {str(device)!r}, and {world.size} processes each take a GPU of their own; use cuda", "device"
        )
    if device == torch.device("cuda"):
        device = torch.device("cuda", world.local)
    return Plan(config, dataset, number, folder, device, options, world, method, resume, force)


def _fold_of(before: Mapping[str, Any], dataset: Dataset, keeps: bool) -> str | None:
    """The fold that an earlier session learned from."""
    if before.get("name") == learn_from_everything(dataset).name:
        return None if keeps else ALL
    return str(before.get("fold", 0))


@contextmanager
def advising_on_memory(plan: Plan) -> Iterator[None]:
    """Says what to lower where the memory, of a GPU or of this machine, does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if isinstance(error, RuntimeError) and not on_gpu and "DefaultCPUAllocator" not in str(error):
            raise
        training, parts = plan.config.training, plan.options.accumulate
        whose = "the GPU's" if on_gpu else "this machine's"
        augmentation = training.augmentation
        raise ConfigError(
            f"{whose} memory does not suffice for {training.batch // parts} episodes at a time; raise "
            f"accumulate (now {parts}), lower training.batch (now {training.batch}) or training.augmentation.size "
            f"(now {augmentation.size}), or do not keep images resident",
            *("accumulate", "training.batch", "training.augmentation.size", "resident"),
        ) from error


def with_held_out(dataset: Dataset, fold: int, count: int) -> Dataset:
    """The dataset with some training classes of a fold kept for validation."""
    if not count:
        return dataset
    changed = hold_out(dataset.fold(fold), count)
    return replace(dataset, folds=(*dataset.folds[:fold], changed, *dataset.folds[fold + 1 :]))


def with_length(plan: Plan, images: int) -> Plan:
    """The plan with a length in episodes, where it was given in rounds of the images."""
    config = replace(plan.config, training=plan.config.training.with_length(images))
    options = plan.options
    if options.validate_every is None:
        options = replace(options, validate_every=config.training.length // 10)
    return replace(plan, config=config, options=options)
