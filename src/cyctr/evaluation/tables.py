"""Results -> the tables and the line that people read."""

from collections.abc import Mapping

from cyctr.evaluation.results import Results, description


def fold_table(results: Results) -> list[list[str]]:
    """The table in the paper's form, headings first: one row for each number of shots, a column for each fold."""
    rows = results.summary()
    folds = sorted({fold for row in rows for fold in row["folds"]}, key=int)
    table = [["shots", *(f"fold-{fold}" for fold in folds), "mean mIoU", "95 % interval", "FB-IoU", "episodes"]]
    for row in rows:
        low, high = row["interval"]
        per_fold = [spread_text(row["folds"][fold]) if fold in row["folds"] else "–" for fold in folds]
        state = f"{row['episodes']:,}" + ("" if row["finished"] else " (unfinished)")
        mean = [spread_text(row["mean"]), f"{low:.1f}–{high:.1f}", spread_text(row["fb_iou"]), state]
        table.append([str(row["shots"]), *per_fold, *mean])
    return table


def class_table(results: Results) -> list[list[str]]:
    """IoU of each class, headings first."""
    rows = results.summary()
    table = [["class", *(f"{row['shots']}-shot" for row in rows)]]
    for name in (name for name in results.classes if any(name in row["classes"] for row in rows)):
        table.append([name, *(f"{row['classes'][name]:.1f}" if name in row["classes"] else "–" for row in rows)])
    return table


def learned_classes(results: Results) -> list[str]:
    """The scored classes that the method has learned from, as far as its checkpoint says."""
    learned = results.conditions["method"].get("checkpoint", {}).get("data", {}).get("train", [])
    scored = {name for row in results.summary() for name in row["classes"]}
    return [name for name in results.classes if name in scored and name in learned]


def markdown(results: Results) -> str:
    """What was measured, and both tables."""
    blocks = [description(results)]
    for table in (fold_table(results), class_table(results)):
        lines = [table[0], ["---", *["---:"] * (len(table[0]) - 1)], *table[1:]]
        escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
        blocks.append("\n".join(f"| {' | '.join(line)} |" for line in escaped))
    return "\n\n".join(blocks) + "\n"


def spread_text(value: Mapping[str, float | None]) -> str:
    """Mean, and ± the deviation over seeds where there are several."""
    return f"{value['mean']:.1f}" + (f" ± {value['std']:.1f}" if value["std"] is not None else "")
