"""`cyctr demo`: a few labelled, the rest segmented, on photographs that are here already."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli import networks, options
from cyctr.errors import ConfigError, DataError

EXAMPLES = ("cyctr demo", "cyctr demo --model resnet50 --output demo-resnet50")


def demo(
    output: Annotated[Path, typer.Option(help="Folder for index.html and demo.png; made if it is not there.")] = Path("demo"),
    model: Annotated[str, typer.Option(help="lite0, resnet50, or the path of a checkpoint.")] = "lite0",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Segment photographs that come with scikit-image and scikit-learn by a few labelled crops of each.

    Prints the IoU where truth is known, and writes OUTPUT/index.html: support, query, mask and cycle map of each class.
    """
    from cyctr.images.imaging import write_image
    from cyctr.inference.showcase import draw_sheet, is_page, show, table, write_page

    page, sheet = output / "index.html", output / "demo.png"
    try:
        output.mkdir(parents=True, exist_ok=True)
        others = [] if is_page(page) else [path for path in (page, sheet) if path.exists()]
    except OSError as error:
        raise DataError(f"{output}: cannot be made ({error.strerror}); choose another --output") from error
    if not os.access(output, os.W_OK):
        raise DataError(f"{output}: cannot be written; choose another --output")
    if others:
        raise ConfigError(f"{others[0]}: is not of an earlier demo, and would be replaced; choose another --output")
    with options.progress_bars("fetching the backbone", "segmenting 12 classes") as (fetching, segmenting):
        segmenter = networks.open_segmenter(model, device, "auto", fetching)
        shown = show(segmenter, segmenting)
    options.print_table(table(shown))
    write_page(page, shown, segmenter.name)
    write_image(sheet, draw_sheet(shown, "A few labelled (red), the rest segmented (green)", "", across=6))
    print(f"\nlook at {page}")
