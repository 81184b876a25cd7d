"""Damaged and hostile files of every kind we read, through the commands, in this one process.

    python tests/end_to_end/mutations.py --inputs 20000 --seed 1

It tells, as JSON, how many inputs of each kind were tried, and what was a traceback, a hang or a changed file of the user's;
after SIGTERM, of those that were tried until then.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import mutating
import numpy as np
import torch
from labelled_folders import coco_beside, labelme_polygons
from learning import photos as classes
from PIL import Image
from scipy.io import savemat
from segmenting import checkpoint, files, labelled, photo, photos, scene

from cyctr import cli
from cyctr.errors import DataError
from cyctr.images.imaging import image_size
from cyctr.training import loop as session

HANG = 20  # seconds of computing
PATIENCE = 10  # times as long may a command wait
IMAGES = {"jpg": mutating.bits, "png": mutating.png, "tif": mutating.tiff} | dict.fromkeys(
    ("webp", "bmp", "gif"), mutating.bits
)
PARTS = ("train", "val", "trainval")
TRAINED = ("--model.dim", 16, "--model.encoder.heads", 2, "--model.encoder.layers", 1, "--training.augmentation.size", 65)
SHORT = ("--weights", "tiny", "--training.episodes", 4, "--training.batch", 4, "--validation-episodes", 1, "--no-tensorboard")


class Hang(BaseException):
    """A command that does not end."""


def command(*arguments):
    """Exit code, output and errors of a command."""
    sys.argv = ["cyctr", *map(str, arguments)]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0, out.getvalue(), error.getvalue()
    raise AssertionError("a command ends with an exit code")


class Workshop:
    """Good examples of every kind, and commands that read what is made of them."""

    def __init__(self, root):
        self.root, self.good, self.place = root, root / "good", root / "now"
        os.environ["CYCTR_CACHE"] = str(root / "cache")
        self.model = checkpoint(self.good / "model.safetensors") if self.good.mkdir() is None else None
        self.disc = labelled(self.good / "disc")
        self.query = photos(self.good / "query", 2)
        self.support = self.good / "disc.cyctr"
        self.usual = ("--model", self.model, "--device", "cpu", "--precision", "float32")
        self.well("support", "save", self.disc, "--output", self.support, "--model", self.model)
        for form in ("png", "coco"):
            self.well(*self.segment(self.good / form), "--format", form)
        self.things = classes(self.good / "things")
        self.well("train", "--data", self.things, "--output", self.good / "run", *SHORT, *TRAINED)
        measure = ("--method", "foreground", "--episodes", 3, "--pictures", 0, "--class-folds", 2, "--weights", "tiny")
        self.well("evaluate", "--data", self.things, "--output", self.good / "measured", "--part", "1/2", *measure)
        coco_beside(self.good / "coco data") if (self.good / "coco data").mkdir() is None else None
        labelme_polygons(self.good / "labelme") if (self.good / "labelme").mkdir() is None else None
        self.number = 0

    def well(self, *arguments):
        code, out, error = command(*arguments)
        assert code == 0, (arguments, out, error)

    def segment(self, output, query=None, support=None, model=None):
        usual = ("--model", model or self.model, *self.usual[2:])
        return "segment", "--support", support or self.support, "--query", query or self.query, "--output", output, *usual

    def images(self, chance, kind):
        """Damaged photographs among the queries."""
        folder, count = self.place / "given", 30
        for number in range(count):
            path = photo(folder / f"{number}.{kind}", number, (40, 50))
            good = path.read_bytes()
            path.write_bytes(IMAGES[kind](chance, good))
            if _is_larger_than_promised(path):
                path.write_bytes(good)
        return count, self.segment(self.place / "out", folder), [folder]

    def masks(self, chance, kind):
        """Damaged labelled images, or their masks."""
        folder, count = labelled(self.place / "given", 12), 12
        for number in range(count):
            path = folder / f"shot{number}{chance.choice(('', '_mask'))}.png"
            if kind == "deep mask":
                Image.fromarray(scene((60, 80))[1].astype(np.uint16) * 65535).save(path)
            path.write_bytes(mutating.png(chance, path.read_bytes()))
        return count, ("support", "save", folder, "--output", self.place / "made.cyctr", "--model", self.model), [folder]

    def labelme(self, chance, kind):
        """JSON of LabelMe."""
        folder = shutil.copytree(self.good / "labelme", self.place / "given")
        documents = sorted(folder.rglob("*.json"))
        for path in documents:
            path.write_bytes(mutating.json_document(chance, path.read_bytes()))
        made = ("--output", self.place / "made.cyctr", "--model", self.model, "--class", "cup")
        return len(documents), ("support", "save", folder, *made), [folder]

    def coco(self, chance, kind):
        """A JSON of COCO, as a support or as a dataset."""
        folder = shutil.copytree(self.good / "coco data", self.place / "given")
        (path,) = folder.rglob("*.json")
        path.write_bytes(mutating.json_document(chance, path.read_bytes()))
        made = ("--output", self.place / "made.cyctr", "--model", self.model, "--class", "cup")
        asked = ("support", "save", folder, *made) if kind == "coco support" else ("data", "check", folder)
        return 1, asked, [folder]

    def dataset(self, chance, kind):
        """Masks and names of a folder of classes."""
        folder, count = self.place / "given", 6
        random_state = np.random.default_rng(0)
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(random_state.integers(0, 256, (30, 40, 3), np.uint8)).save(folder / "images" / f"{number}.png")
            path = folder / "masks" / f"{number}.png"
            Image.fromarray(np.repeat(np.arange(3, dtype=np.uint8), 10)[:, None].repeat(40, 1)).save(path)
            path.write_bytes(mutating.png(chance, path.read_bytes()))
        (folder / "classes.txt").write_bytes(mutating.text(chance, b"cup\nplate\n"))
        return count + 1, ("data", "check", folder), [folder]

    def cached(self, chance, kind):
        """What is kept in the cache of a dataset."""
        self.well("data", "info", self.things)
        for path in sorted((self.root / "cache").rglob("*.npz")):
            path.write_bytes(mutating.bits(chance, path.read_bytes()))
        return 1, ("data", "info", self.things), [self.things]

    def supports(self, chance, kind):
        """A file of a support."""
        path = self.put("given.cyctr", mutating.archive(chance, self.support.read_bytes()))
        looked = ("support", "info", path, "--picture", self.place / "seen.png")
        return 1, looked if chance.random() < 0.8 else self.segment(self.place / "out", support=path), [path]

    def checkpoints(self, chance, kind):
        """A checkpoint."""
        path = self.put("given.safetensors", mutating.safetensors(chance, self.model.read_bytes()))
        return 1, ("support", "save", self.disc, "--output", self.place / "made.cyctr", "--model", path), [path]

    def notes(self, chance, kind):
        """What a run of `cyctr segment` notes for the next."""
        form = "coco" if kind == ".coco.jsonl" else chance.choice(("png", "coco"))
        out = shutil.copytree(self.good / form, self.place / "out")
        change = mutating.json_lines if kind.endswith("jsonl") else mutating.json_document
        (out / kind).write_bytes(change(chance, (out / kind).read_bytes()))
        (out / "mine.txt").write_text("of the user")
        (out / "masks").mkdir(exist_ok=True)
        (out / "masks" / "mine.txt").write_text("of the user")
        more = ("--force",) if chance.random() < 0.3 else ()
        return 1, (*self.segment(out), "--format", form, *more), [out / "mine.txt", out / "masks" / "mine.txt", self.query]

    def foreign(self, chance, kind):
        """Somebody's run.json below the queries."""
        folder = shutil.copytree(self.query, self.place / "given")
        (folder / "inner").mkdir()
        (folder / "inner" / "run.json").write_bytes(
            mutating.json_document(chance, (self.good / "png" / "run.json").read_bytes())
        )
        return 1, self.segment(self.place / "out", folder), [folder]

    def run(self, chance, kind):
        """What a training left; the training itself is left out."""
        out = shutil.copytree(self.good / "run", self.place / "out")
        change = {"json": mutating.json_document, "jsonl": mutating.json_lines}.get(
            kind.partition(".")[2], mutating.safetensors
        )
        (out / kind).write_bytes(change(chance, (out / kind).read_bytes()))
        (out / "mine.txt").write_text("of the user")
        return 1, ("train", "--data", self.things, "--output", out, "--resume"), [self.things, out / "mine.txt"]

    def release(self, chance, kind):
        """A checkpoint of the authors' release; it lacks most of its names, which is found after it was read."""
        given = io.BytesIO()
        state = {f"module.cls.{number}.weight": torch.ones(3, 2) for number in (0, 3)}
        torch.save({"epoch": 1, "state_dict": state}, given)
        path = self.put("given.pth", mutating.torch_file(chance, given.getvalue()))
        return 1, ("convert-release", path, "--output", self.place / "made.safetensors"), [path]

    def sbd(self, chance, kind):
        """Masks of SBD and of VOC, and the lists that name them."""
        voc, sbd, names = self.place / "voc", self.place / "sbd", [f"2008_{number:06}" for number in range(6)]
        for folder in (voc / "JPEGImages", voc / "SegmentationClass", voc / "ImageSets" / "Segmentation", sbd / "cls"):
            folder.mkdir(parents=True)
        values = np.repeat(np.arange(6, dtype=np.uint8), 4)[:, None].repeat(20, 1)
        for name in names:
            Image.fromarray(values).save(voc / "JPEGImages" / f"{name}.jpg")
            savemat(sbd / "cls" / f"{name}.mat", {"GTcls": {"Segmentation": values}}, do_compression=chance.random() < 0.3)
            damaged = sbd / "cls" / f"{name}.mat"
            if chance.random() < 0.3:
                damaged = voc / "SegmentationClass" / f"{name}.png"
                Image.fromarray(values).save(damaged)
            change = mutating.png if damaged.suffix == ".png" else mutating.bits
            damaged.write_bytes(change(chance, damaged.read_bytes()))
        lists = [sbd / "train.txt", sbd / "val.txt", *(voc / "ImageSets" / "Segmentation" / f"{part}.txt" for part in PARTS)]
        for path in lists:
            path.write_text("\n".join(names))
        chosen = chance.choice(lists)
        chosen.write_bytes(mutating.text(chance, chosen.read_bytes()))
        return len(names) + 1, ("prepare", "pascal", "--voc", voc, "--sbd", sbd, "--output", self.place / "out"), [voc, sbd]

    def results(self, chance, kind):
        """Results of an evaluation."""
        out = shutil.copytree(self.good / "measured", self.place / "out")
        (path,) = out.glob("results-*.json")
        path.write_bytes(mutating.json_document(chance, path.read_bytes()))
        return 1, ("merge", out), [path]

    def put(self, name, content):
        self.place.mkdir()
        (self.place / name).write_bytes(content)
        return self.place / name


