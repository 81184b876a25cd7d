"""Processor time and memory of the Segmenter on this machine's CPU, one thread; writes segmenter-cpu.json beside this file.

    python benchmarks/segmenter.py

Processor time, not the clock's: it hardly depends on what else the machine does. Images are noise; the work is the same.
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from cyctr import Box, Segmenter

MODELS, SHOTS, SIZE, TILE, SEED = ("lite0", "resnet50"), (1, 5), (1200, 1600), 600, 0


def measured(name: str, repeats: int) -> dict:
    torch.set_num_threads(1)
    random = np.random.default_rng(SEED)
    images = [random.integers(0, 256, (*SIZE, 3), dtype=np.uint8) for _ in range(max(SHOTS) + 1)]
    segmenter = Segmenter.from_pretrained(name, device="cpu")
    found: dict = {}
    for shots in SHOTS:
        given = (images[:shots], [Box(400, 300, 1200, 900)] * shots)
        support = segmenter.encode_support(*given)
        found[f"{shots}-shot"] = {
            "encode_support": timed(lambda given=given: segmenter.encode_support(*given), repeats),
            "segment": timed(lambda support=support: segmenter.segment(images[-1], support), repeats),
            "segment, flip": timed(lambda support=support: segmenter.segment(images[-1], support, flip=True), repeats),
        }
    small = segmenter.encode_support(*given, tile=TILE)
    found["5-shot"][f"segment, tile {TILE}"] = timed(lambda: segmenter.segment(images[-1], small, tile=TILE), 1)
    found["peak memory, MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return found


def timed(work, repeats: int) -> float:
    """Median seconds of processor time."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return round(statistics.median(taken), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", choices=MODELS, help="only this one, and print it: what the script runs for each")
    given = parser.parse_args()
    if given.model:
        print(json.dumps(measured(given.model, given.repeats)))
        return
    about = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1, "size": SIZE, "seed": SEED}
    report: dict = {"about": {**about, "repeats": given.repeats, "unit": "seconds of processor time, median"}}
    for name in MODELS:  # a process each, so that each has a peak of its own
        command = [sys.executable, __file__, "--model", name, "--repeats", str(given.repeats)]
        report[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    path = Path(__file__).parent / "segmenter-cpu.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
