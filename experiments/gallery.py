"""How good networks are on classes that PASCAL VOC does not have: `python experiments/gallery.py METHOD ...`.

A METHOD is a checkpoint, lite0 or resnet50, a reference such as prototype, or segmenter:lite0, which answers as `cyctr segment`
does and not as the network alone. Each is scored on the gallery's photographs (`cyctr.datasets.gallery`), and a picture of its
answers is written. Support and query of a scene come from one photograph, so this is easier than real use: it says what a
network can do, not how it compares.

    python experiments/gallery.py lite0 segmenter:lite0 prototype --data synthetic --folds 0 1 2 3 --episodes 20
    python experiments/gallery.py vanilla-fold0.safetensors full-fold0.safetensors --together sheet.png
    python experiments/gallery.py vanilla-fold0.safetensors full-fold0.safetensors --together local.png --data VOC2012

With --data the same is done with one-shot test episodes of a dataset, its classes in turn. With --together one sheet, like the
paper's figure 4, shows support, truth and the answer of each. What is drawn from a dataset of photographs belongs to those who
took them: keep it to yourself.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cyctr import Segmenter
from cyctr.config import InputConfig, protocol
from cyctr.datasets.gallery import Shot, scenes
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device
from cyctr.evaluation.answering import open_method
from cyctr.evaluation.metrics import Counts, count
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import RunKey
from cyctr.images.geometry import fit_image, fit_label, planes, restore
from cyctr.types import Episode
from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, GREEN, RED

_SIDE = 220
_SEGMENTER = "segmenter:"
Answering = Callable[["Task"], torch.Tensor]
"""(H, W) bool: where a task's query has what its shots mark."""


class Task(NamedTuple):
    """What a method is asked: where is what these shots mark? Tasks of one name are scored together."""

    name: str
    title: str
    supports: tuple[Shot, ...]
    query: Shot


def of_gallery() -> Iterator[Task]:
    for scene in scenes():
        yield from (Task(scene.name, scene.title, tuple(scene.supports), query) for query in scene.queries)


def of_dataset(data: Path, folds: Sequence[int], episodes: int) -> Iterator[Task]:
    """The first test episodes of each fold with one shot, its classes in turn."""
    evaluation = Evaluation(open_dataset(data), replace(protocol("cyctr"), order="classes"), "test")
    for fold in folds:
        pool, sampler = evaluation.pool, evaluation.sampler(RunKey(fold, 1, 0))
        for draw in map(sampler, range(episodes)):
            support, query = (Shot(pool.image(i), pool.label(i, draw.category)) for i in (draw.supports[0], draw.query))
            name = evaluation.dataset.classes[draw.category]
            yield Task(name, name, (support,), query)


def network(name: str, weights: str, size: int, device: torch.device) -> tuple[str, Answering]:
    """A network alone, or a reference, with its name."""
    method, about = open_method(name, weights, device)
    config = InputConfig(size)

    @torch.inference_mode()
    def answer(task: Task) -> torch.Tensor:
        images = torch.stack([fit_image(planes(shot.image), config) for shot in task.supports])
        labels = torch.stack([fit_label(torch.from_numpy(shot.label), config) for shot in task.supports])
        query = fit_image(planes(task.query.image), config)
        episode = Episode(images[None].to(device), labels[None].to(device), query[None].to(device))
        logits = restore(method(episode).logits[0], (task.query.label.shape[0], task.query.label.shape[1]), config)
        return (logits[1] > logits[0]).cpu()

    return about["name"], answer


def segmenter(name: str, device: torch.device, votes: float | None) -> tuple[str, Answering]:
    """What a person gets, with its name; by default with the weight of plain matching that the Segmenter chooses."""
    own = Segmenter.from_pretrained(name, device=str(device))
    chosen = {} if votes is None else {"votes": votes}

    def answer(task: Task) -> torch.Tensor:
        images, labels = [shot.image for shot in task.supports], [shot.label for shot in task.supports]
        return torch.from_numpy(own.segment(task.query.image, own.encode_support(images, labels), **chosen).mask) > 0

    return f"{_SEGMENTER}{own.name}{'' if votes is None else f', votes {votes:g}'}", answer


