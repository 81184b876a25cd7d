"""`cyctr segment`: label a few images, segment the rest."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli import networks, options
from cyctr.errors import ConfigError, DataError
from cyctr.storage import alone
from cyctr.words import counted, one_line

if TYPE_CHECKING:
    from cyctr.formats import Writer
    from cyctr.inference.folder.ledger import Ledger
    from cyctr.inference.folder.queries import QueryFile
    from cyctr.inference.segment_options import SegmentOptions
    from cyctr.inference.segmenter import Segmenter
    from cyctr.inference.supports.encoded import EncodedSupport

_SHOWN = 20  # problems on the screen
_MASKS, _TUNING = "Masks", "How images are looked at"
_LOCK = ".cyctr.lock"
_MASK_NAMES = ("masks", "_mask", "-mask", ".mask")

EXAMPLES = (
    "cyctr segment --support cups --query photos --output found",
    "cyctr segment --support kitchen --classes cup,plate --query photos --output found --format coco --review",
    "cyctr segment --support cups --query maps --output found --tile 600",
)


def segment(
    support: Annotated[
        list[Path],
        typer.Option(
            "--support",
            metavar="PATH",
            help="Folder of labelled images (docs/supports.md), or a file of `cyctr support save`; may be repeated.",
        ),
    ],
    query: Annotated[
        list[Path],
        typer.Option(
            "--query",
            metavar="PATH",
            help="Folder of images, with all below it, or images, such as photos/*.jpg; may be repeated.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", metavar="PATH", help="Folder for masks, overlays and predictions.json.")],
    more: Annotated[list[Path] | None, typer.Argument(metavar="PATH", hidden=True, help="More queries.")] = None,
    negative: Annotated[
        list[Path] | None,
        typer.Option("--negative", metavar="DIR", help="Folder of images that show none of the classes; may be repeated."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="Which of the labelled classes, such as cup,plate; default: all.")
    ] = None,
    model: networks.Model = None,
    method: networks.Untrained = None,
    weights: networks.Weights = None,
    form: Annotated[
        str, typer.Option("--format", help="png, coco, labelme, yolo or npz: docs/formats.md.", rich_help_panel=_MASKS)
    ] = "png",
    polygons: Annotated[
        bool, typer.Option("--polygons", help="COCO: outlines in place of run lengths.", rich_help_panel=_MASKS)
    ] = False,
    overlapping: Annotated[
        bool,
        typer.Option("--overlapping", help="Classes may share pixels; default: only the likeliest.", rich_help_panel=_MASKS),
    ] = False,
    instances: Annotated[
        bool,
        typer.Option(
            "--instances",
            help="COCO: each connected part is an object of its own, as it always is in LabelMe and YOLO.",
            rich_help_panel=_MASKS,
        ),
    ] = False,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Probability above which a pixel is of the class.", rich_help_panel=_MASKS)
    ] = 0.5,
    smallest: Annotated[int, typer.Option("--smallest", help="Drop regions of fewer pixels.", rich_help_panel=_MASKS)] = 0,
    fill_holes: Annotated[
        bool, typer.Option("--fill-holes", help="What a region encloses belongs to it.", rich_help_panel=_MASKS)
    ] = False,
    drop_absent: Annotated[
        bool | None,
        typer.Option(
            "--drop-absent/--keep-absent",
            help="Whether nothing is marked of a class that is probably not there; default: with lite0.",
            rich_help_panel=_MASKS,
        ),
    ] = None,
    overlays: Annotated[bool, typer.Option(help="A picture of each image with its masks.", rich_help_panel=_MASKS)] = True,
    review: Annotated[
        bool,
        typer.Option("--review", help="Thumbnails, the least certain first: OUTPUT/index.html.", rich_help_panel=_MASKS),
    ] = False,
    tile: Annotated[
        int | None,
        typer.Option(
            "--tile", help="Look at windows of so many pixels: for small things in large images.", rich_help_panel=_TUNING
        ),
    ] = None,
    overlap: Annotated[
        float, typer.Option("--overlap", help="Share of a window that the next one shows too.", rich_help_panel=_TUNING)
    ] = 0.25,
    flip: Annotated[
        bool, typer.Option("--flip", help="Also look at the mirror image: better, twice the time.", rich_help_panel=_TUNING)
    ] = False,
    scales: Annotated[
        str, typer.Option("--scales", help="Sizes to look at, such as 0.75,1,1.25: better, slower.", rich_help_panel=_TUNING)
    ] = "1",
    votes: Annotated[
        float | None,
        typer.Option("--votes", help="Weight of plain matching, 0 to 1; default: 0.5.", rich_help_panel=_TUNING),
    ] = None,
    edges: Annotated[
        bool,
        typer.Option("--edges/--no-edges", help="Let masks follow the edges of the image.", rich_help_panel=_TUNING),
    ] = True,
    zoom: Annotated[
        bool,
        typer.Option("--zoom/--no-zoom", help="Look again, closer, at what is small.", rich_help_panel=_TUNING),
    ] = True,
    refine: Annotated[
        str | None,
        typer.Option("--refine", help="sam: sharpen outlines with SAM 2; better, seconds an image.", rich_help_panel=_TUNING),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=_TUNING)] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            help="auto, float32 or bfloat16; auto is bfloat16 on a GPU and on a CPU that has it.",
            rich_help_panel=_TUNING,
        ),
    ] = "auto",
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Images at a time; default: by device.", rich_help_panel=_TUNING),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier run left in OUTPUT.")] = False,
) -> None:
    """Segment images by a few labelled ones: masks, overlays and predictions.json in OUTPUT.

    Interrupt it with Ctrl-C at any time: the same command goes on where it stopped, and does images that have come since.

    Images that cannot be read are left out and named at the end; the exit code is 1 then.
    """
    from cyctr.config import to_dict
    from cyctr.formats import FORMATS
    from cyctr.inference import read_supports
    from cyctr.inference.finishing import prepare_refiner
    from cyctr.inference.folder.ledger import OVERLAYS, PAGE, PREDICTIONS, REVIEW
    from cyctr.inference.folder.queries import find_queries
    from cyctr.inference.segment_options import SegmentOptions

    if form not in FORMATS:
        raise ConfigError(f"--format is {form!r}; expected one of {', '.join(FORMATS)}")
    how = SegmentOptions(
        threshold=threshold,
        tile=tile,
        overlap=overlap,
        flip=flip,
        scales=tuple(options.floats("--scales", scales)),
        smallest=smallest,
        fill_holes=fill_holes,
        votes=votes,
        drop_absent="auto" if drop_absent is None else drop_absent,
        edges=edges,
        zoom=zoom,
        refine=refine,
    )
    prepare_refiner(refine)
    wanted = None if classes is None else options.names("--classes", classes)
    query = [*query, *(more or [])]
    pictures = [OVERLAYS] * overlays + [REVIEW] * review
    with options.tells_of_a_stop():
        _check_places(support, query, output)
        found = read_supports(*support, classes=wanted)
        queries = find_queries(query, [output, *_own_files(support, query, found.files), *(negative or [])], _note)
    with alone(output / _LOCK, output):
        with options.tells_of_a_stop():
            with options.progress_bar("fetching the backbone") as progress:
                segmenter = networks.open_segmenter(model, device, precision, progress, method, weights)
            supports = networks.encode_supports(segmenter, found, tile, [one.path for one in queries], negative or [])
            masks = {"overlapping": overlapping, "instances": instances, "polygons": polygons}
            about = {
                "model": f"{segmenter.name} {segmenter.digest}",
                "precision": "bfloat16" if segmenter.network.half else "float32",
                "classes": list(supports),
                **{f"support of {name}": one.digest for name, one in supports.items()},
                "format": form,
                **masks,
                **to_dict(how),
            }
            ledger, writer = _open(output, about, form, list(supports), masks, force)
            ledger.claim([PREDICTIONS, *writer.shared, *([PAGE] if review else [])])
            queries = ledger.named(queries)
        problems = _run(segmenter, supports, queries, ledger, writer, how, overlapping, pictures, batch)
        writer.finish()
        if review:
            from cyctr.inference.folder.review import write_review

            write_review(output, ledger.records, list(supports))
        ledger.finish(problems)
    _tell(output, queries, ledger, problems, list(supports), review)
    if len(problems) == len(queries):
        raise DataError(f"none of {counted(len(queries), 'image')} could be segmented; mend them, or give others")
    if problems:
        raise typer.Exit(1)


def _note(problem: str) -> None:
    warnings.warn(problem, stacklevel=2)


def _open(
    output: Path, about: dict[str, Any], form: str, names: Sequence[str], masks: dict[str, bool], force: bool
) -> "tuple[Ledger, Writer]":
    """What goes on with an earlier run, or begins a new one."""
    from cyctr.formats import open_writer
    from cyctr.inference.folder.ledger import Ledger

    open_writer(form, output / ".none", names, **masks)  # a choice that it does not have shows before anything is removed
    ledger = Ledger.open(output, about, force, _note)
    return ledger, open_writer(form, output, names, **masks)


def _run(
    segmenter: "Segmenter",
    supports: "dict[str, EncodedSupport]",
    queries: "Sequence[QueryFile]",
    ledger: "Ledger",
    writer: "Writer",
    how: "SegmentOptions",
    overlapping: bool,
    pictures: Sequence[str],
    batch: int | None,
) -> dict[str, str]:
    """Segments what is not done yet; what stops it finds the rest as it was."""
    from cyctr.inference.folder.bulk import segment_folder

    todo = ledger.remaining(queries, writer, pictures, _note)
    done = len(queries) - len(todo)
    if done:
        print(f"{done:,} of {counted(len(queries), 'image')} done before")
    try:
        with options.progress_bar("segmenting") as progress:

            def on_image(_: "QueryFile", __: str | None) -> None:
                nonlocal done
                done += 1
                progress(done, len(queries))

            return segment_folder(
                segmenter,
                supports,
                todo,
                ledger,
                writer,
                overlapping=overlapping,
                pictures=pictures,
                batch=batch,
                on_image=on_image,
                options=how,
            )
    except (KeyboardInterrupt, DataError) as error:
        left = len(ledger.remaining(queries, writer, pictures))  # one may have been written, and not counted yet
        print(f"stopped; {counted(left, 'image')} left: the same command goes on")
        if isinstance(error, DataError):
            raise
        raise typer.Exit(130) from None


def _own_files(support: Sequence[Path], query: Sequence[Path], labelled: Sequence[Path]) -> list[Path]:
    """The files and folders that are no query: labelled files, folders of supports, and masks beside the queries."""
    found = list(labelled)
    for folder in support:
        if folder.is_dir() and any(_is_inside(path, folder) for path in query):
            found += [path for path in folder.rglob("*") if path.stem.lower().endswith(_MASK_NAMES)]  # unusable ones too
        else:
            found.append(folder)
    return found


def _is_inside(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _check_places(support: Sequence[Path], query: Sequence[Path], output: Path) -> None:
    """Raises for paths that are not there, and for results that would go among the images."""
    from cyctr.images.imaging import EXTENSIONS

    for name, paths in (("--support", support), ("--query", query)):
        for path in paths:
            if not path.exists():
                raise DataError(f"{name} {path}: no such file or folder; check the path")
            if name == "--support" and path.is_file() and path.suffix.lower() in EXTENSIONS:
                raise DataError(
                    f"--support {path}: is an image; give a folder of labelled images, or a file of `cyctr support save`"
                )
            if _is_inside(path, output):
                raise ConfigError(f"--output is {output}, where {name} {path} lies; choose another folder for the results")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output is {output}, a file; choose a folder for the results")


def _tell(
    output: Path, queries: "Sequence[QueryFile]", ledger: "Ledger", problems: dict[str, str], names: Sequence[str], review: bool
) -> None:
    """What was found and what was not, and where it is."""
    rows = [["class", "images with it", "without", "mean share"]]
    for name in names:
        found = [(ledger.records[q.key], ledger.records[q.key]["classes"][name]) for q in queries if q.key in ledger.records]
        present = [one["pixels"] / (record["height"] * record["width"]) for record, one in found if one["present"]]
        share = f"{100 * sum(present) / len(present):.1f} %" if present else "-"
        rows.append([name, f"{len(present):,}", f"{len(found) - len(present):,}", share])
    options.print_table(rows)
    for problem in list(problems.values())[:_SHOWN]:
        print(f"left out: {one_line(problem)}")
    if len(problems) > _SHOWN:
        print(f"left out: {len(problems) - _SHOWN:,} more, see {output / 'predictions.json'}")
    print(f"\nresults: {output}" + (f"; look at {output / 'index.html'}" if review else ""))
