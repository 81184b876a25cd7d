"""Times each rewrite of `cyctr.speed` by itself and writes one JSON file.

    python benchmarks/rewrites.py                                    # lite0 and resnet50, on the CPU
    python benchmarks/rewrites.py --model runs/a/last.safetensors --precisions fp32

A pass of the backbone is timed without any rewrite, with one of them, with all, and with all but one, in turns in one run.
*alone* is the time without any rewrite by the time with this one; *last* is the time with all others by the time with all.
A rewrite that gains nothing has 1.00. What works in the head is timed likewise, in a whole episode of one labelled image.
On a GPU each Triton kernel is timed too: whole batches of episodes with all kernels, by the time with torch in its place.
"""

import argparse
import copy
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from network import PRECISIONS, Measure, make_episode
from torch import Tensor, nn

from cyctr import load_checkpoint, pretrained
from cyctr.backbones.tuning import settle
from cyctr.methods.base import Step
from cyctr.methods.cyctr import cycle_attention, predicted_attention
from cyctr.speed import fast_depthwise, kernels
from cyctr.speed.fusion import REWRITES, rewritten
from cyctr.types import Episode

KERNELS: dict[str, ModuleType] = {
    "nearest token": cycle_attention,
    "sampled points": predicted_attention,
    "depthwise": fast_depthwise,
}
"""The module that calls each Triton kernel."""
ON_CPU: dict[str, ModuleType] = {"round trips": cycle_attention, "sampled points": predicted_attention}
"""The module that calls each operator of `cyctr.speed.on_cpu`."""
BATCH = 16  # episodes that a GPU does together


def versions(backbone: nn.Module, images: Tensor) -> dict[str, nn.Module]:
    """The backbone with each choice of rewrites."""
    choices = {"none": (), "all": REWRITES}
    choices |= {f"only {name}": (name,) for name in REWRITES}
    choices |= {f"all but {name}": tuple(other for other in REWRITES if other != name) for name in REWRITES}
    found = {}
    for title, only in choices.items():
        found[title] = copy.deepcopy(backbone)
        found[title].body = rewritten(backbone.body, images.float(), only)
        found[title].accelerated = "channels last" in only  # its images are laid out likewise
    return found


def replaced(backbone: nn.Module, images: Tensor) -> dict[str, int]:
    """How many layers each rewrite puts others in the place of."""
    kinds = {name: type(layer) for name, layer in backbone.body.named_modules()}
    others = {name: dict(rewritten(backbone.body, images.float(), (name,)).named_modules()) for name in REWRITES}
    return {
        name: sum(place in other and type(other[place]) is not kind for place, kind in kinds.items())
        for name, other in others.items()
    }


