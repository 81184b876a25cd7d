"""How good networks are on classes that PASCAL VOC does not have: `python experiments/gallery.py CHECKPOINT ...`.

Scores each on the gallery's photographs (`cyctr.data.gallery`), and writes a picture of every answer. Support and query of a
scene come from one photograph, so this is easier than real use: it says what a network can do, not how it compares.

    python experiments/gallery.py vanilla-fold0.safetensors full-fold0.safetensors --together sheet.png
    python experiments/gallery.py vanilla-fold0.safetensors full-fold0.safetensors --together local.png --data VOC2012 --fold 0

With --together one sheet, like the paper's figure 4, shows support, truth and the answer of each, of the gallery's scenes or
of a fold's test episodes. What is drawn from a dataset belongs to its photographers: keep it to yourself.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cyctr.config import InputConfig, protocol
from cyctr.data.gallery import Shot, scenes
from cyctr.data.opening import open_dataset
from cyctr.data.transforms import fit_image, fit_label, planes, restore
from cyctr.devices import choose_device
from cyctr.engine.methods import open_method
from cyctr.evaluation.metrics import Counts, count
from cyctr.evaluation.protocol import Evaluation, Method
from cyctr.evaluation.results import Setting
from cyctr.types import Episode
from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, GREEN, RED

_SIDE = 220
_EPISODES = 24  # of a dataset that are shown


class Task(NamedTuple):
    """What a method is asked: where is what these shots mark?"""

    name: str
    title: str
    supports: tuple[Shot, ...]
    query: Shot


def of_gallery() -> Iterator[Task]:
    for scene in scenes():
        yield from (Task(scene.name, scene.title, tuple(scene.supports), query) for query in scene.queries)


def of_fold(data: Path, fold: int) -> Iterator[Task]:
    """The first test episodes of a fold with one shot."""
    evaluation = Evaluation(open_dataset(data), protocol("cyctr"), "test")
    pool, sampler = evaluation.pool, evaluation.sampler(Setting(fold, 1, 0))
    for draw in map(sampler, range(_EPISODES)):
        support, query = (Shot(pool.image(i), pool.label(i, draw.category)) for i in (draw.supports[0], draw.query))
        yield Task(pool.keys[draw.query], evaluation.dataset.classes[draw.category], (support,), query)


def answer(method: Method, task: Task, config: InputConfig, device: torch.device) -> torch.Tensor:
    """(H, W) bool."""
    images = torch.stack([fit_image(planes(shot.image), config) for shot in task.supports])
    labels = torch.stack([fit_label(torch.from_numpy(shot.label), config) for shot in task.supports])
    query = fit_image(planes(task.query.image), config)
    episode = Episode(images[None].to(device), labels[None].to(device), query[None].to(device))
    with torch.inference_mode():
        size = (task.query.label.shape[0], task.query.label.shape[1])
        logits = restore(method(episode).logits[0], size, config)
    return (logits[1] > logits[0]).cpu()


class Answers(NamedTuple):
    """What one method said to every task."""

    name: str
    masks: list[torch.Tensor]
    scores: list[Counts]


def ask(given: argparse.Namespace, name: str, tasks: list[Task]) -> Answers:
    device, config = choose_device(given.device), InputConfig(given.size)
    method, about = open_method(name, given.weights, device)
    found = Answers(about["name"], [], [])
    for task in tasks:
        found.masks.append(answer(method, task, config, device))
        found.scores.append(count(found.masks[-1], torch.from_numpy(task.query.label)))
        print(f"{found.name:<24} {task.name:<14} {100 * found.scores[-1].iou:5.1f}", flush=True)
    return found


def by_scene(tasks: list[Task], found: Answers) -> dict[str, float]:
    """IoU of each scene over all its queries, and their mean."""
    total: dict[str, Counts] = {}
    for task, score in zip(tasks, found.scores, strict=True):
        total[task.name] = total.get(task.name, Counts()) + score
    scores = {name: 100 * counts.iou for name, counts in total.items()}
    return {**scores, "mean": float(np.mean(list(scores.values())))}


def sheet(tasks: list[Task], answers: list[Answers], title: str) -> Any:
    """Support, truth and what each method found, of every task."""
    blocks = []
    for place, task in enumerate(tasks):
        first, query = task.supports[0], task.query
        shown = [tile(first.image, first.label == 1, _SIDE, RED), tile(query.image, query.label == 1, _SIDE, BLUE)]
        shown += [tile(query.image, np.asarray(found.masks[place]), _SIDE, GREEN) for found in answers]
        ious = ", ".join(f"{100 * found.scores[place].iou:.0f}" for found in answers)
        blocks.append(Block(shown, f"{task.title}, {len(task.supports)}-shot: IoU {ious}"))
    names = ", ".join(found.name for found in answers)
    across = 9 if len(answers) == 1 else 2 * (2 + len(answers))
    return contact_sheet(blocks, title, f"Support (red), truth (blue), answers (green): {names}.", across)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+", help="checkpoints, or references such as prototype")
    parser.add_argument("--weights", default="resnet50-keras", help="backbone of the references")
    parser.add_argument("--size", type=int, default=473)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--together", type=Path, metavar="PNG", help="one sheet of all methods, and nothing else")
    parser.add_argument("--data", type=Path, help="with --together: episodes of this dataset instead of the gallery's scenes")
    parser.add_argument("--fold", type=int, default=0)
    given = parser.parse_args()
    if given.data and not given.together:
        parser.error("--data goes with --together")
    tasks = list(of_fold(given.data, given.fold) if given.data else of_gallery())
    answers = [ask(given, name, tasks) for name in given.methods]
    if given.together:
        given.together.parent.mkdir(parents=True, exist_ok=True)
        sheet(tasks, answers, "Side by side").save(given.together)
        return
    given.output.mkdir(parents=True, exist_ok=True)
    scores = {found.name: by_scene(tasks, found) for found in answers}
    for found in answers:
        print(f"{found.name:<24} {'mean':<14} {scores[found.name]['mean']:5.1f}")
        sheet(tasks, [found], f"{found.name} on the gallery").save(given.output / f"{found.name}.png")
    (given.output / "gallery.json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
