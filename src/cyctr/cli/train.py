"""`cyctr train`: a dataset and a recipe -> a network, and how it got there."""

import inspect
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli import options
from cyctr.errors import ConfigError
from cyctr.methods.recipes import recipes_of
from cyctr.methods.table import METHODS, USUAL
from cyctr.storage import alone
from cyctr.words import counted, listed

if TYPE_CHECKING:
    from cyctr.config import Recipe
    from cyctr.datasets.dataset import Dataset
    from cyctr.training.distributed import World
    from cyctr.training.loop import Trainer
    from cyctr.training.run_folder import RunFolder

EXAMPLES = (
    "cyctr train --data VOC2012 --fold 0 --output runs/fold0",
    "cyctr train --data kitchen --fold all --output runs/kitchen",
    "cyctr train --data VOC2012 --fold 0 --output runs/fold0 --resume",
)
LISTS = {
    "How it runs": ("device", "precision", "compiled", "resident", "workers", "accumulate", "deterministic"),
    "What is kept and measured": (
        "max_minutes",
        "save_minutes",
        "keep_every",
        "validate_every",
        "validation_episodes",
        "tensorboard",
    ),
}

_SWITCH = {"auto": None, "yes": True, "no": False}
_OF_THE_RUN = "with --resume the run's own"
_WEIGHTS = "resnet50-keras"  # where the preset names none


def _train(
    dataset: "partial[Dataset]",
    changes: Mapping[str, str],
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, metrics and curves; made if it is not there.")],
    fold: Annotated[
        str | None,
        typer.Option(
            help="Which class split to learn from; 'all' learns from every class and image.",
            show_default="0 where the dataset has test classes, else all",
        ),
    ] = None,
    preset: str | None = None,  # its help depends on the method: see `command`
    method: Annotated[
        str | None,
        typer.Option(
            help=f"What is trained: {', '.join(METHODS)}, or package.module:Class of your own.",
            show_default=f"{USUAL}; {_OF_THE_RUN}",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Backbone: a name of `cyctr weights list`, or 'tiny'.", show_default=f"the preset's, or {_WEIGHTS}"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(help="auto, float32 or bfloat16; auto is bfloat16 on a GPU.", show_default=f"auto; {_OF_THE_RUN}"),
    ] = None,
    compiled: Annotated[str, typer.Option("--compile", help="auto, yes or no: auto compiles long runs on a GPU.")] = "auto",
    resident: Annotated[
        str, typer.Option(help="auto, yes or no: keep all decoded images on the device; auto does where they fit.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that read images where they are not kept.", show_default="one per core")
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(min=1, help="Compute a step in this many parts, to take less memory.", show_default=f"1; {_OF_THE_RUN}"),
    ] = None,
    deterministic: Annotated[
        bool | None, typer.Option(help="The same bits on a GPU too; slower.", show_default=f"no; {_OF_THE_RUN}")
    ] = None,
    max_minutes: Annotated[
        float,
        typer.Option(min=0, help="End after so long, with a checkpoint and a validation; reading the data does not count."),
    ] = math.inf,
    save_minutes: Annotated[float, typer.Option(min=0, help="How often the state for --resume is kept.")] = 2.0,
    keep_every: Annotated[
        int | None,
        typer.Option(
            min=0, help="Keep a checkpoint for good after every so many episodes; 0: none.", show_default=f"0; {_OF_THE_RUN}"
        ),
    ] = None,
    validate_every: Annotated[
        int | None,
        typer.Option(
            min=0, help="Episodes between validations; 0: at the end.", show_default=f"a tenth of the schedule; {_OF_THE_RUN}"
        ),
    ] = None,
    validation_episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes of each validation.", show_default=f"200; {_OF_THE_RUN}")
    ] = None,
    tensorboard: Annotated[bool, typer.Option(help="Also write events for TensorBoard, where it is installed.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUTPUT, with its settings.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in OUTPUT.")] = False,
) -> None:
    """Train a network on PASCAL-5^i, COCO-20^i, FSS-1000 or a folder of your own.

    Stop it with Ctrl-C, or any other way, at any time: --resume goes on to the same network.

    On several GPUs: torchrun --nproc-per-node 4 -m cyctr train ...
    """
    from cyctr.devices import choose_device
    from cyctr.training.distributed import join
    from cyctr.training.loop import Trainer
    from cyctr.training.plan import plan_run
    from cyctr.training.run import prepare
    from cyctr.training.run_folder import RunFolder

    if resume and force:
        raise ConfigError("--resume goes on with the run in OUTPUT, and --force replaces it; give one of them")
    folder = RunFolder(output)
    chosen = choose_device(device)
    halves = {"auto": chosen.type == "cuda", "bfloat16": True, "float32": False}
    given = {
        "half": None if precision is None else _choice("--precision", precision, halves),
        "compile": _choice("--compile", compiled),
        "resident": _choice("--resident", resident),
        "workers": workers,
        "accumulate": accumulate,
        "deterministic": deterministic,
        "save_minutes": save_minutes,
        "max_minutes": max_minutes,
        "keep_every": keep_every,
        "validate_every": validate_every,
        "validation_episodes": validation_episodes,
        "tensorboard": tensorboard,
    }
    given = {name: value for name, value in given.items() if value is not None}
    with ExitStack() as stack:
        world = stack.enter_context(join(chosen.type))  # before anything is read: the first reads the run's folder for all
        opened, keeps = _open(dataset, fold)
        resumed = folder if resume else None
        name = method or USUAL if resumed is None else world.share(partial(resumed.method, method))
        config = _config(name, preset, weights, changes, resumed, world, opened.name)
        usual = {"validate_every": None}
        plan = plan_run(config, opened, folder, chosen, given, usual, fold, keeps, world, resume, force, name)
        if world.leads:
            stack.enter_context(alone(output / ".run.lock", output))
        with options.progress_bars("reading the data", "looking for latent classes") as (progress, mining):
            trainer = Trainer(prepare(plan, progress, mining))
        trainer.begin()
        if world.leads:
            _introduce(trainer, resume)
        with _signals(folder if world.leads else None) as asked:
            outcome = _run(trainer, asked)
    if world.leads:
        _conclude(trainer, outcome, dataset)
    if outcome == "stopped":
        raise typer.Exit(128 + (asked[0] if asked else signal.SIGINT))


