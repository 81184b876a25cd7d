"""`cyctr support`: a few labelled images as one small file, to keep or to hand on."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli import networks, options
from cyctr.cli.command import add, group
from cyctr.errors import ConfigError, DataError
from cyctr.words import counted, one_line

app = group("Keep labelled images as one small file.")


def save(
    folder: Annotated[Path, typer.Argument(help="Folder of labelled images: docs/supports.md.")],
    output: Annotated[Path, typer.Option("--output", help="The file, such as cup.cyctr.")],
    name: Annotated[str | None, typer.Option("--class", help="Which class, where the folder shows several.")] = None,
    tile: Annotated[
        int | None,
        typer.Option(
            "--tile", help="Of each image take the window of so many pixels that shows most of the object, for segment --tile."
        ),
    ] = None,
    negative: Annotated[
        list[Path] | None,
        typer.Option("--negative", metavar="DIR", help="Folder of images that show none of the classes; may be repeated."),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="The network whose input size it has.")] = "lite0",
    force: Annotated[bool, typer.Option("--force", help="Replace OUTPUT.")] = False,
) -> None:
    """Write the labelled images of one class, as a network sees them, to one file that any of our networks can use."""
    from cyctr.inference import read_supports

    options.refuse_labelled(output, folder)
    if output.exists() and not force:
        raise ConfigError(f"{output}: is there already; replace it with --force, or choose another --output")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one of labelled images")
    found = read_supports(folder, classes=None if name is None else [name])
    if len(found.classes) > 1:
        raise ConfigError(f"{folder}: shows {', '.join(found.classes)}; choose one with --class")
    with options.progress_bar("fetching the backbone") as progress:
        segmenter = networks.open_segmenter(model, "cpu", "auto", progress)
    supports = networks.encode_supports(segmenter, found, tile, negatives=negative or [])
    (support,) = supports.values()
    support.save(output)
    without = f", {support.negatives} without it" if support.negatives else ""
    print(f"{output}: {one_line(support.name)}, {support.shots} labelled{without}, {output.stat().st_size / 1e6:.1f} MB")


def info(
    file: Annotated[Path, typer.Argument(help="A file of `cyctr support save`.")],
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw what it shows: a .png or .jpg.")] = None,
) -> None:
    """Say what a support's file holds."""
    from cyctr.images.imaging import write_image
    from cyctr.inference.supports.encoded import pictured, read_support

    if picture is not None and picture.exists():
        raise ConfigError(f"{picture}: is there already; choose another --picture")
    stored = read_support(file)
    rows = [["image", "marked", "pixels"]]
    for shot, label in enumerate(stored.labels):
        inside = int((label != 255).sum())
        marked = int((label == 1).sum())
        rows.append([str(shot + 1), f"{100 * marked / max(1, inside):.1f} %", f"{marked:,}"])
    tile = "" if stored.tile is None else f", cut in windows of {stored.tile} pixels"
    closer = "" if not stored.closer else f", then {counted(stored.closer, 'closer look')} at small ones"
    without = "" if not stored.negatives else f", the last {stored.negatives} without it"
    labelled = len(stored.labels) - stored.closer - stored.negatives
    print(f"{one_line(stored.name)}: {labelled} labelled, {stored.images.shape[-1]} pixels a side{tile}{closer}{without}")
    options.print_table(rows)
    if picture is not None:
        write_image(picture, pictured(stored))
        print(picture)


add(
    app,
    "save",
    save,
    ("cyctr support save cups --output cup.cyctr", "cyctr support save kitchen --class plate --output plate.cyctr"),
)
add(app, "info", info, ("cyctr support info cup.cyctr --picture cup.png",))
