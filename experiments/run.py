"""Trains and tests the rows of plans in one process, which reads the data once.

    python experiments/run.py experiments/table1.json --data VOC2012

A plan is JSON: {"rows": {NAME: ROW}, "folds": [0, 1, "all", ...], "test": {"split", "shots", "seeds", "episodes"}}; a test
with "flip": true is done once more with answers to mirror images averaged in, with "plain": true once more with nothing
recognised, with "edges": true once more with answers that follow edges, and again with both edges and mirror images. Or
"ways": [[], ["edges"], ...] names what is done, and "also": {"shots", "ways"} what is done beside that. Of a ROW, all is
optional: "method", "preset", "weights" and "settings" {DOTTED NAME: TEXT} say what is trained; "folds" and "test" take the
place of the plan's; "watch" scores the test classes, or those held out, each so many
episodes, for a curve; "compile" is true or false; "seconds" is how long it may take, for --seconds. A row with "together":
[NAME, ...] trains nothing: the networks of those rows, whose checkpoints are in --output, answer together, by the mean of
their log odds.

Each row and fold gives a JSON and a checkpoint in --output, at once; those that are there already are not done again. Where
the plan asks for more ways to test than a JSON there has, the checkpoint beside it is tested in those alone.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, NoReturn

import torch

from cyctr.backbones.weights import CATALOGUE
from cyctr.checkpoint import load_checkpoint, save_checkpoint
from cyctr.config import ProtocolConfig, Recipe, from_dict, parse, protocol, to_dict
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.joined import learn_from_everything
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device, episodes_together, free_memory
from cyctr.episodes.image_store import Store, open_store
from cyctr.errors import CyctrError
from cyctr.evaluation.answering import NetworkMethod, along_edges
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, RunKey
from cyctr.evaluation.run import environment
from cyctr.methods.backbone_choice import with_weights
from cyctr.methods.recipes import recipes_of
from cyctr.methods.table import USUAL
from cyctr.storage import write_atomically
from cyctr.training.loop import Trainer
from cyctr.training.options import Options
from cyctr.training.plan import Plan, with_held_out
from cyctr.training.run import prepare
from cyctr.training.run_folder import RunFolder
from cyctr.types import Episode, Features, Prediction
from cyctr.words import one_line

_WATCHED = 300  # episodes of each point of a curve


WAYS = (
    {"flip": False, "plain": False, "edges": False},
    {"flip": True, "plain": False, "edges": False},
    {"flip": False, "plain": True, "edges": False},
    {"flip": False, "plain": False, "edges": True},
    {"flip": True, "plain": False, "edges": True},
)
"""How a test may be done: as it is, with mirror images, with nothing recognised, and with answers that follow edges."""


def measured(test: dict[str, Any]) -> list[tuple[int, dict[str, bool]]]:
    """The numbers of shots and the ways that a test asks for, in order."""
    if "ways" in test:
        ways = [way for way in WAYS if [name for name in way if way[name]] in test["ways"]]
    else:
        ways = [way for way in WAYS if all(not wanted or test.get(name) for name, wanted in way.items())]
    also = measured(test["also"]) if "also" in test else []
    return [*product(test["shots"], ways), *also]


def tested_so(one: dict[str, Any], way: dict[str, bool]) -> bool:
    """Whether a result is of a way to test; an old one does not name what nobody asked for."""
    return all(one.get(name, False) == wanted for name, wanted in way.items())


class Job(NamedTuple):
    """One row on one fold.

    Attributes:
        name: of the row.
        row: as in the plan.
        fold: its number, or "all".
        test: what is measured; nothing where it is empty.
    """

    name: str
    row: dict[str, Any]
    fold: int | str
    test: dict[str, Any]

    @property
    def title(self) -> str:
        """What its files are called."""
        return f"{self.name}-fold{self.fold}"

    def trained(self, found: dict[str, Any]) -> bool:
        """Whether a result is of this very row, not of an earlier plan or preset."""
        if "together" in self.row or "together" in found["row"]:
            return found["row"].get("together") == self.row.get("together")
        return as_built(from_dict(recipes_of(method_of(found["row"])).kind, found["config"])) == as_built(
            configuration(self.row)
        )

    def tested(self, found: dict[str, Any]) -> bool:
        """Whether a result has all that is to be measured."""
        return found.get("tested", self.test) == self.test

    def asks_more(self, found: dict[str, Any]) -> bool:
        """Whether it has a part of that, and nothing is otherwise."""
        chosen = {"shots", "ways", "also", *WAYS[0]}
        tests = (found.get("tested", {}), self.test)
        known, asked = ({name: value for name, value in test.items() if name not in chosen} for test in tests)
        return bool(known) and known == asked and all(one in measured(self.test) for one in measured(found["tested"]))


class Averaged:
    """A network that answers the same episodes as others did before: the mean of its log odds and theirs."""

    def __init__(self, method: NetworkMethod, said: list[torch.Tensor], others: int, edges: bool) -> None:
        """Goes on with what was said.

        Args:
            method: answers without edges.
            said: the sums of earlier answers, batch by batch; this one's are added.
            others: how many have answered.
            edges: the mean follows the edges of the query.
        """
        self.method, self.said, self.others, self.edges = method, said, others, edges
        self.encodes, self.encode = method.encodes, method.encode
        self._batch = 0

    def __call__(self, episode: Episode) -> Prediction:
        return self._mean(self.method(episode), episode)

    def match(self, query: Features, support: Features, episode: Episode) -> Prediction:
        """As a method's."""
        return self._mean(self.method.match(query, support, episode), episode)

    def _mean(self, prediction: Prediction, episode: Episode) -> Prediction:
        odds = prediction.logits[:, 1] - prediction.logits[:, 0]
        if self.others:
            odds = odds + self.said[self._batch]
            self.said[self._batch] = odds
        else:
            self.said.append(odds)
        self._batch += 1
        odds = odds / (self.others + 1)
        mean = Prediction(torch.stack([torch.zeros_like(odds), odds], 1))
        return along_edges(mean, episode.query_images) if self.edges else mean


