"""`cyctr data`: the content and the faults of a dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cyctr.cli import options
from cyctr.cli.command import add, group

if TYPE_CHECKING:
    from cyctr.datasets.dataset import Dataset

app = group("Look at a dataset before measuring on it.")


def check_data(
    folder: Annotated[Path, typer.Argument(help="The dataset's folder.")],
    kind: Annotated[str, typer.Option(help="'auto' looks at the layout; or pascal, coco, fss, folder.")] = "auto",
    year: Annotated[int | None, typer.Option(help="COCO: 2014 or 2017, where both are there.")] = None,
    show: Annotated[int, typer.Option(min=1, help="Print at most this many problems.")] = 100,
) -> None:
    """List every problem of a dataset: missing and damaged files, masks that do not fit, classes with too few images."""
    from rich.console import Console

    from cyctr.datasets.check import check
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


@options.takes_data(positional=True)
def data_info(
    dataset: "Callable[[], Dataset]",
    protocol: Annotated[str, typer.Option(help="cyctr, released, pfenet or hsnet.")] = "cyctr",
    drop_novel: Annotated[bool, typer.Option("--drop-novel", help="Training lists without images of test classes.")] = False,
) -> None:
    """Show the list sizes of every fold: the first thing to compare when numbers differ between repositories."""
    from dataclasses import replace

    from cyctr.episodes.sizes import list_sizes

    opened = dataset()
    chosen = replace(opened.protocol(protocol), drop_novel=drop_novel)
    with options.progress_bar("reading masks") as progress:
        rows = list_sizes(opened, chosen, progress)
    table = [["fold", "split", "classes", "images", "(image, class) pairs", "fewest images of a class"]]
    for row in rows:
        few = f"{row.fewest:,} ({row.rarest})" if row.rarest else "-"
        table.append([str(row.fold), row.split, str(row.classes), f"{row.images:,}", f"{row.pairs:,}", few])
    options.print_table(table, left=2)
    smallest = opened.smallest if chosen.smallest is None else chosen.smallest
    unit = "pixel" if smallest == 1 else "pixels"
    print(f"\n{opened.name}: an image counts for a class from {smallest} {unit} of it on")


add(app, "check", check_data, ("cyctr data check VOC2012", "cyctr data check kitchen --kind folder"))
add(app, "info", data_info, ("cyctr data info VOC2012", "cyctr data info coco --coco-split contiguous --protocol pfenet"))
