"""Records what the program computes, and compares it after a change that must not move it.

    python tests/frozen/behaviour.py record --source OLD/src --to before.npz
    python tests/frozen/behaviour.py check --source NEW/src --against before.npz

Recorded are the logits of both shipped networks (one and five shots, float32), the weights of a training of 20 steps that is
stopped and resumed, the results of an evaluation, and every file that `cyctr segment` writes. All are made on one thread from
numbers that a seed decides. On one machine both must be equal to the bit; between machines they differ by rounding.
`behaviour.npz` beside this file is compared where nothing else is named; the commits that recorded it say what they moved.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).with_name("behaviour.npz")
_ROUNDING = 2e-4  # between kinds of machines: of logits about 5 in size, and of weights about 1
_THIN = 4  # every so many rows and columns of the logits are kept
_CHANGING = {"environment", "seconds", "created", "cyctr", "version", "time", "duration", "images_per_second", "sessions"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("record", "check"))
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[2] / "src", help="folder that holds cyctr")
    parser.add_argument("--to", type=Path, default=RECORD, help="where a record goes")
    parser.add_argument("--against", type=Path, default=RECORD, help="the record to compare with")
    parser.add_argument("--only", choices=("logits", "training", "evaluation", "segment"), nargs="*", help="some parts")
    options = parser.parse_args()
    found = dict(record(options.source.resolve(), options.only))
    if options.task == "record":
        np.savez_compressed(options.to, **found)
        print(f"{len(found)} things recorded in {options.to}")
        return
    sys.exit(compare(dict(np.load(options.against)), found, options.only))


def compare(before: dict[str, np.ndarray], now: dict[str, np.ndarray], only: list[str] | None) -> int:
    """Says what differs; the exit code."""
    if only:
        before = {name: value for name, value in before.items() if name.partition("/")[0] in only}
    moved = sorted(before.keys() ^ now.keys())
    for name in moved:
        print(f"MOVED  {name}: {'is gone' if name in before else 'is new'}")
    equal, rounded = 0, []
    for name in sorted(before.keys() & now.keys()):
        one, other = before[name], now[name]
        if one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes():
            equal += 1
        elif one.dtype.kind == "f" and one.shape == other.shape and np.abs(one - other).max() <= _ROUNDING:
            rounded.append(f"{name} by {np.abs(one - other).max():.1e}")
        else:
            moved.append(name)
            print(f"MOVED  {name}: {_short(one)} -> {_short(other)}")
    print(f"{equal} equal to the bit, {len(rounded)} within rounding, {len(moved)} moved")
    for text in rounded:
        print(f"rounding: {text}")
    return 1 if moved else 0


def _short(value: np.ndarray) -> str:
    return str(value)[:300] if value.dtype.kind == "U" else f"{value.dtype}{list(value.shape)} mean {value.mean():.6f}"


def record(source: Path, only: list[str] | None) -> Iterator[tuple[str, np.ndarray]]:
    """All that is compared, by name."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run([__file__, "--worker", str(folder / "logits.npz")], environment) if _wanted("logits", only) else None
        if _wanted("logits", only):
            yield from dict(np.load(folder / "logits.npz")).items()
        if _wanted("training", only) or _wanted("evaluation", only):
            yield from _training(folder, environment, only)
        if _wanted("segment", only):
            yield from _segment(folder, environment)


def _wanted(part: str, only: list[str] | None) -> bool:
    return not only or part in only


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _training(folder: Path, environment: dict[str, str], only: list[str] | None) -> Iterator[tuple[str, np.ndarray]]:
    settings = {
        "training.episodes": 80,
        "training.batch": 4,
        "training.augmentation.size": 65,
        "training.augmentation.longest": 80,
        "training.hold-out": 0,
        "model.dim": 32,
        "model.sampling.tokens-per-shot": 24,
    }
    dotted = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    begin = ["-m", "cyctr", "train", "--data", "synthetic", "--weights", "tiny", "--output", str(folder / "run")]
    for preset in ("paper", "best"):
        run = [*begin[:-1], str(folder / preset), "--preset", preset, *dotted, "--device", "cpu", "--validation-episodes", "4"]
        _run([*run, "--max-minutes", "0"], environment)  # stops after a step
        _run([*run, "--resume"], environment)
        if _wanted("training", only):
            digest = _digest_of_tensors(folder / preset / "last.safetensors")
            yield f"training/{preset}", np.array(digest)
            lines = (folder / preset / "metrics.jsonl").read_text().splitlines()
            losses = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
            yield f"training/{preset}-losses", np.array(losses[-1:], np.float32)
    if _wanted("evaluation", only):
        test = ["-m", "cyctr", "evaluate", "--data", "synthetic", "--shots", "1,5", "--episodes", "6", "--seeds", "0"]
        for name, method in (("network", str(folder / "paper" / "last.safetensors")), ("prototype", "prototype")):
            output = folder / f"evaluation-{name}"
            backbone = [] if name == "network" else ["--weights", "tiny"]
            more = ["--method", method, "--output", str(output), "--device", "cpu", *backbone]
            _run([*test, *more], environment)
            results = _steady(json.loads((output / "results.json").read_text()), str(folder))
            yield f"evaluation/{name}", np.array(json.dumps(results, sort_keys=True))


