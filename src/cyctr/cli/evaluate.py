"""`cyctr evaluate`: a method on a benchmark, as numbers, tables and pictures."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli import options
from cyctr.errors import ConfigError

if TYPE_CHECKING:
    from cyctr.evaluation.results import Results

_SAVE_SECONDS = 20


def evaluate(
    data: options.Data,
    method: Annotated[
        str, typer.Option(help="A checkpoint's path, or a reference: prior, prototype, background, foreground.")
    ] = "prototype",
    output: Annotated[Path, typer.Option(help="Folder for results.json, results.md and index.html.")] = Path("evaluation"),
    protocol: Annotated[str, typer.Option(help="cyctr, pfenet or hsnet: how episodes are drawn and scored.")] = "cyctr",
    folds: Annotated[str | None, typer.Option(help="Such as 0,2 or 0-3; default: all.")] = None,
    shots: Annotated[str, typer.Option(help="Labelled images per episode, such as 1,5.")] = "1",
    seeds: Annotated[str | None, typer.Option(help="Such as 0-4, to average; default: the protocol's.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="For each fold and seed; default: the protocol's.")] = None,
    split: Annotated[str, typer.Option(help="test, or train and validation to choose settings on.")] = "test",
    order: Annotated[str | None, typer.Option(help="images, pairs, classes (balanced) or shuffled.")] = None,
    smallest: Annotated[int | None, typer.Option(min=1, help="Least pixels of the class in an image.")] = None,
    drop_novel: Annotated[bool, typer.Option("--drop-novel", help="Training lists without images of test classes.")] = False,
    weights: Annotated[
        str, typer.Option(help="Backbone of the references: a name of `cyctr weights list`.")
    ] = "resnet50-keras",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.")] = "auto",
    batch: Annotated[int | None, typer.Option(min=1, help="Episodes at a time; default: 16 on a GPU, 1 on a CPU.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads that read images; default: one per core.")] = None,
    part: Annotated[str, typer.Option(help="2/4: the second of four processes; join them with `cyctr merge`.")] = "1/1",
    pictures: Annotated[int, typer.Option(min=0, help="Episodes shown as best, as median and as worst.")] = 4,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in OUTPUT.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in OUTPUT.")] = False,
    kind: options.Kind = "auto",
    year: options.Year = None,
    coco_split: options.CocoSplit = "interleaved",
    test_classes: options.TestClasses = None,
    class_folds: options.ClassFolds = None,
    split_seed: options.SplitSeed = 0,
) -> None:
    """Measure a method on a dataset: mIoU and FB-IoU as the literature defines them.

    Interrupt with Ctrl-C at any time; --resume goes on where it stopped.
    """
    import os

    from cyctr.engine.evaluate import draw_pictures, prepare
    from cyctr.evaluation.results import Results, markdown, write_text

    path = output / "results.json"
    if path.exists() and not (resume or force):  # first: reading a large dataset can take minutes
        raise ConfigError(f"{path}: is there already; go on with --resume, replace it with --force, or choose --output")
    fold_numbers = None if folds is None else options.numbers("--folds", folds)
    dataset = options.open_data(data, kind, year, coco_split, test_classes, class_folds, split_seed)
    with options.index_progress() as progress:
        job = prepare(
            dataset,
            protocol=_protocol(protocol, order, smallest, drop_novel, seeds),
            split=split,
            folds=fold_numbers,
            shots=options.numbers("--shots", shots, lowest=1),
            episodes=episodes,
            part=_part(part),
            progress=progress,
        )
    answer, results = job.open(method, weights, device, precision)
    if resume and path.exists():
        results = job.resumed(Results.load(path), results.settings)
    results.save(path)  # says at once when it cannot be written
    stopped = _run(
        job, answer, results, path, batch or (16 if job.device.type == "cuda" else 1), workers or os.cpu_count() or 2
    )
    _show(results)
    if stopped:
        done = sum(len(run.rows) for run in results.runs.values())
        print(f"\nstopped after {done:,} episodes, which are in {path}; go on with --resume")
        raise typer.Exit(130)
    write_text(output / "results.md", markdown(results))
    print(f"\nresults: {path}, {output / 'results.md'}")
    if pictures and not job.part[0]:
        draw_pictures(job, answer, results, output / "index.html", pictures)
        print(f"pictures: {output / 'index.html'}")


def _run(job: Any, answer: Any, results: "Results", path: Path, batch: int, workers: int) -> bool:
    """Runs what is missing behind a bar; whether it was interrupted."""
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
    stopped, began, saved = False, time.monotonic(), time.monotonic()
    total, before = job.counts(results)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=before, speed="")
        new = 0

        def on_batch(setting: Any, run: Any, added: int) -> None:
            nonlocal saved, new
            new += added
            speed = f"{new / (time.monotonic() - began):.1f} episodes/s"
            bar.update(task, advance=added, speed=speed, description=f"fold {setting.fold}, {setting.shots}-shot")
            if time.monotonic() - saved > _SAVE_SECONDS:
                results.save(path)
                saved = time.monotonic()

        try:
            job.run(answer, results, batch, workers, on_batch)
        except KeyboardInterrupt:
            stopped = True
        finally:  # whatever happened, what was measured is kept
            seconds = time.monotonic() - began
            results.notes["seconds"] = round(results.notes.get("seconds", 0) + seconds, 2)
            results.notes["episodes_per_second"] = round(new / seconds, 2) if new else None
            results.notes["batch"] = batch
            results.save(path)
    return stopped


def _show(results: "Results") -> None:
    from cyctr.evaluation.results import class_table, fold_table

    for rows in (fold_table(results), class_table(results)):
        options.print_table(rows)
        print()


def _protocol(name: str, order: str | None, smallest: int | None, drop_novel: bool, seeds: str | None) -> Any:
    from dataclasses import replace

    from cyctr import config

    changes: dict[str, Any] = {}
    if order is not None:
        changes["order"] = order
    if smallest is not None:
        changes["smallest"] = smallest
    if drop_novel:
        changes["drop_novel"] = True
    if seeds is not None:
        changes["seeds"] = tuple(options.numbers("--seeds", seeds))
    return replace(config.protocol(name), **changes)


def _part(text: str) -> tuple[int, int]:
    place, _, parts = text.partition("/")
    if not (place.isdecimal() and parts.isdecimal() and 1 <= int(place) <= int(parts)):
        raise ConfigError(f"--part is {text!r}; expected such as 1/4 for the first of four")
    return int(place) - 1, int(parts)


def merge(
    parts: Annotated[list[Path], typer.Argument(help="The results.json of each process, or their folders.")],
    output: Annotated[Path, typer.Option(help="Folder for the joined results.json and results.md.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the results in OUTPUT.")] = False,
) -> None:
    """Join the results of several `cyctr evaluate --part` processes."""
    from cyctr.evaluation.results import Results, markdown, write_text
    from cyctr.evaluation.results import merge as merge_results

    path = output / "results.json"
    if path.exists() and not force:
        raise ConfigError(f"{path}: is there already; replace it with --force, or choose another --output")
    whole = merge_results([Results.load(item / "results.json" if item.is_dir() else item) for item in parts])
    whole.save(path)
    write_text(output / "results.md", markdown(whole))
    _show(whole)
    unfinished = [setting for setting, run in whole.runs.items() if not run.finished]
    if unfinished:
        missing = sum(whole.runs[setting].wanted - len(whole.runs[setting].rows) for setting in unfinished)
        print(f"{missing:,} episodes are missing; is a part not there?")
    print(f"results: {path}, {output / 'results.md'}")
