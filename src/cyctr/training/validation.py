"""Scores of a network on classes that it does not learn from, while it learns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cyctr.datasets.dataset import OnProgress, Split
from cyctr.devices import episodes_together, free_memory
from cyctr.evaluation.answering import NetworkMethod
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, RunKey
from cyctr.training.plan import Plan

_SEED = 1_000_003  # not one that results are reported for
_REMEMBERED = 0.3  # of the free memory: features of validation images


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Someone asked a run to stop while its network was validated."""


def open_validation(plan: Plan, progress: OnProgress | None) -> Evaluation | None:
    """Episodes of held-out classes; without those, of the test classes, to watch and not to choose by."""
    dataset, training = plan.dataset, plan.config.training
    sides = dataset.fold(plan.fold)
    split: Split = "validation" if sides.validation else "test"
    if not sides.classes(split) or not plan.options.validation_episodes:
        return None
    if split == "test" and "test" not in dataset.pools:
        return None
    measure = dataset.protocol()
    measure = replace(measure, order="shuffled", input=replace(measure.input, size=training.augmentation.size))
    evaluation = Evaluation(dataset, measure, split, progress)
    evaluation.sampler(RunKey(plan.fold, training.shots, _SEED))  # refuses what cannot be drawn
    return evaluation


def score(plan: Plan, evaluation: Evaluation, method: NetworkMethod, go_on: Callable[[], None]) -> dict[str, Any]:
    """MIoU and FB-IoU of a method, in all and by class.

    Args:
        plan: of the run.
        evaluation: from `open_validation`.
        method: to score.
        go_on: called before each batch of episodes; what it raises ends the validation.
    """
    setting = RunKey(plan.fold, plan.config.training.shots, _SEED)
    results = Results({})
    remember = int(_REMEMBERED * free_memory(plan.device))
    workers = 16 if plan.device.type == "cuda" else 2
    batch = episodes_together(plan.device, plan.config.training.shots)
    evaluation.run(
        method,
        results,
        [setting],
        plan.options.validation_episodes,
        plan.device,
        batch,
        workers,
        on_batch=lambda *_: go_on(),
        remember=remember,
    )
    result = results.runs[setting].result()
    return {
        "split": evaluation.split,
        "miou": result.miou,
        "fb_iou": result.fb_iou,
        "classes": {plan.dataset.classes[number]: iou for number, iou in result.classes.items()},
    }
