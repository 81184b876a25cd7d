"""Times the Segmenter as its user meets it, with its memory, and writes one JSON file.

    python benchmarks/segmenter.py                       # lite0, on the CPU, or on the GPU where there is one
    python benchmarks/segmenter.py --model lite0 --model resnet50 --device cpu --threads 2 --precision auto float32
    python benchmarks/segmenter.py --model runs/a/model.safetensors --quick

Images are noise with a disc, in memory already: no file is decoded. On a CPU every case runs in a process of its own, so that
its peak is its own; on a GPU, where peaks can be counted anew, all run in one. What is compared with each other (the growth)
is measured in one process, in turns: read the ratios.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Nothing here may import torch: Linux counts the memory of the process that starts another as the other's too.
if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from cyctr import EncodedSupport, Segmenter

SMALL, LARGE, TILE = (375, 500), (3000, 4000), 1000
COUNTS = (1, 2, 5, 10)

# The authors' released code: ResNet-50, 473 px, float32, one episode at a time. Side by side with a plain pass of its
# backbone on two CPU cores, an episode took so many of these passes, by shots; an H200 made 32.9 one-shot episodes a second.
RELEASED_PASSES = {1: 3.72, 5: 19.5}
RELEASED_GPU_SECONDS = 1 / 32.9
RELEASED_THREADS, RELEASED_GPU = 2, "H200"
SPEED_AIMS = {("lite0", "cpu"): 6.0, ("resnet50", "cpu"): 2.5, ("lite0", "cuda"): 10.0, ("resnet50", "cuda"): 10.0}
MEMORY_AIM = 2048  # MiB, of a large image in tiles


@dataclass(frozen=True)
class Case:
    """What is segmented: images of a size, whole or in tiles, for classes of so many supports each."""

    size: tuple[int, int] = SMALL
    shots: int = 1
    classes: int = 1
    tile: int | None = None


TILED = "12 megapixels, tiles of 1000 px"
CASES = {
    "1 support": Case(),
    "5 supports": Case(shots=5),
    "10 classes": Case(classes=10),
    "12 megapixels, whole": Case(LARGE),
    TILED: Case(LARGE, tile=TILE),
}
START, GROWTH = "start", "growth"


def make_image(size: tuple[int, int], seed: int) -> "tuple[NDArray[np.uint8], NDArray[np.bool_]]":
    """Noise with a brighter disc over a sixth of it, and where that is."""
    import numpy as np

    random = np.random.default_rng(seed)
    height, width = size
    image = random.integers(0, 160, (height, width, 3), dtype=np.uint8)
    top, left = (random.uniform(0.4, 0.6) * side for side in size)
    rows, columns = np.arange(height)[:, None] - top, np.arange(width) - left
    mask = rows**2 + columns**2 < height * width / 6 / np.pi
    image[mask] += 90
    return image, mask


def make_supports(segmenter: "Segmenter", case: Case) -> "dict[str, EncodedSupport]":
    supports = {}
    for number in range(case.classes):
        images, masks = zip(*(make_image(SMALL, 100 * number + shot) for shot in range(case.shots)), strict=True)
        name = f"class {number}"
        supports[name] = segmenter.encode_support(images, masks, name=name, tile=case.tile)
    return supports


def medians(stages: Mapping[str, Callable[[], object]], repeats: int, device: "torch.device") -> dict[str, float]:
    """Seconds of each stage; they run in turns, the first turn to warm up."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in stages}
    for turn in range(repeats + 1):
        for name, stage in stages.items():
            start = time.perf_counter()
            stage()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def resident() -> int:
    """MiB that this process has held at most."""
    import resource

    status = Path("/proc/self/status")
    if status.is_file():  # what getrusage says also holds what the process that started this one had
        return round(int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 2**10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def segment_all(segmenter: "Segmenter", images: Sequence[Any], supports: Any, batch: int | None, tile: int | None) -> None:
    for _ in segmenter.segment_many(images, supports, batch=batch, tile=tile):
        pass


def one_case(segmenter: "Segmenter", case: Case, images: int, repeats: int, batch: int | None) -> dict[str, Any]:
    """Images per second, and the memory that it takes: of the process, or of the GPU where there is one."""
    import torch

    ready = resident()
    count = images if case.size == SMALL else 1
    pictures = [make_image(case.size, 10_000 + number)[0] for number in range(count)]
    supports = make_supports(segmenter, case)
    work = partial(segment_all, segmenter, pictures, supports, batch, case.tile)
    turns = repeats if case.size == SMALL else min(repeats, 3)
    seconds = medians({"all": work}, turns, segmenter.device)["all"]
    found: dict[str, Any] = {"images_per_second": count / seconds, "peak_mib": resident(), "ready_mib": ready}
    if segmenter.device.type == "cuda":
        found["peak_mib"] = round(torch.cuda.max_memory_allocated(segmenter.device) / 2**20)
        del found["ready_mib"]
    return found


def plain_pass(segmenter: "Segmenter") -> Callable[[], object]:
    """A pass of the release's backbone as torch runs it: ResNet-50 at stride 8 in float32, without rewrites."""
    import torch

    from cyctr.backbones.backbone import Backbone
    from cyctr.config import BackboneConfig

    backbone = Backbone(BackboneConfig("resnet50")).to(segmenter.device).eval()
    size = segmenter.network.input.size
    image = torch.zeros(1, 3, size, size, device=segmenter.device)

    def run() -> None:
        with torch.inference_mode():
            backbone(image)

    return run


def growth(segmenter: "Segmenter", images: int, repeats: int, batch: int | None) -> dict[str, Any]:
    """Seconds of encoding, and of an image, for more supports and for more classes."""
    pictures = [make_image(SMALL, 10_000 + number)[0] for number in range(images)]
    shots, masks = (list(part) for part in zip(*(make_image(SMALL, number) for number in range(max(COUNTS))), strict=True))
    classes = make_supports(segmenter, Case(classes=max(COUNTS)))
    stages: dict[str, Callable[[], object]] = {}
    for count in COUNTS:
        support = segmenter.encode_support(shots[:count], masks[:count])
        some = dict(list(classes.items())[:count])
        stages[f"encode {count}"] = partial(segmenter.encode_support, shots[:count], masks[:count])
        stages[f"supports {count}"] = partial(segment_all, segmenter, pictures, support, batch, None)
        stages[f"classes {count}"] = partial(segment_all, segmenter, pictures, some, batch, None)
    stages["plain pass"] = plain_pass(segmenter)
    seconds = medians(stages, repeats, segmenter.device)
    return {
        "plain_pass_seconds": seconds["plain pass"],
        "encode_seconds_per_support": {count: seconds[f"encode {count}"] / count for count in COUNTS},
        "image_seconds": seconds["supports 1"] / images,
        "supports": {count: seconds[f"supports {count}"] / seconds["supports 1"] for count in COUNTS},
        "classes": {count: seconds[f"classes {count}"] / seconds["classes 1"] for count in COUNTS},
    }


def tasks(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What a process of its own does: it opens the network, and measures each case that is named."""
    import torch

    if options["threads"]:
        torch.set_num_threads(options["threads"])
    from cyctr import Segmenter
    from cyctr.evaluation.run import environment

    segmenter = Segmenter.from_pretrained(options["model"], device=options["device"], precision=options["precision"])
    ready, device = time.time(), segmenter.device
    about = {"environment": environment(device), "device": device.type, "threads": torch.get_num_threads()}
    many = options["images"] or (64 if device.type == "cuda" else 2)
    found = {}
    for name in names:
        print(f"{Path(options['model']).stem}: {name}", file=sys.stderr, flush=True)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if name == GROWTH:
            found[name] = growth(segmenter, many, options["repeats"], options["batch"])
        else:
            found[name] = one_case(segmenter, CASES[name], many, options["repeats"], options["batch"])
    return {"ready": ready, "about": about, "found": found}


def in_process(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What `tasks` gives, of a fresh process."""
    return json.loads(_output([__file__, "--tasks", json.dumps([names, dict(options)])]).splitlines()[-1])


def _output(arguments: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # it has said why
    return done.stdout


def start_up(options: Mapping[str, Any], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds from the start of Python until the package is imported, and until a network is ready; and the machine."""
    imported, ready, about = [], [], {}
    for _ in range(repeats):
        start = time.time()
        imported.append(float(_output(["-c", "import cyctr, time; print(time.time())"])) - start)
        start = time.time()
        done = in_process([], options)
        ready.append(done["ready"] - start)
        about = done["about"]
    return {"import_seconds": statistics.median(imported), "ready_seconds": statistics.median(ready)}, about


def compared(model: str, about: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, float] | None:
    """How many times as fast as the released code; None on another machine than it was measured on.

    `image` leaves the support out, which is encoded once for all images; `episode` encodes one for each, as it did. On a CPU,
    `image, 5 shots` and `episode, 5 shots` are the same of five labelled images.
    """
    device = about["device"]
    same = about["threads"] == RELEASED_THREADS if device == "cpu" else RELEASED_GPU in about["environment"]["device"]
    if not same:
        return None
    if device == "cpu":
        released = {shots: passes * found["plain_pass_seconds"] for shots, passes in RELEASED_PASSES.items()}
    else:
        released = {1: RELEASED_GPU_SECONDS}
    ratios = {}
    for shots, seconds in released.items():
        image = found["image_seconds"] * found["supports"][str(shots)]
        encode = shots * found["encode_seconds_per_support"][str(shots)]
        which = "" if shots == 1 else f", {shots} shots"
        ratios |= {f"image{which}": seconds / image, f"episode{which}": seconds / (image + encode)}
    return ratios | ({"aim": SPEED_AIMS[model, device]} if (model, device) in SPEED_AIMS else {})


def run(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The report so far, after each network."""
    report: dict[str, Any] = {name: getattr(given, name) for name in ("quick", "images", "repeats", "starts", "batch")}
    for model, precision in product(given.model or ["lite0"], given.precision):
        options = {"model": model, "precision": precision, "images": given.images, "repeats": given.repeats} | {
            name: getattr(given, name) for name in ("device", "threads", "batch")
        }
        found: dict[str, Any] = {}
        found[START], about = start_up(options, given.starts)
        name = Path(model).stem
        title = name if len(given.precision) == 1 else f"{name}, {precision}"
        apart = [given.cases] if about["device"] == "cuda" else [[case] for case in given.cases]
        results = {case: result for cases in apart for case, result in in_process(cases, options)["found"].items()}
        if GROWTH in results:
            found |= {GROWTH: results[GROWTH], "released": compared(name, about, results[GROWTH])}
        found["cases"] = {case: result for case, result in results.items() if case != GROWTH}
        report |= about
        found["precision"] = precision
        report.setdefault("models", {})[title] = found
        yield report


def table(report: Mapping[str, Any]) -> str:
    """All that was found, in lines for people."""
    lines = [report["environment"]["device"]]
    for model, found in report["models"].items():
        start = found[START]
        lines += ["", f"{model}: imported after {start['import_seconds']:.2f} s, ready after {start['ready_seconds']:.2f} s"]
        for name, case in found["cases"].items():
            lines.append(f"  {name:34s} {case['images_per_second']:9.3f} images/s  {case['peak_mib']:7.0f} MiB peak")
        if TILED in found["cases"]:
            peak = found["cases"][TILED]["peak_mib"]
            lines.append(f"  aim: below {MEMORY_AIM} MiB in tiles: {'met' if peak < MEMORY_AIM else 'missed'}")
        if GROWTH in found:
            grown = found[GROWTH]
            lines.append("  {:34s} {}".format("number", "".join(f"{count:>8d}" for count in COUNTS)))
            encode = grown["encode_seconds_per_support"].values()
            lines.append("  {:34s} {}".format("seconds to encode each support", "".join(f"{value:8.3f}" for value in encode)))
            for name in ("supports", "classes"):
                ratios = "".join(f"{value:8.2f}" for value in grown[name].values())
                lines.append(f"  {f'an image with more {name}, to 1':34s} {ratios}")
            plain = 1e3 * grown["plain_pass_seconds"]
            lines.append(f"  {'a plain pass of ResNet-50':34s} {plain:8.0f} ms")
            lines += [f"  {line}" for line in _speed(found["released"])]
    return "\n".join(lines)


def _speed(released: Mapping[str, float] | None) -> list[str]:
    if released is None:
        return [f"the released code was measured on {RELEASED_THREADS} threads and on an {RELEASED_GPU}: not compared"]
    lines = [
        f"{released[f'image{shots}']:.1f} x the released code's speed{shots}; "
        f"{released[f'episode{shots}']:.1f} x with supports for each image"
        for shots in ("", ", 5 shots")
        if f"image{shots}" in released
    ]
    if "aim" in released:
        met = [name for name in ("image", "episode") if released[name] >= released["aim"]]
        lines.append(f"aim {released['aim']:g} x: {' and '.join(met) or 'neither'} met")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*CASES, GROWTH]
    parser.add_argument("--model", action="append", help="lite0 (the default), resnet50, or a checkpoint; repeatable")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", nargs="+", choices=("auto", "float32", "bfloat16"), default=["auto"])
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--batch", type=int, help="images at a time; default: the Segmenter's own")
    parser.add_argument("--images", type=int, help="of 500x375 in a measurement; default: 2 on a CPU, 64 on a GPU")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement, of which the median is taken")
    parser.add_argument("--starts", type=int, default=5, help="of which the median is taken")
    parser.add_argument("--cases", nargs="+", choices=every, default=every, metavar="CASE", help="; ".join(every))
    parser.add_argument("--quick", action="store_true", help="one image, once: to see that it runs")
    parser.add_argument("--output", type=Path, help="default: segmenter-DEVICE.json beside this script")
    parser.add_argument("--tasks", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.tasks:
        print(json.dumps(tasks(*json.loads(given.tasks))))
        return
    if given.quick:
        given.images, given.repeats, given.starts = 1, 1, 1
    for report in run(given):
        path = given.output or Path(__file__).with_name(f"segmenter-{report['device']}.json")
        path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{path}\n\n{table(report)}")


if __name__ == "__main__":
    main()