class Laboratory:
    """What all runs share: the images, on the device, and the test images."""

    def __init__(self, data: Path, device: torch.device, output: Path) -> None:
        self.dataset, self.device, self.output = open_dataset(data), device, output
        self._stores: dict[tuple[str, int | None], Store] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._compiled: Any = None

    def run(self, name: str, row: dict[str, Any], fold: int | str, test: dict[str, Any]) -> dict[str, Any]:
        """Trains and tests one row on one fold; arguments as in `Job`."""
        job = Job(name, row, fold, test)
        if "together" in row:
            return self._together(job)
        started = time.perf_counter()
        config = configuration(row)
        trainer = self._trainer(job, config)
        trainer.begin()
        ready = time.perf_counter()
        trainer.run()
        trained = time.perf_counter()
        checkpoint = self.output / f"{job.title}.safetensors"
        weights = {**trainer.optimization.tested, **trainer.recognised()}
        save_checkpoint(checkpoint, trainer.model, config, weights, half=True, auxiliary=False, data=trainer.parts.data)
        tested = {"test": self.test([trainer.method()], config, trainer.dataset, job)} if test else {}
        found = {
            "name": name,
            "fold": fold,
            "environment": environment(self.device),
            "row": row,
            "config": to_dict(config),
            "seconds": {"ready": ready - started, "training": trained - ready, "testing": time.perf_counter() - trained},
            **_curves(trainer.folder.records()),
            "tested": test,
            **tested,
        }
        self._write(job, found)
        return found

    def test_more(self, job: Job, found: dict[str, Any]) -> dict[str, Any]:
        """Adds to a result what it lacks of the test, measured with the checkpoint of the run."""
        methods, config = self._methods(job)
        dataset = with_held_out(self.dataset, int(job.fold), config.training.hold_out)
        found = {**found, "tested": job.test, "test": self.test(methods, config, dataset, job, found["test"])}
        self._write(job, found)
        return found

    def checkpoints(self, job: Job) -> list[Path]:
        """Where the networks of a row are, or will be."""
        return [self.output / f"{name}-fold{job.fold}.safetensors" for name in job.row.get("together", [job.name])]

    def _methods(self, job: Job) -> tuple[list[NetworkMethod], Recipe]:
        """The networks of a row, from their checkpoints."""
        loaded = [load_checkpoint(path) for path in self.checkpoints(job)]
        half = self.device.type == "cuda"
        return [NetworkMethod(network.to(self.device).accelerate(), self.device, half) for network, _ in loaded], loaded[0][1]

    def _together(self, job: Job) -> dict[str, Any]:
        """Tests the networks of other rows together."""
        methods, config = self._methods(job)
        files = [self.output / f"{name}-fold{job.fold}.json" for name in job.row["together"]]
        seconds = sum(json.loads(file.read_text())["seconds"]["training"] for file in files)
        dataset, started = with_held_out(self.dataset, int(job.fold), config.training.hold_out), time.perf_counter()
        found = {
            "name": job.name,
            "fold": job.fold,
            "environment": environment(self.device),
            "row": job.row,
            "tested": job.test,
            "test": self.test(methods, config, dataset, job),
        }
        found["seconds"] = {"training": seconds, "testing": time.perf_counter() - started}
        self._write(job, found)
        return found

    def _write(self, job: Job, found: dict[str, Any]) -> None:
        write_atomically(self.output / f"{job.title}.json", (json.dumps(found, indent=1) + "\n").encode())

    def _trainer(self, job: Job, config: Recipe) -> Trainer:
        if config.model != self._compiled:
            torch.compiler.reset()  # compiles a function for a few networks only, and leaves it uncompiled for more
            self._compiled = config.model
        everything = job.fold == "all"
        dataset = learn_from_everything(self.dataset) if everything else self.dataset
        folder = RunFolder(self.output / job.title)
        folder.clear()
        watch = job.row.get("watch", 0)
        options = Options(
            half=self.device.type == "cuda",
            compile=job.row.get("compile"),
            save_minutes=1e9,
            validate_every=watch,
            validation_episodes=_WATCHED if watch else 0,
            tensorboard=False,
        )
        store = self.store(dataset, config.training.augmentation.longest)
        plan = Plan(
            config, dataset, 0 if everything else int(job.fold), folder, self.device, options, method=method_of(job.row)
        )
        return Trainer(prepare(plan, store=store))

    def store(self, dataset: Dataset, longest: int | None) -> Store:
        """All pictures of a dataset's training images."""
        key = (dataset.name, longest)
        if key not in self._stores:
            self._stores.clear()
            torch.cuda.empty_cache()  # what is free decides whether the next ones lie on the device
            index = dataset.pool("train").index()
            images, numbers = index.pairs(range(len(dataset.classes)), dataset.smallest)
            pairs = list(zip(images.tolist(), numbers.tolist(), strict=True))
            self._stores[key] = open_store(dataset.pool("train"), index, pairs, self.device, longest)
        return self._stores[key]

    def evaluation(self, dataset: Dataset, split: str, measure: ProtocolConfig) -> Evaluation:
        """Episodes of a split; the images of one size are read once."""
        key = json.dumps([dataset.name, split, to_dict(measure)])
        if key not in self._evaluations:
            self._evaluations[key] = Evaluation(dataset, measure, split)  # type: ignore[arg-type]
        found = self._evaluations[key]
        found.dataset = dataset  # its folds may differ in what is held out
        return found

    def test(
        self,
        methods: Sequence[NetworkMethod],
        config: Recipe,
        dataset: Dataset,
        job: Job,
        known: Sequence[dict[str, Any]] = (),
    ) -> list[dict[str, Any]]:
        """MIoU and FB-IoU for each number of shots, each way and each seed; what is known is not measured again.

        Several methods answer together; what fewer of them say, the first ones, is in "fewer" then.
        """
        test, fold, measure = job.test, int(job.fold), protocol("cyctr")
        size = config.training.augmentation.size
        measure = replace(measure, input=replace(measure.input, size=size), order=test.get("order", measure.order))
        evaluation = self.evaluation(dataset, test["split"], measure)
        found, familiar = [], [getattr(method.network, "familiar", None) for method in methods]
        for shots, way in measured(test):
            if way["plain"] and not any(familiar):
                continue
            if own := [one for one in known if one["shots"] == shots and tested_so(one, way)]:
                found += own
                continue
            settings = [RunKey(fold, shots, seed) for seed in test["seeds"]]
            batch = episodes_together(self.device, shots)
            before, each = time.perf_counter(), []
            said: list[torch.Tensor] = []
            for place, method in enumerate(methods):
                alone = len(methods) == 1
                method.flip, method.edges = way["flip"], way["edges"] and alone
                if familiar[place] is not None:
                    method.network.familiar = None if way["plain"] else familiar[place]
                results = Results({})
                limit = int(0.5 * free_memory(self.device))
                answering = method if alone else Averaged(method, said, place, way["edges"])
                evaluation.run(answering, results, settings, test["episodes"], self.device, batch, 16, remember=limit)
                each.append([results.runs[setting].result() for setting in settings])
            seconds = time.perf_counter() - before
            for place, setting in enumerate(settings):
                result = each[-1][place]
                found.append(
                    {
                        "shots": shots,
                        **way,
                        "seed": setting.seed,
                        "miou": 100 * result.miou,
                        "fb_iou": 100 * result.fb_iou,
                        "classes": {dataset.classes[c]: 100 * iou for c, iou in result.classes.items()},
                        **({"fewer": [100 * fewer[place].miou for fewer in each[:-1]]} if len(methods) > 1 else {}),
                        "episodes_per_second": test["episodes"] * len(settings) / seconds,
                    }
                )
        return found


