"""Options that several commands share, and how their text becomes values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.errors import ConfigError

if TYPE_CHECKING:
    from cyctr.data.dataset import Dataset, Progress

DATA = "Data"
Data = Annotated[str, typer.Option("--data", help="The dataset's folder, or 'synthetic'.")]
Kind = Annotated[
    str,
    typer.Option("--kind", help="'auto' looks at the layout; or pascal, coco, fss, folder, synthetic.", rich_help_panel=DATA),
]
Year = Annotated[int | None, typer.Option("--year", help="COCO: 2014 or 2017, where both are there.", rich_help_panel=DATA)]
CocoSplit = Annotated[
    str, typer.Option("--coco-split", help="COCO: 'interleaved' (the usual) or 'contiguous' classes.", rich_help_panel=DATA)
]
TestClasses = Annotated[
    str | None,
    typer.Option("--test-classes", help="Own folder: names of the classes to test, as cup,plate.", rich_help_panel=DATA),
]
ClassFolds = Annotated[
    int | None,
    typer.Option("--class-folds", help="Own folder: split the classes into this many folds by chance.", rich_help_panel=DATA),
]
SplitSeed = Annotated[int, typer.Option("--split-seed", help="Own folder: the chance of --class-folds.", rich_help_panel=DATA)]


def open_data(
    data: str, kind: str, year: int | None, coco_split: str, test_classes: str | None, class_folds: int | None, split_seed: int
) -> "Dataset":
    """The dataset that these options name."""
    from cyctr.data.opening import open_dataset

    names = None if test_classes is None else [name.strip() for name in test_classes.split(",") if name.strip()]
    return open_dataset(
        Path(data),
        kind,
        year=year,
        coco_split=coco_split,
        test_classes=names,
        folds=class_folds,
        split_seed=split_seed,
    )


def numbers(option: str, text: str, lowest: int = 0) -> list[int]:
    """The numbers of a text such as `1,5` or `0-3`."""
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ConfigError(f"{option} is {text!r}; expected numbers such as 0,1,2 or 0-3")
        found += range(int(first), int(last or first) + 1)
    if not found or min(found) < lowest or len(set(found)) != len(found):
        raise ConfigError(f"{option} is {text!r}; expected different numbers from {lowest} on, such as 1,5")
    return found


def refuse_to_replace(*paths: Path, allowed: bool) -> None:
    """Raises ConfigError for a file that is there already."""
    found = next((path for path in paths if path.exists()), None)
    if found is not None and not allowed:
        raise ConfigError(f"{found}: is there already; go on with --resume, replace it with --force, or choose --output")


def print_table(rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Prints rows, the first of them headings, the first columns flush left. Nothing is cut, however narrow the screen."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))  # a name may look like rich's markup
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)


@contextmanager
def progress_bar(name: str) -> Iterator["Progress"]:
    """A bar that is gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
