"""Trains and tests the rows of a plan in one process, which reads the data once.

    python experiments/run.py experiments/table1.json --data VOC2012

A plan is JSON: {"rows": {NAME: {"preset", "weights", "settings": {DOTTED: TEXT}}}, "folds": [...],
"test": {"split", "shots", "seeds", "episodes"}}; a row may have "folds" and "test" of its own. Each row and fold gives one
JSON in --output, at once; those that are there already are not done again. "label_bug" in a row switches on the released
code's mistake.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cyctr.checkpoint import save_checkpoint
from cyctr.config import Config, ProtocolConfig, parse, preset, protocol, to_dict
from cyctr.data.dataset import Dataset
from cyctr.data.joined import learn_from_everything
from cyctr.data.opening import open_dataset
from cyctr.data.pictures import Store, free_memory, open_store
from cyctr.engine import session
from cyctr.engine.evaluate import environment
from cyctr.engine.folder import RunFolder
from cyctr.engine.methods import NetworkMethod, backbone_of, choose_device
from cyctr.engine.train import Options, Trainer
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import Results, Setting
from cyctr.model import CyCTR
from cyctr.model import cyctr as network_module
from cyctr.model.sampling import Sample, sample_tokens


class Laboratory:
    """What all runs share: the images, on the device, and the test images."""

    def __init__(self, data: Path, device: torch.device, output: Path) -> None:
        self.dataset, self.device, self.output = open_dataset(data), device, output
        self._stores: dict[tuple[str, int | None], Store] = {}
        self._evaluations: dict[str, Evaluation] = {}

    def store(self, dataset: Dataset, longest: int | None) -> Store:
        """All pictures of a dataset's training images."""
        key = (dataset.name, longest)
        if key not in self._stores:
            self._stores.clear()
            index = dataset.pool("train").index()
            images, numbers = index.pairs(range(len(dataset.classes)), dataset.smallest)
            pairs = list(zip(images.tolist(), numbers.tolist(), strict=True))
            self._stores[key] = open_store(dataset.pool("train"), index, pairs, self.device, longest)
        return self._stores[key]

    def evaluation(self, dataset: Dataset, split: str, measure: ProtocolConfig) -> Evaluation:
        """Episodes of a split; the images of one size are read once."""
        key = json.dumps([split, to_dict(measure)])
        found = self._evaluations.get(key)
        if found is None:
            found = self._evaluations[key] = Evaluation(dataset, measure, split)  # type: ignore[arg-type]
        found.dataset = dataset  # its folds may differ in what is held out
        return found

    def run(self, name: str, row: dict[str, Any], fold: int | str, test: dict[str, Any]) -> dict[str, Any]:
        """Trains and tests one row on one fold."""
        started = time.perf_counter()
        config = configuration(row)
        dataset = learn_from_everything(self.dataset) if fold == "all" else self.dataset
        number = 0 if fold == "all" else int(fold)
        folder = RunFolder(self.output / f"{name}-fold{fold}")
        folder.clear()
        watch = row.get("watch", 0)
        options = Options(
            half=self.device.type == "cuda",
            compile=row.get("compile"),
            save_minutes=1e9,
            validate_every=watch,
            validation_episodes=300 if watch else 0,
            tensorboard=False,
        )
        store = self.store(dataset, config.training.augmentation.longest)
        trainer = Trainer(config, dataset, number, folder, self.device, options, store=store)
        ready = time.perf_counter()
        session.run(trainer)
        trained = time.perf_counter()
        rates = [record["episodes_per_second"] for record in folder.records() if "loss" in record]
        found: dict[str, Any] = {
            "name": name,
            "fold": fold,
            "environment": environment(self.device),
            "row": row,
            "config": to_dict(config),
            "seconds": {"ready": ready - started, "training": trained - ready},
            "episodes_per_second": sorted(rates)[len(rates) // 2],
            "loss": [record["main"] for record in folder.records() if "loss" in record][-1],
            "curve": [
                {"episodes": r["episodes"], "seconds": r["seconds"], "miou": r["validation"]["miou"]}
                for r in folder.records()
                if "validation" in r
            ],
        }
        save_checkpoint(
            self.output / f"{name}-fold{fold}.safetensors",
            trainer.model,
            config,
            trainer.optimization.tested,
            half=True,
            auxiliary=False,
        )
        if test:
            found["test"] = self.test(trainer, test)
        found["seconds"]["testing"] = time.perf_counter() - trained
        (self.output / f"{name}-fold{fold}.json").write_text(json.dumps(found, indent=1) + "\n")
        return found

    def test(self, trainer: Trainer, test: dict[str, Any]) -> list[dict[str, Any]]:
        """MIoU and FB-IoU for each number of shots and each seed."""
        network = CyCTR(trainer.config.model, trainer.encoder).to(self.device)
        network.load_state_dict(trainer.optimization.tested, strict=False)
        method = NetworkMethod(network, self.device, self.device.type == "cuda")
        measure = protocol("cyctr")
        size = trainer.config.training.augmentation.size
        measure = replace(measure, input=replace(measure.input, size=size), order=test.get("order", measure.order))
        evaluation = self.evaluation(trainer.dataset, test["split"], measure)
        found = []
        for shots in test["shots"]:
            settings = [Setting(trainer.fold, shots, seed) for seed in test["seeds"]]
            results = Results({})
            before = time.perf_counter()
            limit = int(0.5 * free_memory(self.device))
            batch = 16 if self.device.type == "cuda" else 1
            evaluation.run(method, results, settings, test["episodes"], self.device, batch, 16, remember=limit)
            seconds = time.perf_counter() - before
            for setting in settings:
                result = results.runs[setting].result()
                found.append(
                    {
                        "shots": shots,
                        "seed": setting.seed,
                        "miou": 100 * result.miou,
                        "fb_iou": 100 * result.fb_iou,
                        "classes": {trainer.dataset.classes[c]: 100 * iou for c, iou in result.classes.items()},
                        "episodes_per_second": test["episodes"] * len(settings) / seconds,
                    }
                )
        return found


def configuration(row: dict[str, Any]) -> Config:
    """The config of a row."""
    config = preset(row.get("preset", "best"))
    if "weights" in row:
        taps = row.get("taps")
        backbone = replace(backbone_of(row["weights"]), taps=tuple(taps) if taps else None)
        config = replace(config, model=replace(config.model, backbone=backbone))
    return parse(Config, config, row.get("settings", {}))


def sample_with_label_bug(cells: torch.Tensor, count: int, seeds: torch.Tensor) -> Sample:
    """As the released code: a token drawn as the i-th foreground cell gets the label of the i-th cell of all."""
    sample = sample_tokens(cells, count, seeds)
    flat = cells.flatten(1)  # (B, S)
    rank = torch.where(flat == 1, (flat == 1).cumsum(1), (flat == 0).cumsum(1)) - 1  # place among those of its class
    wrong = flat.gather(1, rank.gather(1, sample.index).clamp_min(0))
    return Sample(sample.index, wrong == 1, sample.valid)


def summary(found: dict[str, Any]) -> str:
    """One line of a table."""
    parts = [f"{found['name']:<28} fold {found['fold']}"]
    parts.append(f"loss {found['loss']:.3f} {found['seconds']['training']:5.0f} s {found['episodes_per_second']:5.0f}/s")
    for shots in sorted({one["shots"] for one in found.get("test", [])}):
        scores = [one["miou"] for one in found["test"] if one["shots"] == shots]
        spread = f" ({min(scores):.1f}-{max(scores):.1f})" if len(scores) > 1 else ""
        rate = next(one["episodes_per_second"] for one in found["test"] if one["shots"] == shots)
        parts.append(f"{shots}-shot {sum(scores) / len(scores):.2f}{spread} {rate:.0f}/s")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument("--only", default="", help="rows whose names begin so")
    given = parser.parse_args()
    began = time.perf_counter()
    given.output.mkdir(parents=True, exist_ok=True)
    laboratory = Laboratory(given.data, choose_device(given.device), given.output)
    longest = 0.0
    for path in given.plan:
        plan = json.loads(path.read_text())
        for name, row in plan["rows"].items():
            for fold in row.get("folds", plan["folds"]):
                start = time.perf_counter()
                expected = row.get("seconds", longest)
                done = (given.output / f"{name}-fold{fold}.json").exists()
                if done or not name.startswith(given.only):
                    continue
                if start - began + expected > given.seconds:
                    print(f"{name} fold {fold}: left out, {given.seconds - (start - began):.0f} s are left", flush=True)
                    continue
                network_module.sample_tokens = sample_with_label_bug if row.get("label_bug") else sample_tokens
                try:
                    print(summary(laboratory.run(name, row, fold, row.get("test", plan.get("test", {})))), flush=True)
                except Exception as error:  # one row that fails does not cost the others
                    print(f"{name} fold {fold}: {type(error).__name__}: {error}", flush=True)
                longest = max(longest, time.perf_counter() - start)


if __name__ == "__main__":
    main()
