"""`cyctr episodes`: which episodes a benchmark is made of, as a list and as pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli import options

if TYPE_CHECKING:
    from cyctr.datasets.dataset import Dataset

EXAMPLES = (
    "cyctr episodes --data VOC2012 --fold 1 --shots 5",
    "cyctr episodes --data VOC2012 --split train --augment --sheet episodes.png",
)


@options.takes_data()
def episodes(
    dataset: "Callable[[], Dataset]",
    fold: Annotated[int, typer.Option(min=0, help="Which class split.")] = 0,
    split: Annotated[str, typer.Option(help="test, train or validation.")] = "test",
    shots: Annotated[int, typer.Option(min=1, help="Labelled images per episode.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other episodes.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first episode.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 12,
    protocol: Annotated[str, typer.Option(help="cyctr, released, pfenet or hsnet.")] = "cyctr",
    order: Annotated[str | None, typer.Option(help="images, pairs, classes (balanced) or shuffled.")] = None,
    smallest: Annotated[int | None, typer.Option(min=1, help="Least pixels of the class in an image.")] = None,
    drop_novel: Annotated[bool, typer.Option("--drop-novel", help="Training lists without images of test classes.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet to this PNG.")] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Show the sheet's images as training would see them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the sheet where it is there already.")] = False,
) -> None:
    """List episodes: number, class, query and supports, one on each line, and draw them."""
    from dataclasses import replace

    from cyctr.errors import ConfigError, DataError
    from cyctr.evaluation.preview import episode_contact_sheet
    from cyctr.evaluation.results import RunKey
    from cyctr.evaluation.run import prepare

    if sheet is not None and sheet.exists() and not force:
        raise ConfigError(f"{sheet}: is there already; replace it with --force, or choose another --sheet")
    changes: dict[str, Any] = {"drop_novel": drop_novel, "seeds": (seed,)}
    if order is not None:
        changes["order"] = order
    if smallest is not None:
        changes["smallest"] = smallest
    opened = dataset()
    with options.progress_bar("reading masks") as progress:
        job = prepare(opened, replace(opened.protocol(protocol), **changes), split, [fold], [shots], progress=progress)
    setting = RunKey(fold, shots, seed)
    sampler, keys = job.evaluation.sampler(setting), job.evaluation.pool.keys
    for number in range(first, first + count):
        draw = sampler(number)
        supports = "\t".join(keys[i] for i in draw.supports)
        print(f"{number}\t{opened.classes[draw.category]}\t{keys[draw.query]}\t{supports}")
    if sheet is not None:
        picture = episode_contact_sheet(job.evaluation, setting, range(first, first + count), augment)
        try:
            sheet.parent.mkdir(parents=True, exist_ok=True)
            picture.save(sheet)
        except (OSError, ValueError) as error:
            raise DataError(f"{sheet}: cannot be written ({error}); choose another --sheet, such as episodes.png") from error
        print(f"sheet: {sheet}")
