"""`cyctr studio`: label, segment, review, correct and export in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli import options
from cyctr.errors import ConfigError

EXAMPLES = ("cyctr studio photos", "cyctr studio photos --project work/cups", "cyctr studio")


def studio(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Photos, or a project; default: studio-photos, samples.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        Path | None, typer.Option("--project", help="Folder of the project; default: cyctr-studio in FOLDER.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="lite0, resnet50, or the path of a checkpoint.")] = "lite0",
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others can be reached from outside.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Label, segment, review, correct and export photos on a page in the browser.

    The server listens on this machine only, and nothing leaves it. FOLDER is written to in one place, the project's folder.

    A folder that was labelled elsewhere (masks, LabelMe, COCO) opens with its labels. Stop with Ctrl-C at any time.
    """
    try:
        from cyctr.studio.serving import serve
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed, which the page needs; run: pip install 'cyctr[studio]'") from error
    from cyctr.inference import Segmenter
    from cyctr.studio.samples import sample_photos

    if folder is None:
        folder = Path("studio-photos")
        sample_photos(folder)
    with options.progress_bar("fetching the backbone") as progress:

        def open_segmenter() -> Segmenter:
            return Segmenter.from_pretrained(model, device=device, progress=progress)

        serve(folder, project, open_segmenter, host=host, port=port, browser=browser, say=_say)


def _say(text: str) -> None:
    print(text, flush=True)
