"""When does the cycle help? Networks with and without it answer the same episodes, which are then sorted by what they hold.

    python experiments/cycle.py --data VOC2012 --with full-fold0.safetensors --without vanilla-fold0.safetensors --fold 0

Three answers to each episode: the network that learned with the cycle, the same with the cycle switched off, and, where
there is one, the network that learned without it. All must have the same backbone, whose features are made once. Of each kind
of episode: foreground IoU, intersections and unions summed, and how far the first is above the last, with an interval from
drawing episodes anew.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyctr.checkpoint import load_checkpoint
from cyctr.config import protocol
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device, episodes_together
from cyctr.episodes.loading import Batch
from cyctr.evaluation.answering import NetworkMethod
from cyctr.evaluation.protocol import Evaluation, score
from cyctr.evaluation.results import RunKey
from cyctr.evaluation.run import environment
from cyctr.methods.cyctr.network import CyCTR
from cyctr.types import Prediction

WITH, OFF, WITHOUT = "with the cycle", "switched off", "without"
SMALL, LARGE = 0.1, 0.3  # shares of an image
REPLICATES = 2000
Counts = NDArray[np.int64]


def networks(learned_with: Path, learned_without: Path | None) -> tuple[dict[str, CyCTR], int]:
    """The two or three, on one backbone, and the size of the inputs they learned from."""
    first, config = load_checkpoint(learned_with)
    encoder = replace(config.model.encoder, cross="vanilla")
    off = CyCTR.build(replace(config, model=replace(config.model, encoder=encoder)), first.backbone)
    off.load_state_dict(first.state_dict())
    size = config.training.augmentation.size
    if learned_without is None:
        return {WITH: first, OFF: off}, size
    last, other = load_checkpoint(learned_without)
    if (config.model.backbone, size) != (other.model.backbone, other.training.augmentation.size):
        raise SystemExit("the checkpoints differ in backbone or input size; expected two that differ in encoder.cross alone")
    return {WITH: first, OFF: off, WITHOUT: last}, size


def answers(methods: dict[str, NetworkMethod], batch: Batch) -> Iterator[tuple[str, Prediction]]:
    """What each says; the images are encoded once."""
    encode, episode = next(iter(methods.values())).encode, batch.episode
    query, support = encode(episode.query_images), encode(episode.support_images.flatten(0, 1))
    for name, method in methods.items():
        yield name, method.match(query, support, episode)


def kinds(batch: Batch, others: dict[int, int]) -> list[dict[str, float]]:
    """Of each episode: shares of its object in the images, and how many other classes the supports show."""
    rows = []
    for draw, labels, truth in zip(batch.draws, batch.episode.support_labels, batch.truths, strict=True):
        marked, inside = (labels == 1).flatten(1).sum(1), (labels != 255).flatten(1).sum(1)
        rows.append(
            {
                "query": float((truth == 1).float().mean()),
                "support": float((marked / inside.clamp_min(1)).mean()),
                "others": max(others[image] - 1 for image in draw.supports),
            }
        )
    return rows


def groups(rows: list[dict[str, float]]) -> dict[str, NDArray[np.bool_]]:
    """Which episodes are of which kind."""
    query, support, others = (np.array([row[name] for row in rows]) for name in ("query", "support", "others"))
    return {
        "all": np.ones(len(rows), bool),
        f"query object below {SMALL:.0%}": query < SMALL,
        f"query object {SMALL:.0%} to {LARGE:.0%}": (query >= SMALL) & (query < LARGE),
        f"query object above {LARGE:.0%}": query >= LARGE,
        f"support object below {SMALL:.0%}": support < SMALL,
        f"support object {SMALL:.0%} to {LARGE:.0%}": (support >= SMALL) & (support < LARGE),
        f"support object above {LARGE:.0%}": support >= LARGE,
        "no other class in the support": others == 0,
        "other classes in the support": others > 0,
    }


def iou(counts: Counts) -> Any:
    """Foreground IoU of (..., E, 4) counts, summed over episodes."""
    hit, wrong, missed, _ = np.moveaxis(counts.sum(-2), -1, 0)
    return 100 * hit / np.maximum(hit + wrong + missed, 1)


def compare(counts: dict[str, Counts], chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """The IoU of each network on some episodes, and what the cycle brings."""
    own = {name: found[chosen] for name, found in counts.items()}
    last = list(own)[-1]
    drawn = np.random.default_rng(0).integers(0, chosen.sum(), (REPLICATES, chosen.sum()))
    gains = iou(own[WITH][drawn]) - iou(own[last][drawn])
    low, high = np.quantile(gains, [0.025, 0.975])
    scores = {name: round(float(iou(found)), 2) for name, found in own.items()}
    gain = round(float(iou(own[WITH]) - iou(own[last])), 2)
    return {"episodes": int(chosen.sum()), **scores, "gain": gain, "interval": [round(float(low), 2), round(float(high), 2)]}


@torch.inference_mode()
def measure(given: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(given.device)
    half = device.type == "cuda"
    compared, size = networks(given.with_, given.without)
    methods = {name: NetworkMethod(network, device, half) for name, network in compared.items()}
    usual = protocol("cyctr")
    evaluation = Evaluation(open_dataset(given.data), replace(usual, input=replace(usual.input, size=size)), "test")
    index = evaluation.index
    images, _ = index.pairs(range(len(evaluation.dataset.classes)), evaluation.dataset.smallest)
    others = dict(zip(*(part.tolist() for part in np.unique(images, return_counts=True)), strict=True))
    rows: list[dict[str, float]] = []
    counts: dict[str, list[Any]] = {name: [] for name in methods}
    for seed in given.seeds:
        source = evaluation.source(RunKey(given.fold, given.shots, seed), device)
        for batch in source.batches(range(given.episodes), episodes_together(device, given.shots), 4):
            rows += kinds(batch, others)
            for name, prediction in answers(methods, batch):
                counts[name] += score(lambda _, found=prediction: found, batch, evaluation.protocol).tolist()
            print(f"\r{len(rows)} episodes", end="", flush=True)
    print()
    found = {name: np.array(own, np.int64) for name, own in counts.items()}
    by_kind = {name: compare(found, chosen) for name, chosen in groups(rows).items() if chosen.any()}
    about = {name: getattr(given, name) for name in ("fold", "shots", "episodes", "seeds")}
    return {"environment": environment(device), **about, "kinds": by_kind}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--with", dest="with_", type=Path, required=True, help="checkpoint that learned with the cycle")
    parser.add_argument("--without", type=Path, help="checkpoint that learned with vanilla cross-attention")
    parser.add_argument("--fold", type=int, required=True)
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=1000, help="for each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/cycle.json"))
    given = parser.parse_args()
    found = measure(given)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    last = "without" if given.without else ""
    print(f"{'':32s} episodes  with   off {last:>8s}   gain")
    for name, kind in found["kinds"].items():
        low, high = kind["interval"]
        scores = "".join(f"{kind[network]:6.1f}" for network in (WITH, OFF, WITHOUT) if network in kind)
        print(f"{name:32s} {kind['episodes']:6d} {scores}   {kind['gain']:+.1f} ({low:+.1f} to {high:+.1f})")


if __name__ == "__main__":
    main()
