"""`cyctr evaluate`: a method on a benchmark, as numbers, tables and pictures."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli import options
from cyctr.errors import ConfigError, DataError
from cyctr.storage import alone
from cyctr.words import counted, listed

if TYPE_CHECKING:
    from cyctr.datasets.dataset import Dataset
    from cyctr.evaluation.results import Results

_SAVE_SECONDS, _TELL_SECONDS = 20, 30
_OTHERS = ("results.md", "index.html")

EXAMPLES = (
    "cyctr evaluate --data VOC2012 --method lite0 --shots 1,5",
    "cyctr evaluate --data VOC2012 --method best.safetensors --folds 0",
    "cyctr evaluate --data VOC2012 --method prototype --protocol pfenet --seeds 0-4 --resume",
)
MERGE_EXAMPLES = ("cyctr merge evaluation", "cyctr merge results-1of2.json results-2of2.json --output whole")
LISTS = {
    "Episodes": ("folds", "seeds", "episodes", "split", "order", "smallest", "drop_novel"),
    "How images are looked at": ("weights", "size", "flip", "edges"),
    "How it runs": ("device", "precision", "batch", "workers", "part", "encode", "pictures"),
}


@options.takes_data()
def evaluate(
    dataset: "Callable[[], Dataset]",
    method: Annotated[
        str,
        typer.Option(help="A checkpoint's path, lite0, resnet50, or one of prior, prototype, background, foreground."),
    ] = "prototype",
    output: Annotated[Path, typer.Option(help="Folder for results.json, results.md and index.html.")] = Path("evaluation"),
    protocol: Annotated[
        str, typer.Option(help="cyctr, released, pfenet or hsnet: how episodes are drawn and scored.")
    ] = "cyctr",
    folds: Annotated[str | None, typer.Option(help="Such as 0,2 or 0-3; default: all.")] = None,
    shots: Annotated[str, typer.Option(help="Labelled images per episode, such as 1,5.")] = "1",
    seeds: Annotated[str | None, typer.Option(help="Such as 0-4, to average; default: the protocol's.")] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, max=10**7, help="For each fold and seed; default: the protocol's.")
    ] = None,
    split: Annotated[str, typer.Option(help="test, or train and validation to choose settings on.")] = "test",
    order: Annotated[str | None, typer.Option(help="images, pairs, classes (balanced) or shuffled.")] = None,
    smallest: Annotated[int | None, typer.Option(min=1, help="Least pixels of the class in an image.")] = None,
    drop_novel: Annotated[bool, typer.Option("--drop-novel", help="Training lists without images of test classes.")] = False,
    weights: Annotated[
        str, typer.Option(help="Backbone of the references: a name of `cyctr weights list`.")
    ] = "resnet50-keras",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.")] = "auto",
    batch: Annotated[int | None, typer.Option(min=1, help="Episodes at a time; default: 1 on a CPU, most 64 on a GPU.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that read images; default: one per core.")] = None,
    part: Annotated[str, typer.Option(help="2/4: the second of four processes; join them with `cyctr merge`.")] = "1/1",
    size: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="Height and width of what the network sees.",
            show_default="what the checkpoint learned from, else the protocol's; always the protocol's where it scores there",
        ),
    ] = None,
    flip: Annotated[bool, typer.Option("--flip", help="Average the answers to each episode and its mirror image.")] = False,
    edges: Annotated[bool, typer.Option("--edges", help="Let answers follow the edges of the query.")] = False,
    encode: Annotated[
        str, typer.Option(help="Features of an image: 'once', as far as memory goes, or 'always' in each episode.")
    ] = "once",
    pictures: Annotated[int, typer.Option(min=0, help="Episodes shown as best, as median and as worst.")] = 4,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in OUTPUT.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in OUTPUT.")] = False,
) -> None:
    """Measure a method on a dataset: mIoU and FB-IoU as the literature defines them.

    Interrupt with Ctrl-C at any time; --resume goes on where it stopped.
    """
    import os

    from cyctr import config
    from cyctr.devices import episodes_together
    from cyctr.evaluation.answering import check_method, input_size
    from cyctr.evaluation.results import Results, write_text
    from cyctr.evaluation.run import draw_pictures, prepare
    from cyctr.evaluation.tables import markdown

    if encode not in ("once", "always"):
        raise ConfigError(f"--encode is {encode!r}; expected once or always")
    place, parts = _part(part)
    path = output / ("results.json" if parts == 1 else f"results-{place + 1}of{parts}.json")
    options.refuse_to_replace(path, *((output / name for name in _OTHERS) if parts == 1 else ()), allowed=resume or force)
    check_method(method, weights, device, precision)
    config.protocol(protocol)  # refuses an unknown name before the data is opened
    changes = _changes(order, smallest, drop_novel, seeds)
    if size is None and config.protocol(protocol).score == "original":  # elsewhere the size is part of the score
        size = input_size(method)
    fold_numbers = None if folds is None else options.numbers("--folds", folds)
    opened = dataset()
    measure = replace(opened.protocol(protocol), **changes)
    if size is not None:
        measure = replace(measure, input=replace(measure.input, size=size))
    with options.progress_bar("reading masks") as progress:
        job = prepare(
            opened,
            protocol=measure,
            split=split,
            folds=fold_numbers,
            shots=options.numbers("--shots", shots, lowest=1),
            episodes=episodes,
            part=(place, parts),
            progress=progress,
        )
    answer, results = job.open(method, weights, device, precision, flip, edges)
    with alone(
        path.with_name(f".{path.name}.lock"), path, "wait for it, measure a part, or choose another folder", ("part", "output")
    ):
        if resume and path.exists():
            results = job.resumed(Results.load(path), results)
        if path.exists() and parts == 1:
            for name in _OTHERS:  # of the results that are about to change
                (output / name).unlink(missing_ok=True)
        results.save(path)  # says at once when it cannot be written
        together = batch or episodes_together(job.device, max(one.shots for one in job.run_keys))
        stopped = _run(job, answer, results, path, together, workers or os.cpu_count() or 2, encode == "once")
    _show(results)
    if stopped:
        done = sum(len(run.rows) for run in results.runs.values())
        print(f"\nstopped after {counted(done, 'episode')}, kept in {path}; go on with --resume")
        raise typer.Exit(130)
    if parts > 1:
        print(f"\nresults: {path}; when all {parts} parts are there: cyctr merge {output}")
        return
    write_text(output / "results.md", markdown(results))
    print(f"\nresults: {path}, {output / 'results.md'}")
    if pictures:
        with options.progress_bar("drawing pictures") as progress:
            draw_pictures(job, answer, results, output / "index.html", pictures, progress)
        print(f"pictures: {output / 'index.html'}")


def _run(job: Any, answer: Any, results: "Results", path: Path, batch: int, workers: int, remember: bool) -> bool:
    """Runs the missing episodes behind a bar; returns whether it was interrupted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    stopped, began, told = False, time.perf_counter(), time.perf_counter()
    due = began + _SAVE_SECONDS
    total, before = job.counts(results)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=before, speed="")
        new = 0

        def on_batch(setting: Any, run: Any, added: int) -> None:
            nonlocal due, new, told
            new += added
            speed = f"{new / (time.perf_counter() - began):.1f} episodes/s"
            bar.update(task, advance=added, speed=speed, description=f"fold {setting.fold}, {setting.shots}-shot")
            if not console.is_terminal and time.perf_counter() > told + _TELL_SECONDS:
                told = time.perf_counter()
                console.print(f"{before + new:,} of {counted(total, 'episode')}, {speed}", soft_wrap=True, highlight=False)
            if (now := time.perf_counter()) > due:
                _save_if_possible(results, path)
                due = time.perf_counter() + max(_SAVE_SECONDS, 20 * (time.perf_counter() - now))

        try:
            job.run(answer, results, batch, workers, on_batch, remember)
        except KeyboardInterrupt:
            stopped = True
        finally:  # whatever happened, what was measured is kept
            seconds = time.perf_counter() - began
            rate = round(new / seconds, 2) if new else None
            results.sessions[-1] |= {"batch": batch, "episodes": new, "seconds": round(seconds, 2), "episodes_per_second": rate}
            results.save(path)
    return stopped


