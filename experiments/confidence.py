"""How well `cyctr.inference.confidence` tells queries that hold the class from those that do not, and its numbers.

    python experiments/confidence.py --data VOC2012 --checkpoint fold0.safetensors@0 --checkpoint fold1.safetensors@1
    python experiments/confidence.py --rows results/confidence.json

Behind the @ stands what is asked for: the number of a fold, for its test classes; names of classes; "all"; or "gallery", for
scenes of classes that PASCAL VOC does not have. Each set of supports meets two queries: one with the class, one without a
pixel of it. Each pair gives a row of numbers, kept in --output; from rows alone all else is computed again.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cyctr.checkpoint import load_checkpoint
from cyctr.config import InputConfig
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.gallery import Shot, scenes
from cyctr.datasets.index import Index
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device
from cyctr.images.geometry import fit_image, fit_label, planes, restore
from cyctr.inference.confidence import CALIBRATIONS, Calibration, calibration_name, resemblance
from cyctr.inference.likeness import likeness_map, mean_foreground
from cyctr.methods.cyctr.network import CyCTR
from cyctr.seeding import Stream
from cyctr.types import Features, Pixels, Prediction

Floats = NDArray[np.float64]
_GALLERY = "gallery"
_BINS = 5
_OTHERS = 3  # queries of the gallery without the class, for each with it


@dataclass(frozen=True)
class Row:
    """A support set, a query and what was found.

    Attributes:
        network: name of the checkpoint.
        weights: of its backbone.
        category: the class; of the gallery, the scene.
        fold: of the class, or "gallery".
        query: name of the image.
        shots: K.
        present: whether the query holds the class.
        resemblance: what the confidence is made of.
        sharpness: the mean probability of the answer, each pixel weighing its probability squared: how certain the network is.
    """

    network: str
    weights: str
    category: str
    fold: int | str
    query: str
    shots: int
    present: bool
    resemblance: float
    sharpness: float


@dataclass(frozen=True)
class Pair:
    """Two queries for one set of supports, as places in the pool."""

    holds: int
    lacks: int
    supports: tuple[int, ...]


def draw(index: Index, category: int, smallest: int, count: int, shots: int, seed: int) -> list[Pair]:
    """Pairs of a class: no query occurs twice; supports are other images among those with the class."""
    holders, _ = index.pairs([category], smallest)
    lacking = np.setdiff1d(np.arange(len(index)), index.pairs([category])[0])
    count = min(count, len(holders), len(lacking))
    holds = [int(holders[i]) for i in Stream("confidence", "with", category, seed).choose(len(holders), count)]
    lacks = [int(lacking[i]) for i in Stream("confidence", "without", category, seed).choose(len(lacking), count)]
    pairs = []
    for place in range(count):
        others = Stream("confidence", "supports", category, seed, place).choose(count - 1, shots)
        pairs.append(Pair(holds[place], lacks[place], tuple(holds[other + (other >= place)] for other in others)))
    return pairs


class Network:
    """A checkpoint that answers pairs from features made once for each image."""

    def __init__(self, path: Path, size: int, device: torch.device) -> None:
        model, config = load_checkpoint(path)
        self.model: CyCTR = model.to(device).accelerate()
        self.name, self.weights = path.stem, calibration_name(config.model.backbone)
        self.input, self.device = InputConfig(size), device

    def encode(self, image: Pixels) -> Features:
        return self.model.backbone(self.fit(image)[None])

    def fit(self, image: Pixels) -> torch.Tensor:
        return fit_image(planes(image), self.input).to(self.device)

    def ask(self, supports: Sequence[tuple[Features, Shot]], query: Features, image: Pixels) -> tuple[float, float]:
        """Resemblance and sharpness of the answer."""
        joined = Features.join([made for made, _ in supports])
        labels = torch.stack([fit_label(torch.from_numpy(shot.label), self.input) for _, shot in supports]).to(self.device)
        size, grid = (self.input.size, self.input.size), self.model.backbone.grid
        prediction = self.model.predict(query, self.model.encode_support(joined, labels[None]), size)
        alike = likeness_map(query, mean_foreground(joined, labels[None], grid), grid, size)
        probability, similarity = maps(prediction, alike, (image.shape[0], image.shape[1]), self.input)
        sharpness = (probability**3).sum() / (probability**2).sum()
        found = resemblance(probability[None], similarity[None], torch.ones_like(probability, dtype=torch.bool)[None])
        return round(float(found), 5), round(float(sharpness), 5)


def maps(
    prediction: Prediction, alike: torch.Tensor, size: tuple[int, int], config: InputConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probability and similarity at the query's own size."""
    logits = restore(prediction.logits[0].float(), size, config)
    similarity = restore(alike[:1].float(), size, config)
    return logits.softmax(0)[1], similarity[0]


