"""Times the network stage by stage and writes one JSON file.

    python benchmarks/network.py                     # CPU, or the GPU where there is one
    python benchmarks/network.py --backbone tf_efficientnet_lite0 --shots 1

Every stage of a row is measured in the same run, in turns, so that a noisy machine disturbs all alike: read the ratios.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch

from cyctr.methods.base import Step
from cyctr.methods.cyctr.config import PAPER
from cyctr.methods.cyctr.network import CyCTR, build
from cyctr.methods.cyctr.state import Support
from cyctr.methods.parts.prior import prior_map
from cyctr.types import Episode, Prediction

PRECISIONS = ("fp32", "bf16")


def make_episode(shots: int, size: int, device: torch.device) -> Episode:
    """Noise with a square over a sixth of each support: 600 of 3,600 cells, PASCAL's average (section 4.2)."""
    generator = torch.Generator().manual_seed(0)
    side, start = round(size / 6**0.5), size // 4
    label = torch.zeros(size, size, dtype=torch.uint8)
    label[start : start + side, start : start + side] = 1
    images = torch.rand(shots + 1, 3, size, size, generator=generator)
    supports, query = images[None, :-1], images[None, -1]
    labels = label.expand(1, shots, size, size).contiguous()
    return Episode(*(value.to(device) for value in (supports, labels, query, label[None].contiguous())))


class Measure:
    """Runs stages in turns and keeps the median milliseconds and the peak memory of each."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def __call__(self, stages: dict[str, Callable[[], object]]) -> dict[str, dict[str, float | None]]:
        times: dict[str, list[float]] = {name: [] for name in stages}
        memory: dict[str, float | None] = {}
        for turn in range(self.repeats + 1):
            for name, stage in stages.items():
                self._reset_peak()
                start = time.perf_counter()
                stage()
                self._wait()
                if turn:  # the first is a warm-up
                    times[name].append(1e3 * (time.perf_counter() - start))
                memory[name] = max(memory.get(name) or 0, self._peak() or 0) or None
        return {name: {"ms": round(statistics.median(times[name]), 2), "peak_mb": memory[name]} for name in stages}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the high-water mark

    def _peak(self) -> float | None:
        if self.device.type == "cuda":
            return round(torch.cuda.max_memory_allocated() / 1e6)
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return None
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6)


def inference_stages(model: CyCTR, plain: CyCTR, episode: Episode, compiled: bool) -> dict[str, Callable[[], object]]:
    """The forward, whole and in parts."""
    query = model.backbone(episode.query_images)

    def shown() -> Support:
        return model.encode_support(model.backbone(episode.support_images.flatten(0, 1)), episode.support_labels)

    def answered(images: torch.Tensor) -> Prediction:
        return model.predict(model.backbone(images), support, size)

    support = shown()
    size = (episode.query_images.shape[-2], episode.query_images.shape[-1])
    reduced, high = model.prepare(query).reduced, query.maps[-1]
    merged = model.merge_query(torch.cat([reduced, reduced[:, :1]], 1), support.prototype)
    encoded, _ = model.mixer(merged, support)
    stages: dict[str, Callable[[], object]] = {
        "backbone, plain": lambda: plain.backbone(episode.query_images),
        "backbone": lambda: model.backbone(episode.query_images),
        "prior": lambda: prior_map(high, support.high, support.high_valid),
        "encoder": lambda: model.mixer(merged, support),
        "head": lambda: model.backbone.grid.upsample(model.classifier(encoded).float(), size),
        "encode support": shown,
        "query only": lambda: answered(episode.query_images),
        "joint": lambda: model(episode),
    }
    if compiled:
        fast_joint, fast_query = torch.compile(model), torch.compile(answered)
        stages["query only, compiled"] = lambda: fast_query(episode.query_images)
        stages["joint, compiled"] = lambda: fast_joint(episode)
    return stages


def training_stage(model: CyCTR, episode: Episode) -> Callable[[], object]:
    """Forward and backward of one episode."""

    def step() -> None:
        model.zero_grad()
        query, support = model.backbone(episode.query_images), model.backbone(episode.support_images.flatten(0, 1))
        model.learn(episode, query, support, Step(torch.zeros(len(episode.query_images), dtype=torch.int64))).total.backward()

    return step


def run(options: argparse.Namespace) -> dict[str, object]:
    device = torch.device(options.device)
    if device.type == "cpu" and options.threads:
        torch.set_num_threads(options.threads)
    config = replace(PAPER.model, backbone=replace(PAPER.model.backbone, name=options.backbone))
    torch.manual_seed(0)
    plain = build(config).to(device).eval()
    fast = build(config).to(device).eval()
    fast.load_state_dict(plain.state_dict())
    fast.accelerate()
    measure, rows = Measure(device, options.repeats), []
    for shots in options.shots:
        episode = make_episode(shots, options.size, device)
        for precision in options.precisions:
            cast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
            with cast:
                with torch.inference_mode(not options.compile), torch.no_grad():
                    stages = measure(inference_stages(fast, plain, episode, options.compile))
                plain.train()
                stages |= measure({"forward + backward": training_stage(plain, episode)})
                plain.eval()
            unit = stages["backbone"]["ms"]
            ratios = {name: round(stages[name]["ms"] / unit, 2) for name in ("query only", "joint")}
            ratios["backbone / plain"] = round(unit / stages["backbone, plain"]["ms"], 2)
            rows.append({"shots": shots, "precision": precision, "stages": stages, "ratios to one backbone pass": ratios})
            show(rows[-1])
    machine = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {
        "machine": machine,
        "torch": torch.__version__,
        "backbone": options.backbone,
        "size": options.size,
        "repeats": options.repeats,
        "rows": rows,
    }


def show(row: dict) -> None:
    print(f"\n{row['shots']}-shot, {row['precision']}")
    for name, numbers in row["stages"].items():
        print(f"  {name:22s} {numbers['ms']:9.1f} ms  {numbers['peak_mb'] or 0:7.0f} MB peak")
    ratios = ", ".join(f"{name} {value}" for name, value in row["ratios to one backbone pass"].items())
    print(f"  ratios to one backbone pass: {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="resnet50", help="a timm network, with random weights")
    parser.add_argument("--size", type=int, default=473, help="pixels on each side")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--compile", action="store_true", help="also the compiled forward (takes a minute or more to compile)")
    parser.add_argument("--output", type=Path, help="default: network-DEVICE.json beside this script")
    options = parser.parse_args()
    options.output = options.output or Path(__file__).with_name(f"network-{torch.device(options.device).type}.json")
    report = run(options)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{options.output}")


if __name__ == "__main__":
    main()