class Answers(NamedTuple):
    """What one method said to every task."""

    name: str
    masks: list[torch.Tensor]
    scores: list[Counts]


def ask(given: argparse.Namespace, name: str, tasks: list[Task]) -> Answers:
    device = choose_device(given.device)
    if name.startswith(_SEGMENTER):
        title, answer = segmenter(name.removeprefix(_SEGMENTER), device, given.votes)
    else:
        title, answer = network(name, given.weights, given.size, device)
    found = Answers(title, [], [])
    for task in tasks:
        found.masks.append(answer(task))
        found.scores.append(count(found.masks[-1], torch.from_numpy(task.query.label)))
        print(f"{found.name:<24} {task.name:<14} {100 * found.scores[-1].iou:5.1f}", flush=True)
    return found


def by_scene(tasks: list[Task], found: Answers) -> dict[str, float]:
    """IoU of each scene or class over all its queries, and their mean."""
    total: dict[str, Counts] = {}
    for task, score in zip(tasks, found.scores, strict=True):
        total[task.name] = total.get(task.name, Counts()) + score
    scores = {name: 100 * counts.iou for name, counts in total.items()}
    return {**scores, "mean": float(np.mean(list(scores.values())))}


def spread(count: int, shown: int | None) -> list[int]:
    """So many places among `count`, evenly; all where there are no more, or where nobody says how many."""
    shown = min(count, shown or count)
    return [number * count // shown for number in range(shown)]


def sheet(tasks: list[Task], answers: list[Answers], title: str, places: Sequence[int]) -> Any:
    """Support, truth and what each method found, of the tasks at these places."""
    blocks = []
    for place in places:
        task = tasks[place]
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
    parser.add_argument("methods", nargs="+", metavar="METHOD")
    parser.add_argument("--weights", default="resnet50-keras", help="backbone of the references")
    parser.add_argument("--size", type=int, default=473)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--together", type=Path, metavar="PNG", help="one sheet of all methods, in place of one of each")
    parser.add_argument("--data", type=Path, help="episodes of this dataset instead of the gallery's scenes")
    parser.add_argument("--folds", type=int, nargs="+", default=[0], help="of the dataset")
    parser.add_argument("--episodes", type=int, default=24, help="of each fold")
    parser.add_argument("--votes", type=float, help="of the Segmenter: the weight of plain matching, 0 to 1")
    parser.add_argument("--shown", type=int, metavar="N", help="only so many are in pictures")
    given = parser.parse_args()
    titles = {(name.startswith(_SEGMENTER), Path(name.removeprefix(_SEGMENTER)).stem) for name in given.methods}
    if len(titles) < len(given.methods):
        parser.error("two methods have the same name, by which their answers are told apart; rename a file")
    tasks = list(of_dataset(given.data, given.folds, given.episodes) if given.data else of_gallery())
    places = spread(len(tasks), given.shown)
    answers = [ask(given, name, tasks) for name in given.methods]
    if given.together:
        given.together.parent.mkdir(parents=True, exist_ok=True)
        sheet(tasks, answers, "Side by side", places).save(given.together)
    given.output.mkdir(parents=True, exist_ok=True)
    scores = {found.name: by_scene(tasks, found) for found in answers}
    for found in answers:
        print(f"{found.name:<24} {'mean':<14} {scores[found.name]['mean']:5.1f}")
        if not given.together:
            what = given.data or "the gallery"
            file = f"{found.name.replace(':', '-')}.png"
            sheet(tasks, [found], f"{found.name} on {what}", places).save(given.output / file)
    (given.output / "gallery.json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