def command(method: str = USUAL) -> Callable[..., None]:
    """`cyctr train` with the settings of a method as options."""
    recipes = recipes_of(method)
    preset = typer.Option(
        help=f"The recipe that --model.*, --optimizer.* ... change: {', '.join(recipes.presets)}.",
        show_default=f"{recipes.usual}; {_OF_THE_RUN}",
        metavar="TEXT",
    )
    made = options.takes_config(method)(options.takes_data()(_train))
    parameters = [
        one.replace(annotation=Annotated[str | None, preset]) if name == "preset" else one
        for name, one in inspect.signature(made).parameters.items()
    ]
    return options.signed(made, parameters)


train = command()


def _config(
    method: str,
    preset: str | None,
    weights: str | None,
    changes: Mapping[str, str],
    resumed: "RunFolder | None",
    world: "World",
    dataset: str,
) -> "Recipe":
    """What the options ask for; they change a preset for the dataset, or the settings of the run that is resumed."""
    from cyctr.config import parse
    from cyctr.methods.backbone_choice import with_weights

    recipes = recipes_of(method)
    if resumed is not None and preset is None:
        base = world.share(resumed.settings)
    else:
        base = recipes.preset(preset, dataset)
        if weights is None and base.model.backbone.weights is None and "model.backbone.weights" not in changes:
            weights = _WEIGHTS
    if weights is not None:
        base = with_weights(base, weights)
    return parse(recipes.kind, base, changes)


def _choice(option: str, text: str, choices: Mapping[str, Any] = _SWITCH) -> Any:
    if text not in choices:
        raise ConfigError(f"{option} is {text!r}; expected {', '.join(choices)}")
    return choices[text]


def _open(dataset: "partial[Dataset]", fold: str | None) -> tuple["Dataset", bool]:
    """The dataset, and whether options keep classes of it for the test."""
    from cyctr.datasets.joined import ALL

    opened = dataset()
    named = next((name for name in ("test_classes", "class_folds") if dataset.keywords[name] is not None), None)
    if fold == ALL and named:
        option = named.replace("_", "-")
        raise ConfigError(f"--fold all learns from every class, but --{option} keeps some for the test; leave one of them out")
    return opened, named is not None


