"""How well the confidence tells photographs with the class from those without it, and the numbers it is made of.

    python experiments/presence.py run --photos PHOTOS --model lite0
    python experiments/presence.py report

`run` writes results/presence/MODEL.json: for each episode the root of kinship, and whether the class is there. `report`
fits the calibration and prints how many photographs with the class are lost, and how many without it are marked.

Sets: coco-1, coco-5 and coco-absent are episodes of the photographs. In elsewhere-1 and elsewhere-5 the query of another
class's episode stands in, one indoors for a thing outdoors or the reverse: these are easy to refuse, and serve to compare one
and five shots.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from confidence import chances, fit
from photos import ROOT, Photos, remember

from cyctr import Segmenter
from cyctr.backbones.recognition import load_recogniser
from cyctr.images.geometry import padding_of
from cyctr.inference.tiles import Window
from cyctr.storage import write_atomically

RESULTS = ROOT / "results" / "presence"
OUTDOORS = ("bear", "elephant", "giraffe", "surfboard", "traffic light", "truck", "zebra")
SETS = ("coco-1", "coco-absent", "elsewhere-1", "coco-5", "elsewhere-5")
_LOST = (0.02, 0.05, 0.1, 0.2)


def episodes(photos: Photos, which: str) -> Iterator[Mapping[str, Any]]:
    """The episodes of a set; their order is fixed."""
    if not which.startswith("elsewhere"):
        yield from photos.episodes[which]
        return
    own = photos.episodes[which.replace("elsewhere", "coco")]
    draw = random.Random(0)
    for one in own:
        other = draw.choice([each for each in own if (each["class"] in OUTDOORS) != (one["class"] in OUTDOORS)])
        yield {**one, "query": [other["query"][0], None], "id": f"{one['id']}-{other['class']}"}


def likeness(segmenter: Segmenter, photos: Photos, episode: Mapping[str, Any]) -> float:
    """What the confidence of an episode's query is made of."""
    images = [photos.image(path) for path, _ in episode["support"]]
    masks = [photos.label(path, image.shape[:2]) for (_, path), image in zip(episode["support"], images, strict=True)]
    support = segmenter.encode_support(images, masks, name=episode["class"], class_id=1)
    query, network = photos.image(episode["query"][0]), segmenter.network
    size = (query.shape[0], query.shape[1])
    seen, _ = network.fitted(query, np.zeros(size, np.uint8), Window(0, 0, *size))
    padding = padding_of([size], network.input, network.device)
    with torch.inference_mode():
        (answer,) = network.answers(seen[None].to(network.device), padding, [support], None)
    return float(answer.likeness)


def run(given: argparse.Namespace) -> None:
    """Measures the episodes that are missing."""
    photos, output = Photos(given.photos), RESULTS / f"{given.model}.json"
    kept = json.loads(output.read_text()) if output.exists() else {"rows": {}}
    output.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(given.threads)
    segmenter = Segmenter.from_pretrained(given.model, device="cpu")
    segmenter.network.recogniser = load_recogniser(segmenter.network.model.backbone)  # also where the confidence asks none
    if segmenter.network.recogniser is None:
        raise SystemExit(f"{given.model}: has no classifier that the confidence could ask")
    forget = remember(segmenter)
    for which in given.set or SETS:
        started, rows = time.perf_counter(), kept["rows"].setdefault(which, {})
        for episode in [one for one in episodes(photos, which) if one["id"] not in rows][:: given.every]:
            forget()
            rows[episode["id"]] = [episode["class"], len(episode["support"]), round(likeness(segmenter, photos, episode), 5)]
            write_atomically(output, (json.dumps(kept, indent=0) + "\n").encode())
        print(f"{which}: {len(rows)} rows, {time.perf_counter() - started:.0f} s", flush=True)
    report(given)


def values(rows: Mapping[str, Sequence[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([one[2] for one in rows.values()])


def weighed(present: Any, absent: Any) -> list[float]:
    """The bias and slope of the calibration, as if there were as many with the class as without it."""
    copies = max(1, round(len(present) / max(1, len(absent))))
    inputs = np.concatenate([present, *[absent] * copies])
    there = np.arange(len(inputs)) < len(present)
    return [round(float(one), 2) for one in fit(inputs[:, None], there)]


def unseen(present: Mapping[str, Sequence[Any]], absent: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
    """The log odds of each row from a fit that met no row of its class."""
    classes = sorted({one[0] for one in (*present.values(), *absent.values())})
    found = [np.zeros(len(present)), np.zeros(len(absent))]
    for name in classes:
        own = [np.array([one[0] == name for one in part.values()]) for part in (present, absent)]
        bias, slope = weighed(values(present)[~own[0]], values(absent)[~own[1]])
        for place, part in enumerate((present, absent)):
            found[place][own[place]] = bias + slope * values(part)[own[place]]
    return found[0], found[1]


def beats(present: Any, absent: Any) -> float:
    """The area under the curve."""
    return float((present[:, None] > absent).mean() + 0.5 * (present[:, None] == absent).mean())


def report(given: argparse.Namespace) -> None:
    """Prints the curve of each pair of sets, and the calibration."""
    for file in sorted(RESULTS.glob("*.json")):
        rows = json.loads(file.read_text())["rows"]
        print(f"\n| {file.stem} | with | without | AUC | " + " | ".join(f"{lost:.0%} lost" for lost in _LOST) + " |")
        print("|---|" + "---:|" * (3 + len(_LOST)))
        for one, other in (("coco-1", "coco-absent"), ("coco-1", "elsewhere-1"), ("coco-5", "elsewhere-5")):
            if not rows.get(one) or not rows.get(other):
                continue
            present, absent = unseen(rows[one], rows[other])
            shares = [np.mean(absent >= np.sort(present)[int(lost * len(present))]) for lost in _LOST]
            cells = " | ".join(f"{share:.0%}" for share in shares)
            print(f"| {one}, {other} | {len(present)} | {len(absent)} | {beats(present, absent):.3f} | {cells} |")
        if rows.get("coco-1") and rows.get("coco-absent"):
            bias, slope = weighed(values(rows["coco-1"]), values(rows["coco-absent"]))
            chance = [chances(np.array([bias + np.log(4), slope]), values(rows[which])[:, None]) for which in SETS[:2]]
            lost, marked = (chance[0] < 0.5).mean(), (chance[1] >= 0.5).mean()
            print(f"\nbias {bias}, slope {slope}; at 0.5, four of five expected: {lost:.1%} lost, {marked:.1%} marked")
            found = unseen(rows["coco-1"], rows["coco-absent"])
            lost, marked = (found[0] + np.log(4) < 0).mean(), (found[1] + np.log(4) >= 0).mean()
            print(f"by fits that met no row of the class: {lost:.1%} lost, {marked:.1%} marked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--photos", type=Path, default=ROOT.parent / "shared" / "photos")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--set", action="append", choices=SETS, help="may be repeated; default: all")
    parser.add_argument("--every", type=int, default=1, help="only every so many episodes that are missing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    {"run": run, "report": report}[given.what](given)


if __name__ == "__main__":
    main()