def ask_classes(
    network: Network, dataset: Dataset, categories: Sequence[int], shots: Sequence[int], counts: Sequence[int], seed: int
) -> Iterator[Row]:
    """Rows of a dataset's test images; of K = shots[i], the first counts[i] pairs of each class."""
    pool = dataset.pool("test")
    index = pool.index()
    for category in categories:
        fold = next(number for number, fold in enumerate(dataset.folds) if category in fold.test)
        pairs = draw(index, category, dataset.smallest, max(counts), max(shots), seed)
        made = {pair.holds: network.encode(pool.image(pair.holds)) for pair in pairs}
        for place, pair in enumerate(pairs):
            lacking = network.encode(pool.image(pair.lacks))
            for many in (many for many, count in zip(shots, counts, strict=True) if place < count):
                supports = [(made[i], Shot(pool.image(i), pool.label(i, category))) for i in pair.supports[:many]]
                for query, features in ((pair.holds, made[pair.holds]), (pair.lacks, lacking)):
                    found = network.ask(supports, features, pool.image(query))
                    about = (network.name, network.weights, dataset.classes[category], fold, pool.keys[query])
                    yield Row(*about, many, query == pair.holds, *found)


def ask_gallery(network: Network, seed: int) -> Iterator[Row]:
    """Rows of the gallery: a scene's own queries, and for each of them three of scenes of other photographs."""
    every = scenes()
    queries = [
        (scene, place, query, network.encode(query.image)) for scene in every for place, query in enumerate(scene.queries)
    ]
    for scene in every:
        supports = [(network.encode(shot.image), shot) for shot in scene.supports]
        others = [one for one in queries if one[0].source != scene.source]
        own = [one for one in queries if one[0] is scene]
        picks = Stream("confidence", _GALLERY, scene.name, seed).choose(len(others), _OTHERS * len(own))
        for other, place, query, features in own + [others[pick] for pick in picks]:
            found = network.ask(supports, features, query.image)
            about = (network.name, network.weights, scene.name, _GALLERY, f"{other.name}-{place}")
            yield Row(*about, len(supports), other is scene, *found)


def fit(inputs: Floats, present: NDArray[np.bool_]) -> Floats:
    """Logistic regression by Newton's method: the bias, then a weight for each of (n, inputs) columns."""
    mean, spread = inputs.mean(0), inputs.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    design = np.column_stack([np.ones(len(inputs)), (inputs - mean) / spread])
    ridge = np.diag([0.0, *[1e-3 * len(inputs)] * inputs.shape[1]])  # finite even where the classes part
    weights = np.zeros(design.shape[1])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (chance - present) + ridge @ weights
        weights -= np.linalg.solve((design * (chance * (1 - chance))[:, None]).T @ design + ridge, slope)
    own = weights[1:] / spread
    return np.array([weights[0] - own @ mean, *own])


def chances(weights: Floats, inputs: Floats) -> Floats:
    return 1 / (1 + np.exp(-(weights[0] + inputs @ weights[1:])))


def columns(rows: Sequence[Row], sharpness: bool = False) -> Floats:
    """What the regression sees: (n, 2) resemblance, or for comparison the network's own certainty, and ln K."""
    return np.array([[row.sharpness if sharpness else row.resemblance, np.log(row.shots)] for row in rows])


def truth(rows: Sequence[Row]) -> NDArray[np.bool_]:
    return np.array([row.present for row in rows])


def unseen(rows: Sequence[Row], sharpness: bool = False) -> Floats:
    """The confidence of each row from a regression that met no row of its class's fold."""
    folds = np.array([str(row.fold) for row in rows])
    inputs, present, found = columns(rows, sharpness), truth(rows), np.empty(len(rows))
    for fold in np.unique(folds):
        own = folds == fold
        found[own] = chances(fit(inputs[~own], present[~own]), inputs[own])
    return found


def known(rows: Sequence[Row], weights: str) -> Floats:
    """The confidence of each row from the package's numbers for a backbone."""
    own = CALIBRATIONS[weights]
    return chances(np.array([own.bias, own.slope, own.per_log_shot]), columns(rows))


