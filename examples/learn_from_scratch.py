"""`cyctr demo`: the whole idea in a minute, without a download."""

import os
from pathlib import Path
from typing import Annotated

import typer

_EPISODES = 96  # of classes never seen, to score
_SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)  # where in their ranking the pictures are taken


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the pictures; made if it is not there.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of 8 episodes.")] = 240,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Another seed, another network.")] = 0,
) -> None:
    """Train a small network on synthetic classes, then segment classes it has never seen.

    Writes OUTPUT/episodes.png: support, query, prior map, cycle consistency and prediction of held-out classes.
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from cyctr.engine import demonstration
    from cyctr.engine.fit import overlaps, score
    from cyctr.errors import CyctrError
    from cyctr.evaluation.metrics import Counts
    from cyctr.losses import Losses
    from cyctr.visual.episode import episode_sheet

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CyctrError(f"{output}: cannot be made ({error.strerror}); choose another --output") from error
    path = output / "episodes.png"
    if path.is_dir() or not os.access(output, os.W_OK):
        raise CyctrError(f"{path}: cannot be written; choose another --output")
    model = demonstration.untrained(seed)
    before = score(model, demonstration.NOVEL, count=_EPISODES)

    console = Console(stderr=True)
    columns = (
        TextColumn("training on 400 classes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, loss="")

        def on_step(step: int, losses: Losses) -> None:
            progress.update(task, completed=step + 1, loss=f"Dice loss {losses.main.item():.3f}")

        demonstration.train(model, steps, seed, on_step)
    found = overlaps(model, demonstration.NOVEL, count=_EPISODES)
    after = sum(found, start=Counts())

    ranked = sorted(range(_EPISODES), key=lambda i: found[i].iou, reverse=True)
    shown = [ranked[int(place * _EPISODES)] for place in _SHOWN]
    episode = demonstration.NOVEL.pick(shown)
    with torch.inference_mode():
        prediction = model(episode, explain=True)
    captions = [f"IoU {found[i].iou:.2f}, rank {ranked.index(i) + 1} of {_EPISODES}" for i in shown]
    title = "Classes the network has never seen, one labelled image each, from good to bad"
    try:
        episode_sheet(episode, prediction, title, captions).save(path)
    except OSError as error:
        raise CyctrError(f"{path}: cannot be written ({error.strerror}); choose another --output") from error
    print(f"IoU on {_EPISODES} episodes of 100 held-out classes: {before.iou:.3f} untrained, {after.iou:.3f} trained")
    print(f"pictures: {path}")