def configuration(row: dict[str, Any]) -> Recipe:
    """The config of a row."""
    recipes = recipes_of(method_of(row))
    config = recipes.preset(row.get("preset"))
    if "weights" in row:
        config = with_weights(config, row["weights"])
    return parse(recipes.kind, config, row.get("settings", {}))


def method_of(row: dict[str, Any]) -> str:
    """The method that a row trains."""
    return row.get("method", USUAL)


def as_built(config: Recipe) -> Recipe:
    """The same with the backbone's first blocks as they are built, whether that was asked for or follows from the weights."""
    backbone = config.model.backbone
    entry = CATALOGUE.get(backbone.weights or "")
    settled = replace(backbone, **entry.settings) if entry else backbone
    return replace(config, model=replace(config.model, backbone=replace(backbone, dilate_first=settled.dilates_first)))


def summary(found: dict[str, Any]) -> str:
    """One line of a table."""
    parts = [f"{found['name']:<28} fold {found['fold']}"]
    if "loss" in found:
        parts.append(f"loss {found['loss']:.3f} {found['seconds']['training']:5.0f} s {found['episodes_per_second']:5.0f}/s")
    for shots, way in product(sorted({one["shots"] for one in found.get("test", [])}), WAYS):
        own = [one for one in found["test"] if one["shots"] == shots and tested_so(one, way)]
        if not own:
            continue
        scores = [one["miou"] for one in own]
        spread = f" ({min(scores):.1f}-{max(scores):.1f})" if len(scores) > 1 else ""
        how = "".join(f" {name}" for name, wanted in way.items() if wanted)
        speed = own[0]["episodes_per_second"]
        parts.append(f"{shots}-shot{how} {fmean(scores):.2f}{spread} {speed:.0f}/s")
    return "  ".join(parts)


