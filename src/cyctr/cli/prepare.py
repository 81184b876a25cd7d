"""`cyctr prepare`: the official archives of a dataset -> the layout this package reads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cyctr.cli.command import add, group

if TYPE_CHECKING:
    from cyctr.datasets.prepare_pascal import Report

app = group("Bring a dataset into the layout that training and evaluation read.")

_NAMED = 5  # of the things a heading speaks of


def pascal(
    voc: Annotated[Path, typer.Option(help="PASCAL VOC 2012: the folder with JPEGImages, or one above it.")],
    sbd: Annotated[Path, typer.Option(help="SBD: the folder with cls, or one above it.")],
    output: Annotated[Path | None, typer.Option(help="Folder to fill, its images links; default: VOC's own folder.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch VOC (2 GB) and SBD (1.4 GB) if not there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace masks and lists that differ from the official ones.")] = False,
) -> None:
    """Make PASCAL-5^i from VOC 2012 and SBD: SegmentationClassAug and the lists.

    A mask is VOC's where VOC has one, else SBD's. Files that are there are kept, and a run that was stopped can be run again.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from cyctr.datasets.prepare_pascal import prepare_pascal
    from cyctr.errors import DataError

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total or None)
            progress.update(tasks[step], completed=done)

        report = prepare_pascal(voc, sbd, output, download, force, tell)
    _print(report)
    if report.problems:
        counts = "; ".join(f"{heading}: {len(names):,}" for heading, names in report.problems.items())
        raise DataError(f"{report.output}: not complete ({counts}); mend VOC or SBD as the report says and run again")


def _print(report: "Report") -> None:
    from cyctr.datasets.pascal_masks import Fate
    from cyctr.datasets.prepare_pascal import OFFICIAL

    masks, links = report.masks, report.links
    print(f"PASCAL-5^i in {report.output}")
    print(f"  masks: {report.voc_masks:,} of VOC, {report.sbd_masks:,} more of SBD", end="")
    print(f"; {masks[Fate.WRITTEN]:,} written, {masks[Fate.KEPT]:,} already there")
    print(f"  images: {report.images:,} of VOC, {report.unlabelled:,} of them without mask", end="")
    if links:
        print(f"; {links[Fate.WRITTEN]:,} linked, {links[Fate.COPIED]:,} copied, {links[Fate.KEPT]:,} already there", end="")
    print()
    for name, (size, fate) in report.lists.items():
        hint = " (--force replaces it)" if fate is Fate.LEFT else ""
        print(f"  {name}.txt: {size:,} images (official: {OFFICIAL[name]:,}), {fate.value}{hint}")
    left = "that differ from those already there, which were left (--force replaces them)"
    for heading, names in ({f"{kind} {left}": ids for kind, ids in report.left.items()} | report.problems).items():
        print(f"  {heading}: {len(names):,}")
        print("".join(f"    {name}\n" for name in names[:_NAMED]), end="")
        print(f"    and {len(names) - _NAMED:,} more\n" if len(names) > _NAMED else "", end="")


add(
    app,
    "pascal",
    pascal,
    ("cyctr prepare pascal --voc VOC2012 --sbd SBD", "cyctr prepare pascal --voc VOC2012 --sbd SBD --output pascal --download"),
)
