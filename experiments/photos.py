"""What settings and networks bring on real photographs: the bench that defaults are chosen on.

    python experiments/photos.py run --photos PHOTOS --model lite0 --set coco-1 --set davis
    python experiments/photos.py table
    python experiments/photos.py page --photos PHOTOS --set davis --setting "as it is" --output page

`run` adds the episodes that are not measured yet to results/photos/MODEL.json; stop it at any time. `table` prints what is
there: the score of each setting, its standard error over classes, and the paired difference from the first. `page` draws the
best, median and worst answers; it holds photographs, so it stays outside the repository.

COCO pools intersection and union over the episodes of a class and takes the mean over classes. DAVIS takes the mean over the
frames of a sequence, then over sequences. In coco-absent the query does not show the class, and in look-alikes it shows
another one that is like it: the score is the share of queries in which anything is marked. "negatives=3" gives three
photographs without the class: in look-alikes those of the other class, else those of any other.
"""

import argparse
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from cyctr import Segmenter
from cyctr.evaluation.metrics import Counts, count
from cyctr.inference.result import Segmentation
from cyctr.storage import write_atomically
from cyctr.types import Features
from cyctr.visual.contact import Block, tile
from cyctr.visual.page import Section, page

SETS = ("coco-1", "davis", "coco-5", "coco-absent", "look-alikes")
ABSENT = ("coco-absent", "look-alikes")
LOOK_ALIKES = (
    ("cup", "vase"),
    ("fork", "knife"),
    ("handbag", "backpack"),
    ("suitcase", "handbag"),
    ("keyboard", "laptop"),
    ("microwave", "toaster"),
    ("refrigerator", "microwave"),
    ("bear", "elephant"),
    ("giraffe", "zebra"),
    ("carrot", "banana"),
    ("apple", "donut"),
)
SETTINGS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {  # photographs that encode_support gets, options of segment
    "as it is": ({}, {}),
    "votes=0": ({}, {"votes": 0.0}),
    "votes=1": ({}, {"votes": 1.0}),
    "zoom=False": ({}, {"zoom": False}),
    "drop_absent=False": ({}, {"drop_absent": False}),
    "negatives=3": ({"negatives": 3}, {}),
    "negatives=3, drop_absent=False": ({"negatives": 3}, {"drop_absent": False}),
    "edges=False": ({}, {"edges": False}),
    "flip=True": ({}, {"flip": True}),
    "refine=sam": ({}, {"refine": "sam"}),
}
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "photos"
_SHOWN = 4  # answers of each kind on a page


class Row(TypedDict):
    """What one episode gave: pixels of the intersection and union, of the mask, and how sure it was."""

    category: str
    intersection: int
    union: int
    marked: int
    confidence: float


Rows = dict[str, Row]  # by the id of the episode