def _digest_of_tensors(path: Path) -> str:
    from safetensors.numpy import load_file

    total = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        total.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    return total.hexdigest()


def _steady(value: Any, folder: str) -> Any:
    """Results without times, machines and places, which differ from run to run."""
    if isinstance(value, dict):
        return {name: _steady(part, folder) for name, part in value.items() if name not in _CHANGING}
    if isinstance(value, list):
        return [_steady(part, folder) for part in value]
    return value.replace(folder, "") if isinstance(value, str) else value


def _segment(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, np.ndarray]]:
    from PIL import Image

    labelled, queries = folder / "thing", folder / "queries"
    for place in (labelled / "images", labelled / "masks", queries):
        place.mkdir(parents=True)
    for number in range(5):
        pixels, mask = _picture(number, (150 + 10 * number, 200))
        if number < 2:
            Image.fromarray(pixels).save(labelled / "images" / f"{number}.png")
            Image.fromarray(mask * 255).save(labelled / "masks" / f"{number}.png")
        else:
            Image.fromarray(pixels).save(queries / f"{number}.png")
    for kind in ("png", "coco"):
        output = folder / f"out-{kind}"
        more = ["--output", str(output), "--format", kind, "--precision", "float32", "--device", "cpu", "--review"]
        _run(["-m", "cyctr", "segment", "--support", str(labelled), "--query", str(queries), *more], environment)
        for path in sorted(output.rglob("*")):
            if path.is_file() and path.name != ".run.lock":
                yield f"segment/{kind}/{path.relative_to(output)}", _content(path, str(folder))


def _content(path: Path, folder: str) -> np.ndarray:
    """Pixels of pictures, steady values of JSON, the digest of anything else."""
    if path.suffix in {".png", ".jpg"}:
        from PIL import Image

        with Image.open(path) as picture:
            return np.array(hashlib.sha256(np.asarray(picture).tobytes()).hexdigest())
    text = path.read_text()
    if path.suffix == ".json" and not path.name.startswith("."):
        return np.array(json.dumps(_steady(json.loads(text), folder), sort_keys=True))
    return np.array("a file" if path.name.startswith(".") else hashlib.sha256(text.replace(folder, "").encode()).hexdigest())


def _picture(seed: int, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(H, W, 3) uint8 soft noise with an ellipse of another texture, and (H, W) uint8 where that is."""
    random = np.random.default_rng(seed)
    height, width = size
    coarse = random.uniform(40, 200, (height // 10 + 2, width // 10 + 2, 3))
    pixels = np.kron(coarse, np.ones((10, 10, 1)))[:height, :width]
    rows, columns = np.mgrid[:height, :width]
    middle = height * random.uniform(0.35, 0.65), width * random.uniform(0.35, 0.65)
    inside = ((rows - middle[0]) / (0.25 * height)) ** 2 + ((columns - middle[1]) / (0.2 * width)) ** 2 < 1
    stripes = 127 + 100 * np.sin(rows / 3)[..., None] * np.array([1.0, 0.6, -0.8])
    pixels = np.where(inside[..., None], stripes, pixels) + random.normal(0, 4, (height, width, 3))
    return pixels.clip(0, 255).astype(np.uint8), inside.astype(np.uint8)


def worker(path: Path) -> None:
    """Logits of the shipped networks, in a process that imports the sources to look at."""
    import torch

    from cyctr import pretrained
    from cyctr.checkpoint import load_checkpoint
    from cyctr.types import Episode

    torch.set_num_threads(1)
    found = {}
    pictures = [_picture(10 + number, (129, 129)) for number in range(6)]
    images = torch.stack([torch.from_numpy(pixels).permute(2, 0, 1) for pixels, _ in pictures])
    labels = torch.stack([torch.from_numpy(mask) for _, mask in pictures])
    for name in ("lite0", "resnet50"):
        model = load_checkpoint(pretrained.find(name))[0].eval()
        for shots in (1, 5):
            episode = Episode(images[None, :shots], labels[None, :shots], images[5:])
            with torch.inference_mode():
                logits = model(episode).logits.float().numpy()
            found[f"logits/{name}-{shots}"] = logits[..., ::_THIN, ::_THIN]
            found[f"logits/{name}-{shots}-sum"] = np.array([logits.mean(), np.abs(logits).mean()], np.float32)
    np.savez(path, **found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]))
    else:
        main()
