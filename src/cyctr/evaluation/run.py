"""A whole evaluation: dataset, protocol and method -> results, and a page to look at."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cyctr
from cyctr.config import ProtocolConfig
from cyctr.datasets.dataset import Dataset, OnProgress
from cyctr.devices import choose_device, free_memory
from cyctr.errors import ConfigError
from cyctr.evaluation.answering import check_method, in_this_version, open_method, plain
from cyctr.evaluation.protocol import Evaluation, OnBatch, Predict, in_one_step, masks
from cyctr.evaluation.results import Results, RunKey, description, differences, write_text
from cyctr.evaluation.tables import class_table, fold_table
from cyctr.visual.contact import Block, tile
from cyctr.visual.draw import BLUE, GREEN, RED
from cyctr.visual.page import Section, page
from cyctr.words import counted

_REMEMBERED = {"cuda": 0.5, "cpu": 0.2}  # of the free memory that features may take
_SIDE = 360  # pixels of a picture on the page, shown at half
_SHOTS_SHOWN = 2
_Ranked = tuple[float, RunKey, int, str]  # IoU, and the run, number and query of the episode


@dataclass
class Job:
    """What shall be measured.

    Attributes:
        evaluation: the dataset's split under the protocol.
        run_keys: folds, shots and seeds.
        episodes: of each.
        part: (p, n): only every n-th episode from p on.
        device: where the method runs; known once it is open.
    """

    evaluation: Evaluation
    run_keys: list[RunKey]
    episodes: int
    part: tuple[int, int]
    device: torch.device = torch.device("cpu")

    def open(
        self, method: str, weights: str, device: str, precision: str, flip: bool = False, edges: bool = False
    ) -> tuple[Predict, Results]:
        """The method, and empty results that say how they are made."""
        check_method(method, weights, device, precision)
        self.device = choose_device(device)
        built, about = open_method(method, weights, self.device, precision, flip, edges)  # type: ignore[arg-type]
        session = environment(self.device)
        if "checkpoint" in about:
            session["checkpoint"] = method
        return built, Results({"method": about, **self.evaluation.conditions()}, sessions=[session])

    def resumed(self, found: Results, fresh: Results) -> Results:
        """Results of before with those that are about to come, refused where they were made in another way."""
        found.conditions["method"] = in_this_version(found.conditions["method"])
        differing = differences(found.conditions, plain(fresh.conditions))
        if differing:
            raise ConfigError(
                f"the results in the output folder were made with other settings (there / here: {'; '.join(differing)}); "
                "give the same options, or another folder",
                "output",
            )
        found.sessions += fresh.sessions
        return found

    def counts(self, results: Results) -> tuple[int, int]:
        """How many episodes there shall be in all, and how many of them are done."""
        place, parts = self.part
        wanted = {
            s: range(place, max(self.episodes, results.runs[s].wanted if s in results.runs else 0), parts)
            for s in self.run_keys
        }
        done = sum(n in results.runs[s].rows for s, numbers in wanted.items() if s in results.runs for n in numbers)
        return sum(map(len, wanted.values())), done

    def run(
        self,
        method: Predict,
        results: Results,
        batch: int,
        workers: int,
        on_batch: OnBatch | None = None,
        remember: bool = True,
    ) -> None:
        """Adds every episode that the results lack; with `remember`, features of an image are made once."""
        limit = int(_REMEMBERED[self.device.type] * free_memory(self.device)) if remember else 0
        self.evaluation.run(
            method, results, self.run_keys, self.episodes, self.device, batch, workers, self.part, on_batch, limit
        )


def prepare(
    dataset: Dataset,
    protocol: ProtocolConfig,
    split: str = "test",
    folds: Sequence[int] | None = None,
    shots: Sequence[int] = (1,),
    episodes: int | None = None,
    part: tuple[int, int] = (0, 1),
    progress: OnProgress | None = None,
) -> Job:
    """Opens the index and checks that every run can give its episodes.

    Args:
        dataset: images, classes and folds.
        protocol: how to measure.
        split: "test", "validation" or "train".
        folds: which; by default all.
        shots: which K.
        episodes: for each fold and seed; by default the protocol's.
        part: (p, n): only every n-th episode from p on.
        progress: told while an index is built.
    """
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split is {split!r}; expected test, validation or train")
    chosen = range(len(dataset.folds)) if folds is None else folds
    for fold in chosen:
        dataset.fold(fold)
    evaluation = Evaluation(dataset, protocol, split, progress)  # type: ignore[arg-type]
    run_keys = [RunKey(fold, k, seed) for k in shots for fold in chosen for seed in protocol.seeds]
    for run_key in run_keys:
        evaluation.sampler(run_key)
    return Job(evaluation, run_keys, episodes or protocol.episodes, part)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and machine."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "cyctr": cyctr.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type} ({machine}, {torch.get_num_threads()} threads)",
    }


def draw_pictures(
    job: Job, method: Predict, results: Results, path: Path, count: int, progress: OnProgress | None = None
) -> None:
    """Writes a page with the tables, and the best, median and worst episodes of each number of shots."""
    about = results.conditions["method"]
    sections = []
    every = sorted({run_key.shots for run_key in results.runs})
    for shots in every:
        ranked = _ranked(results, shots)
        last = len(ranked) - 1
        for name, target in (("Best", 0), ("Median", last // 2), ("Worst", last)):
            blocks = [_block(job, method, run_key, number, iou) for iou, run_key, number, _ in _nearest(ranked, target, count)]
            shown = f"{min(shots, _SHOTS_SHOWN)} of {shots} supports" if shots > _SHOTS_SHOWN else "support"
            text = f"From left to right: {shown} with the given mask (red), query with truth (blue), answer (green)."
            sections.append(Section(f"{name} of {counted(len(ranked), 'episode')}, {shots}-shot", text, blocks))
            if progress is not None:
                progress(len(sections), 3 * len(every))
    title = f"{about['name']} on {results.conditions['dataset']['name']}"
    text = page(title, description(results), [fold_table(results), class_table(results)], sections)
    write_text(path, text)


def _ranked(results: Results, shots: int) -> list[_Ranked]:
    """The episodes of one number of shots from best to worst."""
    found = [
        (row.counts.iou, run_key, number, row.query)
        for run_key, run in results.runs.items()
        if run_key.shots == shots
        for number, row in run.rows.items()
    ]
    return sorted(found, key=lambda item: (-item[0], item[1], item[2]))


def _nearest(ranked: Sequence[_Ranked], target: int, count: int) -> list[_Ranked]:
    """The `count` episodes around a place, each query once, in their order."""
    places: dict[str, int] = {}
    for place in sorted(range(len(ranked)), key=lambda place: abs(place - target)):
        places.setdefault(ranked[place][3], place)
    return [ranked[place] for place in sorted(list(places.values())[:count])]


def _block(job: Job, method: Predict, run_key: RunKey, number: int, iou: float) -> Block:
    evaluation = job.evaluation
    batch = evaluation.source(run_key, job.device).load([number])
    draw = batch.draws[0]
    mask = masks(in_one_step(method), batch, replace(evaluation.protocol, score="original"))[0]  # one query: no rim
    pool = evaluation.pool
    query = pool.image(draw.query)
    supports = [tile(pool.image(i), pool.label(i, draw.category) == 1, _SIDE, RED) for i in draw.supports[:_SHOTS_SHOWN]]
    name, key = evaluation.dataset.classes[draw.category], pool.keys[draw.query]
    caption = f"{name}, {key}, IoU {iou:.2f} (fold {run_key.fold}, episode {number})"
    truth = batch.truths[0].cpu().numpy() == 1
    return Block([*supports, tile(query, truth, _SIDE, BLUE), tile(query, np.asarray(mask.cpu()), _SIDE, GREEN)], caption)
