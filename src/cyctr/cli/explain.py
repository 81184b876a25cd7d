"""`cyctr explain`: why a pixel was marked, in one picture."""

from pathlib import Path
from typing import Annotated

import typer

from cyctr.cli import networks, options
from cyctr.errors import ConfigError, DataError

EXAMPLES = ("cyctr explain --support cups --query photos/table.jpg --output why.png",)


def explain(
    support: Annotated[
        Path, typer.Option("--support", help="Folder of one to five labelled images, or a file of `cyctr support save`.")
    ],
    query: Annotated[Path, typer.Option("--query", help="An image.")],
    output: Annotated[Path, typer.Option("--output", help="A .png, .jpg or .html.")],
    name: Annotated[str | None, typer.Option("--class", help="Which class, where the support shows several.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="x,y in pixels of the query: the place whose attention is shown; default: the likeliest."),
    ] = None,
    votes: Annotated[
        float | None, typer.Option("--votes", help="Weight of plain matching, 0 to 1, as of segment; default: 0.5.")
    ] = None,
    edges: Annotated[bool, typer.Option("--edges/--no-edges", help="Let the answer follow the edges, as of segment.")] = True,
    model: networks.Model = None,
    method: networks.Untrained = None,
    weights: networks.Weights = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUTPUT.")] = False,
) -> None:
    """Show how an answer came about: network and votes, prior map, cycle consistency, attention, in one picture or page.

    The answer is that of segment, for the whole image at threshold 0.5: the mean of network and matching, along its edges.

    The cycle, the attention and the prior map are the network's.

    Red tokens of the support are foreground whose match in the query comes back to foreground, blue ones background likewise.

    Grey ones are lost on the way and not attended to.
    """
    from cyctr.inference import read_supports
    from cyctr.inference.explanation import explain as explained
    from cyctr.inference.segment_options import SegmentOptions

    if output.suffix.lower() not in (".png", ".jpg", ".jpeg", ".html"):
        raise ConfigError(f"--output is {output}; expected a name that ends in .png, .jpg or .html")
    for path in (support, query):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; check the path")
        if output.exists() and output.samefile(path):
            raise ConfigError(f"--output is {output}, which is to be read; choose another name")
    options.refuse_labelled(output, support)
    if output.exists() and not force:
        raise ConfigError(f"{output}: is there already; replace it with --force, or choose another --output")
    SegmentOptions(votes=votes)  # checked
    place = None if at is None else options.place("--at", at)
    labelled = read_supports(support, classes=None if name is None else [name])
    if len(labelled.classes) > 1:
        raise ConfigError(f"{support}: shows {', '.join(labelled.classes)}; choose one with --class")
    with options.progress_bar("fetching the backbone") as progress:
        segmenter = networks.open_segmenter(model, device, "auto", progress, method, weights)
    (chosen,) = networks.encode_supports(segmenter, labelled).values()
    found = explained(segmenter, query, chosen, place, votes, edges)
    found.save(output)
    print(f"{found.title}\n{output}")