def report(found: Floats, present: NDArray[np.bool_]) -> dict[str, Any]:
    """How often it is right, in percent, and whether it means what it says."""
    right = (found >= 0.5) == present
    beats = (found[present][:, None] > found[~present]).mean() + 0.5 * (found[present][:, None] == found[~present]).mean()
    bins = np.minimum((found * _BINS).astype(int), _BINS - 1)
    filled = [own for number in range(_BINS) if (own := bins == number).any()]
    reliability = [
        {"rows": int(own.sum()), "said": float(found[own].mean()), "present": float(present[own].mean())} for own in filled
    ]
    return {
        "with": int(present.sum()),
        "without": int((~present).sum()),
        "auc": float(beats),
        "accuracy": 100 * float(right[present].mean() + right[~present].mean()) / 2,  # as if there were as many of each
        "right_with": 100 * float(right[present].mean()),
        "right_without": 100 * float(right[~present].mean()),
        "calibration_error": float(sum(one["rows"] * abs(one["said"] - one["present"]) for one in reliability) / len(found)),
        "reliability": reliability,
    }


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Fits each backbone's numbers to the dataset's rows, and reports on each network."""
    fits, reports = {}, []
    for weights in sorted({row.weights for row in rows}, reverse=True):
        learned = [row for row in rows if row.weights == weights and row.fold != _GALLERY]
        if len({row.fold for row in learned}) > 1:
            fits[weights] = asdict(Calibration(*(round(float(one), 2) for one in fit(columns(learned), truth(learned)))))
            found = unseen(learned)
            networks = list(dict.fromkeys(row.network for row in learned))
            for network in networks if len(networks) > 1 else ():
                kept = [i for i, row in enumerate(learned) if row.network == network]
                reports += by_shots(network, "fitted on other classes", [learned[i] for i in kept], found[kept])
            title = "all of these" if len(networks) > 1 else networks[0]
            reports += by_shots(title, "fitted on other classes", learned, found)
            reports += by_shots(title, "the same, from the network's certainty", learned, unseen(learned, sharpness=True))
            for other in (name for name in CALIBRATIONS if name != weights):
                reports += by_shots(title, f"numbers of {other}", learned, known(learned, other))
    for network in dict.fromkeys(row.network for row in rows if row.fold == _GALLERY):
        shown = [row for row in rows if row.network == network and row.fold == _GALLERY]
        if shown[0].weights not in CALIBRATIONS:
            continue
        found = known(shown, shown[0].weights)
        shots = f"{min(row.shots for row in shown)}–{max(row.shots for row in shown)}"
        reports.append({"network": f"{network}, gallery", "how": "as shipped", "shots": shots, **report(found, truth(shown))})
    return {"fits": fits, "reports": reports}


def by_shots(network: str, how: str, rows: Sequence[Row], found: Floats) -> Iterator[dict[str, Any]]:
    for shots in sorted({row.shots for row in rows}):
        kept = [i for i, row in enumerate(rows) if row.shots == shots]
        own = report(found[kept], truth([rows[i] for i in kept]))
        yield {"network": network, "how": how, "shots": shots, **own}


def table(reports: Sequence[dict[str, Any]]) -> str:
    heading = ["network", "numbers", "shots", "pairs with", "without", "AUC", "accuracy %", "with %", "without %", "off by"]
    lines = [heading, ["---"] * 2 + ["---:"] * (len(heading) - 2)]
    for one in reports:
        counts = [str(one[key]) for key in ("shots", "with", "without")]
        rates = [f"{one[key]:.0f}" for key in ("accuracy", "right_with", "right_without")]
        lines.append([one["network"], one["how"], *counts, f"{one['auc']:.3f}", *rates, f"{one['calibration_error']:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def wanted(dataset: Dataset, asked: str) -> tuple[int, ...]:
    """The classes that stand behind the @."""
    if asked == "all":
        return tuple(range(len(dataset.classes)))
    if asked.isdecimal():
        return dataset.fold(int(asked)).test
    return tuple(dataset.classes.index(name) for name in asked.split(","))


def read(path: Path) -> list[Row]:
    found = json.loads(path.read_text())["rows"]
    return [Row(**dict(zip(found["columns"], values, strict=True))) for values in found["values"]]


def write(path: Path, rows: Sequence[Row], found: dict[str, Any]) -> None:
    names = list(Row.__dataclass_fields__)
    values = ",\n".join(json.dumps(list(asdict(row).values())) for row in rows)
    head = json.dumps({"about": "written by experiments/confidence.py", **found}, indent=1)
    path.write_text(f'{head[:-2]},\n "rows": {{"columns": {json.dumps(names)}, "values": [\n{values}\n]}}\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a VOC2012 folder")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="FILE@CLASSES")
    parser.add_argument("--rows", type=Path, action="append", default=[], help="an earlier output, whose rows are taken over")
    parser.add_argument("--shots", type=numbers, default=(1, 5))
    parser.add_argument("--pairs", type=numbers, default=(12, 6), help="of each class, for each of --shots")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=473)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/confidence.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = [row for path in given.rows for row in read(path)]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    dataset = None if given.data is None else open_dataset(given.data)
    for asked in given.checkpoint:
        path, _, classes = asked.rpartition("@")
        network = Network(Path(path), given.size, choose_device(given.device))
        with torch.inference_mode():
            if classes == _GALLERY:
                rows += ask_gallery(network, given.seed)
            elif dataset is None:
                parser.error(f"{asked} asks for classes; add --data")
            else:
                rows += ask_classes(network, dataset, wanted(dataset, classes), given.shots, given.pairs, given.seed)
        write(given.output, rows, {})
        print(f"{asked}: {len(rows)} rows", flush=True)
    found = summarize(rows)
    write(given.output, rows, found)
    print(table(found["reports"]))
    print(json.dumps(found["fits"], indent=1))


if __name__ == "__main__":
    main()