def _save_if_possible(results: "Results", path: Path) -> None:
    """In the middle of a run a disk that is full for the moment costs nothing yet."""
    try:
        results.save(path)
    except DataError as error:
        warnings.warn(f"not saved for now: {error}", stacklevel=2)


def _show(results: "Results") -> None:
    from cyctr.evaluation.tables import class_table, fold_table, learned_classes

    for rows in (fold_table(results), class_table(results)):
        options.print_table(rows)
        print()
    for row in results.summary():
        if row["classes_met"] < row["classes_tested"]:
            print(
                f"note: {row['shots']}-shot met {row['classes_met']} of {row['classes_tested']} classes, and the means are "
                "over those; more --episodes, or --order classes, meet all"
            )
    if known := learned_classes(results):
        print(
            f"note: the network was trained on {len(known)} of the scored classes ({listed(known)}); scores on classes it has "
            "learned from say little about new ones"
        )


def _changes(order: str | None, smallest: int | None, drop_novel: bool, seeds: str | None) -> dict[str, Any]:
    """The fields of a protocol that the user chose."""
    changes: dict[str, Any] = {}
    if order is not None:
        changes["order"] = order
    if smallest is not None:
        changes["smallest"] = smallest
    if drop_novel:
        changes["drop_novel"] = True
    if seeds is not None:
        changes["seeds"] = tuple(options.numbers("--seeds", seeds))
    return changes


def _part(text: str) -> tuple[int, int]:
    place, _, parts = text.partition("/")
    numbers = place.isdecimal() and parts.isdecimal() and len(text) < 20
    if not (numbers and 1 <= int(place) <= int(parts)):
        raise ConfigError(f"--part is {text!r:.40}; expected such as 1/4 for the first of four")
    return int(place) - 1, int(parts)


def merge(
    parts: Annotated[
        list[Path], typer.Argument(help="What `cyctr evaluate --part` wrote: the folder of all parts, or each file.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder for results.json and results.md; default: that of the parts.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in OUTPUT.")] = False,
) -> None:
    """Join the results of several `cyctr evaluate --part` processes."""
    from cyctr.evaluation.results import Results, write_text
    from cyctr.evaluation.results import merge as merge_results
    from cyctr.evaluation.tables import markdown

    files = [file for part in parts for file in (_part_files(part) if part.is_dir() else [part])]
    output = output or files[0].parent
    path = output / "results.json"
    options.refuse_to_replace(path, output / "results.md", allowed=force)
    whole = merge_results([Results.load(file) for file in files])
    whole.save(path)
    write_text(output / "results.md", markdown(whole))
    _show(whole)
    missing = sum(max(0, run.wanted - len(run.rows)) for run in whole.runs.values())
    if missing:
        print(f"missing: {counted(missing, 'episode')}; is a part not there?")
    print(f"results: {path}, {output / 'results.md'}")


def _part_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("results-*of*.json")) or [folder / "results.json"]