def jobs(plans: Sequence[Path], only: str) -> Iterator[Job]:
    """What the plans ask for, in their order; of rows whose names begin with `only`."""
    for path in plans:
        plan = json.loads(path.read_text())
        for name, row in plan["rows"].items():
            if name.startswith(only):
                for fold in row.get("folds", plan["folds"]):
                    yield Job(name, row, fold, row.get("test", plan.get("test", {})))


def _curves(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the metrics of a run: its usual speed, its last loss, and what it scored on the way."""
    lines = [record for record in records if "loss" in record]
    watched = [record for record in records if "validation" in record]
    return {
        "episodes_per_second": median(line["episodes_per_second"] for line in lines),
        "loss": lines[-1].get("main", lines[-1]["loss"]),  # of CyCTR that of the query
        "curve": [{"episodes": r["episodes"], "seconds": r["seconds"], "miou": r["validation"]["miou"]} for r in watched],
    }


def refuse(message: str) -> NoReturn:
    """One line for whoever can mend it, and the exit code that says so."""
    print(f"run.py: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, nargs="+", help="JSON files, as above")
    parser.add_argument("--data", type=Path, required=True, help="folder of a dataset, or synthetic")
    parser.add_argument("--output", type=Path, default=Path("runs/experiments"), help="folder for results and checkpoints")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument("--only", default="", help="rows whose names begin so")
    given = parser.parse_args()
    began = time.perf_counter()
    try:
        planned = list(jobs(given.plan, given.only))
        given.output.mkdir(parents=True, exist_ok=True)
        laboratory = Laboratory(given.data, choose_device(given.device), given.output)
    except CyctrError as error:
        refuse(one_line(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}; check the path")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        refuse(f"{', '.join(map(str, given.plan))}: not a plan ({type(error).__name__}: {error}); see --help")
    if not planned:
        refuse(f"--only is {given.only!r}, and no row's name begins so")
    longest, failed = 0.0, False
    for job in planned:
        start = time.perf_counter()
        there, left = given.output / f"{job.title}.json", given.seconds - (start - began)
        try:
            if there.exists():
                found = json.loads(there.read_text())
                if not job.trained(found):
                    print(f"{there}: is of another configuration; remove it to do it again", flush=True)
                elif (
                    job.asks_more(found)
                    and not job.tested(found)
                    and all(path.exists() for path in laboratory.checkpoints(job))
                ):
                    print(summary(laboratory.test_more(job, found)), flush=True)
                elif not job.tested(found):
                    print(f"{there}: is of another test; remove it to do it again", flush=True)
            elif job.row.get("seconds", longest) > left:
                print(f"{job.title}: left out, {left:.0f} s are left", flush=True)
            else:
                print(summary(laboratory.run(*job)), flush=True)
        except Exception as error:  # one row that fails does not cost the others
            failed = True
            if not isinstance(error, CyctrError):
                traceback.print_exc()
            print(f"{job.title}: {type(error).__name__}: {error}", flush=True)
        longest = max(longest, time.perf_counter() - start)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
