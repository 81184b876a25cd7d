"""The metrics of a training run -> a plot of its loss and of what it scored on classes it had not seen."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

_FEW = 20  # points that are marked
_INK, _LOSS, _AUXILIARY, _SCORE = "#333333", "#4c78a8", "#c9a227", "#c2410c"


def draw_curves(records: Sequence[Mapping[str, Any]]) -> bytes | None:
    """A PNG of losses and validation mIoU over episodes; none where matplotlib is not installed, or nothing happened yet.

    Args:
        records: the lines of `metrics.jsonl`.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    losses = [record for record in records if record.keys() >= {"loss", "episodes"}]
    scores = [record for record in records if "episodes" in record and "miou" in record.get("validation", {})]
    if not losses:
        return None
    figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    episodes = [record["episodes"] for record in losses]
    marker = "o" if len(losses) <= _FEW else None  # of one point there is no line
    has_dice = all(record.keys() >= {"main", "auxiliary"} for record in losses)
    dice = ("auxiliary", _AUXILIARY, "Dice of supports (auxiliary)"), ("main", _LOSS, "Dice")
    for name, colour, label in dice if has_dice else (("loss", _LOSS, "loss"),):
        values = [record[name] for record in losses]
        left.plot(episodes, values, color=colour, linewidth=0.8, alpha=0.4)
        curve = smooth(values, smoothness(len(values)))
        left.plot(episodes, curve, color=colour, linewidth=2, marker=marker, markersize=4, label=label)
    left.set_xlabel("episodes")
    left.set_ylabel("Dice loss" if has_dice else "loss")
    left.set_ylim(0, None)
    left.set_xlim(0, None)
    left.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    lines = list(left.get_lines())[1::2]
    if scores:
        right = left.twinx()
        right.plot(
            [record["episodes"] for record in scores],
            [100 * record["validation"]["miou"] for record in scores],
            color=_SCORE,
            marker="o",
            markersize=4,
            linewidth=1.5,
            label=f"mIoU, {scores[-1]['validation']['split']} classes",
        )
        right.set_ylabel("mIoU (%)", color=_SCORE)
        right.tick_params(axis="y", colors=_SCORE)
        right.spines[["top"]].set_visible(False)
        lines += right.get_lines()
    left.spines[["top"]].set_visible(False)
    left.grid(color="#eeeeee")
    left.legend(
        lines,
        [str(line.get_label()) for line in lines],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        labelcolor=_INK,
    )
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def smoothness(count: int) -> float:
    """What to `keep` in smoothing so many values: a mean of about a fifth of them, or of ten where there are many."""
    return min(0.9, max(0.0, 1 - 5 / max(1, count)))


def smooth(values: Sequence[float], keep: float = 0.9) -> list[float]:
    """An exponential moving average without the pull of its start."""
    smoothed, mean, weight = [], 0.0, 0.0
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        smoothed.append(mean / weight)
    return smoothed
