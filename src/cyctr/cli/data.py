"""`cyctr data`: what a dataset holds, and what is wrong with it."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli import options

app = typer.Typer(help="Look at a dataset before measuring on it.", no_args_is_help=True)


@app.command("check")
def check_data(
    folder: Annotated[Path, typer.Argument(help="The dataset's folder.")],
    kind: options.Kind = "auto",
    year: options.Year = None,
    show: Annotated[int, typer.Option(min=1, help="Print at most this many problems.")] = 100,
) -> None:
    """List every problem of a dataset: missing and damaged files, masks that do not fit, classes with too few images."""
    from rich.console import Console

    from cyctr.data.check import check
    from cyctr.errors import DataError

    with options.progress_bar("reading masks") as progress:
        report = check(folder, kind, progress, year=year)
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    for problem in report.problems[:show]:
        console.print(problem)
    if len(report.problems) > show:
        console.print(f"... and {len(report.problems) - show:,} more")
    for line in report.summary():
        console.print(line)
    if report.problems:
        count = len(report.problems)
        raise DataError(
            f"{folder}: {count} problem{'s' if count > 1 else ''}, listed above; mend {'them' if count > 1 else 'it'}"
        )
    console.print("no problems")


@app.command("info")
def data_info(
    folder: Annotated[str, typer.Argument(help="The dataset's folder, or 'synthetic'.")],
    protocol: Annotated[str, typer.Option(help="cyctr, pfenet or hsnet.")] = "cyctr",
    drop_novel: Annotated[bool, typer.Option("--drop-novel", help="Training lists without images of test classes.")] = False,
    kind: options.Kind = "auto",
    year: options.Year = None,
    coco_split: options.CocoSplit = "interleaved",
    test_classes: options.TestClasses = None,
    class_folds: options.ClassFolds = None,
    split_seed: options.SplitSeed = 0,
) -> None:
    """Show the list sizes of every fold: the first thing to compare when numbers differ between repositories."""
    from dataclasses import replace

    from cyctr import config
    from cyctr.data.sizes import list_sizes

    dataset = options.open_data(folder, kind, year, coco_split, test_classes, class_folds, split_seed)
    chosen = replace(config.protocol(protocol), drop_novel=drop_novel)
    with options.progress_bar("reading masks") as progress:
        rows = list_sizes(dataset, chosen, progress)
    table = [["fold", "split", "classes", "images", "(image, class) pairs", "fewest images of a class"]]
    for row in rows:
        few = f"{row.fewest:,} ({row.rarest})" if row.rarest else "-"
        table.append([str(row.fold), row.split, str(row.classes), f"{row.images:,}", f"{row.pairs:,}", few])
    options.print_table(table, left=2)
    smallest = dataset.smallest if chosen.smallest is None else chosen.smallest
    unit = "pixel" if smallest == 1 else "pixels"
    print(f"\n{dataset.name}: an image counts for a class from {smallest} {unit} of it on")