def _introduce(trainer: "Trainer", resume: bool) -> None:
    training, sides = trainer.config.training, trainer.dataset.fold(trainer.fold)
    where = "on the device" if trainer.resident else "read as they are needed"
    print(
        f"{trainer.dataset.name}, fold {trainer.fold}: {counted(len(sides.train), 'class')} to learn from, "
        f"{counted(len(trainer.episodes.sampler.images), 'image')}, {where}"
    )
    watched = trainer.validation.split if trainer.validation is not None else None
    said = {
        "validation": f"validated on {counted(len(sides.validation), 'held-out training class')}",
        "test": "watched on the test classes, which choose nothing: the last checkpoint is the result",
        None: "not validated: no class is held out; --training.hold-out N holds out some",
    }[watched]
    episodes = training.steps * training.batch  # in whole steps
    print(f"{counted(episodes, 'episode')}, {training.batch} a step, on {trainer.device}; {said}")
    if trainer.finished:
        print("all episodes are done: nothing is left to resume, and nothing changes")
    elif trainer.step:
        print(f"going on after {counted(trainer.step * training.batch, 'episode')}")
        if trainer.changed:
            print(f"note: until now {'; '.join(trainer.changed)}: the network will be another than without that change")
    elif resume:
        print("nothing was saved before the run ended: it begins again")
    sys.stdout.flush()  # before the first line of the other stream


def _run(trainer: "Trainer", asked: Sequence[int]) -> str:
    """Trains until it is done, or asked to stop."""
    from cyctr.cli.watch import Watch

    watch = Watch(trainer)
    with watch.bar:
        return trainer.run(watch.on_record, lambda: bool(asked), watch.on_step)


def _conclude(trainer: "Trainer", outcome: str, dataset: "partial[Dataset]") -> None:
    batch, folder = trainer.config.training.batch, trainer.folder.path
    done = trainer.step * batch
    if outcome != "finished":
        why = "stopped" if outcome == "stopped" else "time is up"
        print(f"{why} after {done:,} of {counted(trainer.config.training.steps * batch, 'episode')}; go on with --resume")
    from cyctr.training.network import recognises

    unready = " (recognises no training class before the run has ended)"
    print(f"network: {folder / 'last.safetensors'}{unready * (outcome == 'stopped' and recognises(trainer.model))}")
    if trainer.best >= 0:
        names = trainer.parts.data["validation"]
        held_out = counted(len(names), "held-out class")
        print(f"best: {folder / 'best.safetensors'}, mIoU {100 * trainer.best:.1f} on {held_out} ({listed(names)})")
    if (folder / "curves.png").exists():
        print(f"curves: {folder / 'curves.png'}")
    if trainer.parts.data["test"] and "test" in trainer.dataset.pools and outcome == "finished":
        print(f"measure it: {_measure(trainer, dataset)}")


def _measure(trainer: "Trainer", dataset: "partial[Dataset]") -> str:
    """The command that tests the network on the classes it has not learned from."""
    folder, shots = trainer.folder.path, trainer.config.training.shots
    what = ["--folds", str(trainer.fold), "--shots", str(shots), "--method", str(folder / "last.safetensors")]
    return shlex.join(["cyctr", "evaluate", *options.data_arguments(dataset), *what, "--output", str(folder / "test")])


@contextmanager
def _signals(folder: "RunFolder | None") -> Iterator[list[int]]:
    """A list that Ctrl-C and SIGTERM add to; the second of them ends the process at once.

    Args:
        folder: of the run, in the process that speaks for all.
    """
    asked: list[int] = []

    def note(number: int, _: object) -> None:
        if asked:
            if folder is not None:
                left = "--resume goes on from what was saved before" if folder.saved else "nothing was saved yet"
                print(f"stopped at once; {left}", file=sys.stderr)
            sys.exit(128 + number)
        asked.append(number)
        if folder is not None:
            print("stopping after this step, and saving ... (once more stops at once, and does not save)", file=sys.stderr)

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