KINDS = {
    **dict.fromkeys(IMAGES, (Workshop.images, 4)),
    **dict.fromkeys(("mask", "deep mask"), (Workshop.masks, 4)),
    **dict.fromkeys(("coco support", "coco data"), (Workshop.coco, 12)),
    **dict.fromkeys((".predictions.jsonl", ".coco.jsonl", "run.json", ".shared.json"), (Workshop.notes, 8)),
    **dict.fromkeys(("config.json", "metrics.jsonl", "state.safetensors"), (Workshop.run, 6)),
    "labelme": (Workshop.labelme, 6),
    "dataset": (Workshop.dataset, 6),
    "index": (Workshop.cached, 4),
    "support": (Workshop.supports, 30),
    "checkpoint": (Workshop.checkpoints, 20),
    "run.json below": (Workshop.foreign, 4),
    "results.json": (Workshop.results, 12),
    "release": (Workshop.release, 4),
    "sbd": (Workshop.sbd, 4),
}
"""How a kind is tried, and how often beside the others."""


def attempt(workshop, seed):
    """One command on damaged files: their kind, how many, and what went wrong, None if nothing did."""
    chance = random.Random(seed)
    kind = chance.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    shutil.rmtree(workshop.place, ignore_errors=True)
    count, arguments, kept = KINDS[kind][0](workshop, chance, kind)
    before = [_content(path) for path in kept]
    try:
        with Watch():
            code, _, error = command(*arguments)
    except Hang:
        return kind, count, "hang"
    except BaseException:
        return kind, count, traceback.format_exc(limit=-8)
    if [_content(path) for path in kept] != before:
        return kind, count, "a file of the user's has changed"
    if code not in (0, 1, 2) or "Traceback" in error or any(not line.startswith("cyctr: ") for line in error.splitlines()):
        return kind, count, f"exit code {code}: {error[-2000:]}"
    return kind, count, None


