"""Time of opening a dataset and of making its episodes: `python benchmarks/data.py VOC2012`; writes benchmarks/data-cpu.json.

Each step runs in a process of its own, as a command would: the first builds the index in an empty cache, the second
opens it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

OPEN = """
import sys, time
from pathlib import Path
from cyctr.datasets.opening import open_dataset
start = time.perf_counter()
dataset = open_dataset(Path(sys.argv[1]))
pools = {id(pool): pool for pool in dataset.pools.values()}.values()
images = sum(len(pool.index()) for pool in pools)
print(images, time.perf_counter() - start)
"""
EPISODES = """
import sys, time
from pathlib import Path
from cyctr.config import protocol
from cyctr.episodes.loading import TrainingEpisodes
from cyctr.config import AugmentationConfig
from cyctr.datasets.opening import open_dataset
from cyctr.evaluation.protocol import Evaluation
from cyctr.evaluation.results import RunKey
evaluation = Evaluation(open_dataset(Path(sys.argv[1])), protocol("cyctr"))
source = evaluation.source(RunKey(0, 1, 0))
for name in ("first", "again"):  # the second time every image is remembered
    start = time.perf_counter()
    count = sum(len(batch.draws) for batch in source.batches(range(200), 8, 2))
    print(count / (time.perf_counter() - start))
training = TrainingEpisodes(evaluation.pool, evaluation.sampler(RunKey(0, 1, 0)), AugmentationConfig())
start = time.perf_counter()
training.batch(0, 40)
print(40 / (time.perf_counter() - start))
"""


def run(code: str, folder: str, cache: str) -> list[float]:
    environment = {**os.environ, "CYCTR_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", code, folder], env=environment, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of a dataset")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data-cpu.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        images, build = run(OPEN, arguments.data, cache)
        _, again = run(OPEN, arguments.data, cache)
        first, remembered, training = run(EPISODES, arguments.data, cache)
    result = {
        "images": int(images),
        "index_build_seconds": round(build, 2),
        "index_open_seconds": round(again, 3),
        "opening_over_building": round(again / build, 4),
        "test_episodes_per_second_first": round(first, 1),
        "test_episodes_per_second_again": round(remembered, 1),
        "training_episodes_per_second": round(training, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