class Photos:
    """The photographs, their masks and episodes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.episodes = json.loads((folder / "episodes.json").read_text())
        self.episodes["look-alikes"] = list(self._look_alikes())

    def _look_alikes(self) -> Iterator[dict[str, Any]]:
        """Each class with photographs of one that is like it, both ways round, two of each."""
        for one, other in (*LOOK_ALIKES, *(pair[::-1] for pair in LOOK_ALIKES)):
            shown, like = (self._of_class(name) for name in (one, other))
            without = [path for path, _ in like if not self._shows(path, one)]
            for support, path in zip(shown, without[:2], strict=False):
                rest = [each for each in without if each != path]
                name = f"{one}_{Path(support[0]).stem}_{Path(path).stem}"
                yield {"class": one, "support": [support], "query": [path, None], "id": name, "without": rest}

    def _of_class(self, name: str) -> list[list[str]]:
        """Image and mask of each photograph of a class."""
        pairs = [pair for one in self.episodes["coco-1"] if one["class"] == name for pair in (*one["support"], one["query"])]
        return [list(pair) for pair in sorted(set(map(tuple, pairs)))]

    def _shows(self, path: str, name: str) -> bool:
        return (self.folder / "coco" / "masks" / name.replace(" ", "_") / f"{Path(path).stem}.png").exists()

    def without(self, episode: Mapping[str, Any], count: int) -> list[str]:
        """So many photographs that do not show the class of an episode, and are not its query."""
        others = episode.get("without") or sorted(
            pair[0] for one in self.episodes["coco-1"] if one["class"] != episode["class"] for pair in one["support"]
        )
        used = {episode["query"][0], *(path for path, _ in episode["support"])}
        free = [path for path in dict.fromkeys(others) if path not in used and not self._shows(path, episode["class"])]
        return random.Random(episode["id"]).sample(free, min(count, len(free)))

    def image(self, path: str) -> NDArray[np.uint8]:
        return np.asarray(Image.open(self.folder / path).convert("RGB"))

    def label(self, path: str | None, size: tuple[int, ...]) -> NDArray[np.uint8]:
        """1 the class, 0 the rest, 255 left out. Masks of DAVIS are 0 and 255."""
        if path is None:
            return np.zeros(size, np.uint8)
        values = np.asarray(Image.open(self.folder / path))
        return (values > 0).astype(np.uint8) if path.startswith("davis") else values


def remember(segmenter: Segmenter) -> Callable[[], None]:
    """Lets a segmenter encode each photograph once, and answer once for settings that look at an answer differently.

    Returns:
        what forgets the answers, for the next episode.
    """
    model = segmenter.network.model
    encode, answer = model.backbone.forward, model.predict
    features: dict[str, Features] = {}
    answers: dict[str, Any] = {}

    def encoded(images: torch.Tensor) -> Features:
        keys = [_digest(image) for image in images]
        for key, image in zip(keys, images, strict=True):
            if key not in features:
                features[key] = encode(image[None])
        found = [features[key] for key in keys]
        return Features.join(found)

    def answered(query: Any, support: Any, size: tuple[int, int], padding: Any = None, explain: bool = False) -> Any:
        key = _digest(query.reduced) + _digest(support.tokens) + _digest(support.high) + str(explain)
        if key not in answers:
            answers[key] = answer(query, support, size, padding, explain)
        return answers[key]

    model.backbone.forward = encoded  # type: ignore[method-assign]
    model.predict = answered  # type: ignore[method-assign]
    return answers.clear


def _digest(values: torch.Tensor) -> str:
    plain = values.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(plain.tobytes(), digest_size=16).hexdigest()


def answer(segmenter: Segmenter, photos: Photos, episode: Mapping[str, Any], setting: str) -> Segmentation:
    """The answer to the query of an episode."""
    encoding, settings = SETTINGS[setting]
    images = [photos.image(path) for path, _ in episode["support"]]
    pairs = zip(episode["support"], images, strict=True)
    masks = [photos.label(path, image.shape[:2]) for (_, path), image in pairs]
    without = [photos.image(path) for path in photos.without(episode, encoding["negatives"])] if encoding else []
    support = segmenter.encode_support(images, masks, name=episode["class"], class_id=1, negatives=without)
    return segmenter.segment(photos.image(episode["query"][0]), support, **settings)


def measured(found: Segmentation, label: NDArray[np.uint8], category: str) -> Row:
    """The numbers of an answer at the size of the photograph."""
    counts: Counts = count(torch.from_numpy(found.mask), torch.tensor(label))
    union = counts.true_positive + counts.false_positive + counts.false_negative
    sure = round(found.confidence, 4)
    return Row(category=category, intersection=counts.true_positive, union=union, marked=int(found.mask.sum()), confidence=sure)


def by_class(which: str, rows: Rows) -> dict[str, float]:
    """The score of each class or sequence, in percent."""
    classes: dict[str, list[Row]] = {}
    for row in rows.values():
        classes.setdefault(row["category"], []).append(row)
    return {name: 100 * _score(which, own) for name, own in sorted(classes.items())}


def _score(which: str, rows: Sequence[Row]) -> float:
    if which in ABSENT:
        return float(np.mean([row["marked"] > 0 for row in rows]))
    if which == "davis":
        return float(np.mean([row["intersection"] / row["union"] if row["union"] else 1.0 for row in rows]))
    union = sum(row["union"] for row in rows)
    return sum(row["intersection"] for row in rows) / union if union else 1.0


def summary(which: str, rows: Rows, first: Rows) -> str:
    """The score with its standard error, and the paired difference from another setting on the episodes of both."""
    own = by_class(which, rows)
    text = f"{np.mean(list(own.values())):.1f} ± {_error(list(own.values())):.1f}"
    both = rows.keys() & first.keys()
    if rows is not first and both:
        one, other = (by_class(which, {key: part[key] for key in both}) for part in (rows, first))
        apart = [one[name] - other[name] for name in one]
        text += f" ({np.mean(apart):+.1f} ± {_error(apart):.1f})"
    return text


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def run(given: argparse.Namespace) -> None:
    """Measures the episodes that are missing."""
    photos, output = Photos(given.photos), given.output or RESULTS / f"{Path(given.model).stem}.json"
    kept = json.loads(output.read_text()) if output.exists() else {"about": {}, "rows": {}}
    torch.set_num_threads(given.threads)
    segmenter = Segmenter.from_pretrained(given.model, device=given.device, precision=given.precision)
    forget = remember(segmenter)
    kept["about"] = {"model": segmenter.name, "bfloat16": segmenter.network.half, "torch": torch.__version__}
    settings = given.setting or list(SETTINGS)
    for which in given.set or SETS:
        episodes = photos.episodes[which][:: given.every]
        started, done = time.perf_counter(), 0
        for episode in episodes:
            forget()
            for setting in settings:
                rows = kept["rows"].setdefault(setting, {}).setdefault(which, {})
                if episode["id"] in rows:
                    continue
                found = answer(segmenter, photos, episode, setting)
                path, size = episode["query"][1], found.size
                rows[episode["id"]] = measured(found, photos.label(path, size), episode["class"])
                done += 1
            write_atomically(output, (json.dumps(kept, indent=0) + "\n").encode())
        print(f"{which}: {done} answers in {time.perf_counter() - started:.0f} s", flush=True)
    table(given)


def table(given: argparse.Namespace) -> None:
    """Prints the scores of all files."""
    for file in [given.output] if given.output else sorted(RESULTS.glob("*.json")):
        rows = json.loads(file.read_text())["rows"]
        settings = [name for name in rows if not given.setting or name in given.setting]
        print(f"\n| {file.stem} | " + " | ".join(SETS) + " |\n|---|" + "---:|" * len(SETS))
        for setting in settings:
            cells = []
            for which in SETS:
                own, first = rows[setting].get(which, {}), rows[settings[0]].get(which, {})
                cells.append(f"{summary(which, own, first)}, {len(own)}" if own else "")
            print(f"| {setting} | " + " | ".join(cells) + " |")


def draw(given: argparse.Namespace) -> None:
    """Writes index.html with the best, median and worst answers of each set."""
    if given.output is None or given.output.resolve().is_relative_to(ROOT.resolve()):
        raise SystemExit("--output: expected a folder outside the repository, for the page holds photographs")
    photos = Photos(given.photos)
    rows = json.loads((RESULTS / f"{Path(given.model).stem}.json").read_text())["rows"]
    segmenter = Segmenter.from_pretrained(given.model, device=given.device, precision=given.precision)
    sections = []
    for setting in given.setting or list(rows)[:1]:
        for which in given.set or SETS[:3]:
            episodes = {one["id"]: one for one in photos.episodes[which]}
            own = rows[setting][which]
            order = sorted(own, key=lambda key: own[key]["intersection"] / max(1, own[key]["union"]), reverse=True)
            middle = max(0, len(order) // 2 - _SHOWN // 2)
            picks = {"best": order[:_SHOWN], "median": order[middle : middle + _SHOWN], "worst": order[-_SHOWN:]}
            for kind, keys in picks.items():
                blocks = [_block(segmenter, photos, episodes[key], setting) for key in keys]
                text = "The first labelled photo, what is marked in the query, what was found."
                sections.append(Section(f"{which}, {setting}: {kind}", text, blocks))
    given.output.mkdir(parents=True, exist_ok=True)
    lead = "Holds photographs that may not be passed on: keep it to yourself."
    (given.output / "index.html").write_text(page(f"{segmenter.name} on real photographs", lead, [], sections))
    print(given.output / "index.html")


def _block(segmenter: Segmenter, photos: Photos, episode: Mapping[str, Any], setting: str) -> Block:
    found = answer(segmenter, photos, episode, setting)
    query, mask = episode["query"]
    shown, marked = episode["support"][0]
    support = photos.image(shown)
    tiles = [
        tile(support, photos.label(marked, support.shape[:2]) == 1),
        tile(photos.image(query), photos.label(mask, found.size) == 1),
        tile(photos.image(query), found.mask),
    ]
    row = measured(found, photos.label(mask, found.size), episode["class"])
    iou = 100 * row["intersection"] / max(1, row["union"])
    return Block(tiles, f"{episode['id']}: IoU {iou:.0f}, confidence {found.confidence:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "page"))
    parser.add_argument("--photos", type=Path, default=ROOT.parent / "shared" / "photos")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--set", action="append", choices=SETS, help="may be repeated; default: all")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="may be repeated; default: all")
    parser.add_argument("--every", type=int, default=1, help="only every so many episodes, while exploring")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, help="the JSON of run and table, the folder of page")
    given = parser.parse_args()
    {"run": run, "table": table, "page": draw}[given.what](given)


if __name__ == "__main__":
    main()