def _is_larger_than_promised(path):
    """Whether an image is whole, and takes more than the 2 GiB that are enough for 100 megapixels."""
    try:
        height, width = image_size(path)
    except DataError:
        return False
    return height * width > 100e6


def _content(path):
    return files(path) if path.is_dir() else path.read_bytes() if path.exists() else None


class Watch:
    """Stops a command that computes for too long, or waits for much longer; the machine may be busy with something else."""

    def __enter__(self):
        self.began, self.waited = time.process_time(), 0
        signal.signal(signal.SIGALRM, self.look)
        signal.setitimer(signal.ITIMER_REAL, HANG, HANG)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)

    def look(self, *_):
        self.waited += 1
        if time.process_time() - self.began > HANG or self.waited > PATIENCE:
            raise Hang


def most_memory() -> int:
    """Bytes that this process has held at most; getrusage also counts those of the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--inputs", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    faulthandler.enable()
    tried, problems, longest, largest, began = Counter(), [], {}, [], time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        workshop, peak, number = Workshop(Path(root)), 0, 0
        session.Trainer.run = lambda *_, **__: "finished"  # a changed config may ask for a long training
        sys.modules["cyctr.cli.options"]._TELL_SECONDS = math.inf  # a slow machine would add lines of progress
        while sum(tried.values()) < given.inputs and time.monotonic() - began < given.seconds and not asked:
            faulthandler.dump_traceback_later(2 * PATIENCE * HANG, exit=True)
            start, seed = time.monotonic(), f"{given.seed}/{number}"
            kind, count, problem = attempt(workshop, seed)
            number += 1
            tried[kind] += count
            longest[kind] = max(longest.get(kind, 0), round(time.monotonic() - start, 1))
            if problem is not None:
                problems.append({"seed": seed, "kind": kind, "problem": problem})
                print(json.dumps(problems[-1]), file=sys.stderr, flush=True)
            now = most_memory()
            if now > peak + 2**26:
                largest.append({"seed": seed, "kind": kind, "bytes": now})
            peak = max(peak, now)
    faulthandler.cancel_dump_traceback_later()
    told = {"inputs": sum(tried.values()), "commands": number, "peak": peak, "kinds": dict(tried), "longest": longest}
    print(json.dumps({**told, "largest": largest, "problems": problems}, indent=1))


if __name__ == "__main__":
    main()
