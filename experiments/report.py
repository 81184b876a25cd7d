"""The JSON files of `experiments/run.py` -> tables in Markdown, and plots.

    python experiments/report.py results/table1 --plots docs/images

Prints a row for each name and number of shots: mean over seeds for each fold, mean over folds, FB-IoU, the spread over
seeds, and minutes of training. With --plots it draws bars of the classes' IoU, and, where runs were watched, accuracy
against minutes.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Found = dict[str, Any]
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#475569", "#b45309", "#0e7490")


def read(folder: Path) -> dict[str, list[Found]]:
    """The runs of a folder by name, in the order of their folds."""
    runs: dict[str, list[Found]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        runs.setdefault(found["name"], []).append(found)
    return {name: sorted(own, key=lambda run: str(run["fold"])) for name, own in runs.items()}


Way = tuple[bool, ...]
WAYS = {"flip": "mirrored", "plain": "nothing recognised", "edges": "along edges"}
AS_IT_IS: Way = (False, False, False)


def of_shots(run: Found, shots: int, way: Way = AS_IT_IS) -> list[Found]:
    return [one for one in run.get("test", []) if one["shots"] == shots and _way(one) == way]


def _way(one: Found) -> Way:
    """Whether it was tested with mirror images, with nothing recognised, with answers that follow edges."""
    return tuple(one.get(name, False) for name in WAYS)


def table(runs: dict[str, list[Found]]) -> str:
    """All runs as one table."""
    folds = sorted({str(run["fold"]) for own in runs.values() for run in own if run.get("test")})
    heading = ["", "shots", *(f"fold-{fold}" for fold in folds), "mean", "FB-IoU", "std of seeds", "minutes a fold"]
    lines = [heading, ["---", "---:"] + ["---:"] * (len(heading) - 2)]
    for name, own in runs.items():
        for way, shots in sorted({(_way(one), one["shots"]) for run in own for one in run.get("test", [])}):
            tests = {str(run["fold"]): of_shots(run, shots, way) for run in own}
            scores = {fold: [one["miou"] for one in found] for fold, found in tests.items()}
            scores = {fold: values for fold, values in scores.items() if values}
            whole = f"{mean(mean(values) for values in scores.values()):.1f}" if len(scores) == len(folds) else "–"
            fb = mean(mean(one["fb_iou"] for one in found) for found in tests.values() if found)
            spread = mean(stdev(values) if len(values) > 1 else 0.0 for values in scores.values())
            minutes = mean(run["seconds"]["training"] for run in own) / 60
            cells = [f"{mean(scores[fold]):.1f}" if fold in scores else "–" for fold in folds]
            lines.append(
                [
                    ", ".join([name, *(title for title, wanted in zip(WAYS.values(), way, strict=True) if wanted)]),
                    str(shots),
                    *cells,
                    whole,
                    f"{fb:.1f}",
                    f"{spread:.2f}",
                    f"{minutes:.1f}",
                ]
            )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def classes(runs: dict[str, list[Found]], shots: int) -> Figure | None:
    """Bars of each class's IoU, mean over seeds, for each name."""
    scores: dict[str, dict[str, list[float]]] = {}
    for name, own in runs.items():
        for run in own:
            for one in of_shots(run, shots):
                for label, iou in one["classes"].items():
                    scores.setdefault(name, {}).setdefault(label, []).append(iou)
    if not scores:
        return None
    labels = list(dict.fromkeys(label for own in scores.values() for label in own))
    figure = Figure(figsize=(max(6.0, 0.5 * len(labels)), 3.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(scores)
    for place, (name, own) in enumerate(scores.items()):
        heights = [mean(own[label]) if label in own else 0.0 for label in labels]
        x = [i + (place - (len(scores) - 1) / 2) * width for i in range(len(labels))]
        axes.bar(x, heights, width, color=COLOURS[place % len(COLOURS)], label=name)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_ylabel(f"IoU (%), {shots}-shot")
    axes.set_ylim(0, 100)
    _finish(axes, len(scores))
    return figure


def minutes(runs: dict[str, list[Found]]) -> Figure | None:
    """Accuracy against minutes of training, where runs were watched."""
    watched = [(name, run) for name, own in runs.items() for run in own if run.get("curve")]
    if not watched:
        return None
    figure = Figure(figsize=(6.5, 3.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    for place, (name, run) in enumerate(watched):
        x, y = [p["seconds"] / 60 for p in run["curve"]], [100 * p["miou"] for p in run["curve"]]
        axes.plot(x, y, marker="o", markersize=3, color=COLOURS[place % len(COLOURS)], label=f"{name}, fold {run['fold']}")
    axes.set_xlabel("minutes")
    axes.set_ylabel("mIoU (%)")
    axes.set_xlim(0, None)
    _finish(axes, 2)
    return figure


def _finish(axes: Any, columns: int) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(4, columns), frameon=False)


def save(figure: Figure | None, path: Path) -> None:
    if figure is not None:
        FigureCanvasAgg(figure).print_png(path)
        print(f"plot: {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of results: JSON files of experiments/run.py")
    parser.add_argument("--plots", type=Path, help="folder for the plots")
    given = parser.parse_args(arguments)
    runs = read(given.folder)
    if not runs:
        parser.error(f"{given.folder}: holds no results; expected JSON files of experiments/run.py")
    print(table(runs))
    if given.plots:
        given.plots.mkdir(parents=True, exist_ok=True)
        for shots in (1, 5):
            save(classes(runs, shots), given.plots / f"{given.folder.name}-classes-{shots}.png")
        save(minutes(runs), given.plots / f"{given.folder.name}-minutes.png")


if __name__ == "__main__":
    main()
