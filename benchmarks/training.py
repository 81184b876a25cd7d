"""Speed of training and of testing: `python benchmarks/training.py --data VOC2012`; writes benchmarks/training-DEVICE.json.

Episodes per second of whole training steps, with the share of each part, and of testing with features made once and
made anew in each episode. Each pair of images is trained in both directions, whatever the preset. Any device, batch and
size: `--data synthetic --weights tiny --size 129 --batch 4` takes seconds on a CPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cyctr.config import parse, protocol, to_dict
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device, episodes_together
from cyctr.evaluation import run as evaluation
from cyctr.evaluation.results import Results
from cyctr.evaluation.run import environment
from cyctr.methods.backbone_choice import with_weights
from cyctr.methods.cyctr.config import Config, preset
from cyctr.training.loop import Trainer
from cyctr.training.options import Options
from cyctr.training.plan import Plan
from cyctr.training.run import prepare
from cyctr.training.run_folder import RunFolder
from cyctr.training.state import random_state
from cyctr.types import Features


def seconds(work: Callable[[int], Any], count: int, device: torch.device) -> float:
    """Mean seconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(count):
        work(i)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def training(trainer: Trainer, steps: int, warm: int) -> dict[str, Any]:
    """Seconds of a step and of its parts. Each part is timed alone, so that together they may exceed the whole."""
    batch, device = trainer.config.training.batch, trainer.device
    feed = trainer.episodes.steps(range(10**6))
    trainer.model.train()
    step = 0

    def whole(_: int) -> None:
        nonlocal step
        random_state(0, step, device)
        trainer.losses(next(feed), trainer.drawn(step)).total.backward()
        trainer.optimization.step(step)
        step += 1

    start = time.perf_counter()
    seconds(whole, warm, device)
    warm_up = time.perf_counter() - start
    total = seconds(whole, steps, device)
    groups = next(feed)
    tokens = trainer.drawn(0)
    parts = {"data": seconds(lambda _: next(feed), steps, device)}
    tuned = trainer.config.model.backbone.tuned
    with trainer.plan.precision():
        parts["backbone"] = seconds(lambda _: trainer.parts.encode(groups.images), steps, device)
        found = trainer.parts.encode(groups.images)
        features = found.changed(lambda maps: maps.detach().requires_grad_(tuned))
        if tuned:
            pull = [torch.ones_like(maps) for maps in features.maps]
            both = seconds(lambda _: _backward(trainer.parts.encode(groups.images), pull), steps, device)
            parts["backbone backward"] = both - parts["backbone"]

        def forward(_: int) -> Any:
            tensors = (groups.images, groups.labels, groups.padding, groups.roles, groups.seeds)
            return trainer.parts.learn(trainer.model, features, *tensors, groups.rotated, tokens)

        parts["encoder forward"] = seconds(forward, steps, device)
        both = seconds(lambda _: forward(0).total.backward(), steps, device)
    parts["encoder backward"] = both - parts["encoder forward"]
    kept = [(weight, weight.grad) for weight in trainer.optimization.weights.values()]

    def optimize(i: int) -> None:
        for weight, gradient in kept:  # a step throws them away
            weight.grad = gradient
        trainer.optimization.step(step + i)

    parts["optimizer"] = seconds(optimize, steps, device)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "episodes_per_second": batch / total,
        "step_ms": 1000 * total,
        "parts_ms": {name: 1000 * value for name, value in parts.items()},
        "warm_up_s": warm_up,
        "memory_gib": memory,
        "batch": batch,
        "steps": steps,
    }


def _backward(features: Features, gradients: list[torch.Tensor]) -> None:
    torch.autograd.backward(features.maps, gradients)


def testing(trainer: Trainer, dataset: Any, shots: int, remember: bool, episodes: int, batch: int) -> dict[str, Any]:
    """Episodes per second, images in memory already."""
    size = trainer.config.training.augmentation.size
    measure = protocol("cyctr")
    job = evaluation.prepare(
        dataset,
        replace(measure, input=replace(measure.input, size=size)),
        folds=[trainer.fold],
        shots=[shots],
        episodes=episodes,
    )
    job.device = trainer.device
    method = trainer.method()
    rates = []
    for _ in range(2):  # the first reads the images
        start = time.perf_counter()
        job.run(method, Results({}), batch, workers=8, remember=remember)
        rates.append(episodes / (time.perf_counter() - start))
    features = "once" if remember else "anew"
    return {"shots": shots, "features": features, "batch": batch, "first": rates[0], "episodes_per_second": rates[1]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic", help="folder of a dataset")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--weights", default="resnet50-keras")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=473)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--compile", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--episodes", type=int, default=1000, help="of each test; 0 tests nothing")
    parser.add_argument("--test-batch", type=int, help="default: as cyctr evaluate")
    parser.add_argument("--output", type=Path)
    parser.add_argument("settings", nargs="*", help="such as model.dim=128")
    given = parser.parse_args(argv)
    device = choose_device(given.device)
    config = preset(given.preset)
    config = with_weights(config, given.weights)
    changes = {"training.batch": str(given.batch), "training.rotate": "true", "training.augmentation.size": str(given.size)}
    config = parse(Config, config, changes | dict(text.split("=", 1) for text in given.settings))
    dataset = open_dataset(Path(given.data))
    options = Options(half=device.type == "cuda", compile={"yes": True, "no": False}.get(given.compile))
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        trainer = Trainer(prepare(Plan(config, dataset, 0, RunFolder(Path(folder)), device, options)))
        asked = {"preset": given.preset, "weights": given.weights, "size": given.size, "settings": given.settings}
        found: dict[str, Any] = {"environment": environment(device), **asked, "config": to_dict(config)}
        found["reading_s"] = time.perf_counter() - start
        found["training"] = training(trainer, given.steps, given.warm)
        print(json.dumps(found, indent=2))
        found["testing"] = []
        cases = ((1, True), (5, True), (1, False), (5, False)) if given.episodes else ()
        for shots, remember in cases:
            batch = given.test_batch or episodes_together(device, shots)
            found["testing"].append(testing(trainer, dataset, shots, remember, given.episodes, batch))
            print(json.dumps(found["testing"][-1]))
    path = given.output or Path(__file__).parent / f"training-{device.type}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