def gains(stages: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """For each rewrite, how many times as fast the backbone is with it: alone, and as the last of all."""
    time = {name: stage["ms"] for name, stage in stages.items()}
    return {
        name: {
            "alone": round(time["none"] / time[f"only {name}"], 3),
            "last": round(time[f"all but {name}"] / time["all"], 3),
        }
        for name in REWRITES
    }


def rows(model: str, options: argparse.Namespace) -> list[dict]:
    device = torch.device(options.device)
    network, _ = load_checkpoint(pretrained.find(model))
    network = network.to(device).eval()
    settle(network.backbone.body)
    episode = make_episode(1, options.size, device)
    images = episode.query_images
    every, layers = versions(network.backbone, images), replaced(network.backbone, images)
    fast = network.accelerate()
    measure, found = Measure(device, options.repeats), []
    for precision in options.precisions:
        cast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        with torch.inference_mode(), cast:
            stages = measure({title: partial(version, images) for title, version in every.items()})
            on = ON_CPU if device.type == "cpu" else {}
            heads = {name: partial(in_torch, module, "on_cpu", partial(fast, episode)) for name, module in on.items()}
            whole = measure({"all": partial(fast, episode)} | {f"all but {name}": work for name, work in heads.items()})
        gain = gains(stages)
        gain |= {name: {"last": round(whole[f"all but {name}"]["ms"] / whole["all"]["ms"], 3)} for name in heads}
        row = {"model": Path(model).stem, "backbone": network.backbone.config.name, "precision": precision}
        found.append(row | {"gains": gain, "layers": layers, "backbone pass": stages, "episode": whole})
        show(found[-1])
    if kernels.usable(images):
        found.append({"model": Path(model).stem, "kernels": kernel_gains(network, options)})
        for work, gain in found[-1]["kernels"].items():
            print(f"  {work}: " + ", ".join(f"{name} {value}" for name, value in gain.items()), flush=True)
    return found


def in_torch(module: ModuleType, door: str, work: Callable[[], object]) -> None:
    """Does something with torch in the place of what a module calls in `cyctr.speed`, by a door: "kernels" or "on_cpu"."""
    fast = getattr(module, door)
    try:
        setattr(module, door, SimpleNamespace(usable=lambda tensor: False))
        work()
    finally:
        setattr(module, door, fast)


def kernel_gains(network: nn.Module, options: argparse.Namespace) -> dict[str, dict[str, dict]]:
    """For each precision and kind of work, what each kernel gains in it: torch's time by the kernel's."""
    device, found = torch.device(options.device), {}
    fast, measure = copy.deepcopy(network).accelerate(), Measure(device, options.repeats)
    for precision in options.precisions:
        cast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        for shots in (1, 5):
            episode = repeated(make_episode(shots, options.size, device), BATCH // shots)
            with torch.inference_mode(), cast:
                stages = measure(with_and_without(partial(fast, episode)))
            found[f"{precision}, {shots}-shot"] = gained(stages)
        with cast:
            stages = measure(with_and_without(partial(learn, network, repeated(make_episode(1, options.size, device), BATCH))))
        found[f"{precision}, training"] = gained(stages)
    return found


def repeated(episode: Episode, count: int) -> Episode:
    """The same episode several times in a batch."""
    parts = (episode.support_images, episode.support_labels, episode.query_images, episode.query_labels)
    return Episode(*(part.repeat(count, *[1] * (part.dim() - 1)) for part in parts))


def with_and_without(work: Callable[[], object]) -> dict[str, Callable[[], object]]:
    return {"all": work} | {name: partial(in_torch, module, "kernels", work) for name, module in KERNELS.items()}


def gained(stages: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    times = {name: stage["ms"] for name, stage in stages.items()}
    return {"ms": times["all"], **{name: round(times[name] / times["all"], 3) for name in KERNELS}}


def learn(network: nn.Module, episode: Episode) -> None:
    """Forward and backward of a batch; the backbone is frozen."""
    network.zero_grad()
    with torch.no_grad():
        query, support = network.backbone(episode.query_images), network.backbone(episode.support_images.flatten(0, 1))
    step = Step(torch.zeros(len(episode.query_images), dtype=torch.int64))
    network.learn(episode, query, support, step).total.backward()


def show(row: Mapping) -> None:
    times = row["backbone pass"]
    print(f"\n{row['model']} ({row['backbone']}), {row['precision']}")
    print(f"  a pass of the backbone: {times['none']['ms']} ms without rewrites, {times['all']['ms']} ms with all")
    print(f"  {'':24s} {'layers':>7s} {'alone':>7s} {'last':>7s}")
    for name, gain in row["gains"].items():
        cells = (row["layers"].get(name, ""), *(f"{gain[kind]:.2f}" if kind in gain else "" for kind in ("alone", "last")))
        print("  {:24s} {:>7} {:>7} {:>7}".format(name, *cells), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="lite0 and resnet50 (the default), or a checkpoint; repeatable")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=473, help="pixels on each side")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--repeats", type=int, default=7, help="of each measurement, of which the median is taken")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--output", type=Path, help="default: rewrites-DEVICE.json beside this script")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    machine = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    report = {"machine": machine, "torch": torch.__version__, "size": options.size, "repeats": options.repeats}
    report["rows"] = [row for model in options.model or ["lite0", "resnet50"] for row in rows(model, options)]
    path = options.output or Path(__file__).with_name(f"rewrites-{device.type}.json")
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{path}")


if __name__ == "__main__":
    main()
