"""Options that several commands share, and how their text becomes values."""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.cli.command import Further
from cyctr.errors import ConfigError

if TYPE_CHECKING:
    from cyctr.datasets.dataset import Dataset, OnProgress

_PANEL = "Data"
_MOST = 1000  # numbers in one option
_TELL_SECONDS = 10  # between lines, where there is no terminal for a bar


def open_data(
    data: Annotated[str, typer.Option("--data", help="The dataset's folder, or 'synthetic'.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="'auto' looks at the layout; or pascal, coco, fss, folder, synthetic.", rich_help_panel=_PANEL
        ),
    ] = "auto",
    year: Annotated[
        int | None, typer.Option("--year", help="COCO: 2014 or 2017, where both are there.", rich_help_panel=_PANEL)
    ] = None,
    coco_split: Annotated[
        str,
        typer.Option("--coco-split", help="COCO: 'interleaved' (the usual) or 'contiguous' classes.", rich_help_panel=_PANEL),
    ] = "interleaved",
    test_classes: Annotated[
        str | None,
        typer.Option("--test-classes", help="Own folder: names of the classes to test, as cup,plate.", rich_help_panel=_PANEL),
    ] = None,
    class_folds: Annotated[
        int | None,
        typer.Option(
            "--class-folds", help="Own folder: split the classes into this many folds by chance.", rich_help_panel=_PANEL
        ),
    ] = None,
    split_seed: Annotated[
        int, typer.Option("--split-seed", help="Own folder: the chance of --class-folds.", rich_help_panel=_PANEL)
    ] = 0,
) -> "Dataset":
    """The dataset that these options name."""
    from cyctr.datasets.opening import open_dataset

    names = None if test_classes is None else [name.strip() for name in test_classes.split(",") if name.strip()]
    return open_dataset(
        Path(data), kind, year=year, coco_split=coco_split, test_classes=names, folds=class_folds, split_seed=split_seed
    )


def takes_data(positional: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of `open_data` in place of its parameter `dataset`, a function that opens the dataset.

    Args:
        positional: the folder is an argument, not the option --data.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = dict(inspect.signature(open_data).parameters)
        first = shared["data"]
        if positional:
            argument = typer.Argument(metavar="DATA", help="The dataset's folder, or 'synthetic'.")
            first = first.replace(annotation=Annotated[str, argument])
        own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "dataset"]
        rest = [parameter for name, parameter in shared.items() if name != "data"]

        @wraps(command)
        def run(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in shared}
            command(dataset=partial(open_data, **chosen), **given)

        return signed(run, [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (first, *own, *rest)])

    return decorate


def data_arguments(dataset: "partial[Dataset]") -> list[str]:
    """The options of `open_data` as a command was given them, for another command."""
    usual = inspect.signature(open_data).parameters
    given = {name: value for name, value in dataset.keywords.items() if value != usual[name].default}
    return [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def takes_fields(
    kind: type,
    into: str,
    *,
    only: Sequence[str] = (),
    panels: Callable[[str], str | None] = lambda name: None,
    usual: Callable[[str], str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each field of a config class in place of a parameter.

    The parameter gets the texts of those that were given, by dotted name, as `config.parse` reads them.

    Args:
        kind: of config.
        into: the name of the parameter.
        only: the fields to take; by default all.
        panels: the title of the list in which a field stands in the help; see `command.Further`.
        usual: what the help says of the default of a field, where that is not the field's own; such a field takes a word
            after it even where it is true or false, since no flag could show the default.
    """
    from cyctr.config import choices, settings, shown

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names, made = {}, []
        for place, (name, default, help) in enumerate(settings(kind)):
            if only and name not in only:
                continue
            dashed, values = f"--{name.replace('_', '-')}", choices(kind, name)
            given: dict[str, Any] = {"rich_help_panel": panels(name), "help": help, "show_default": False}
            option = typer.Option(dashed, metavar="|".join(values) or "X", **given)
            typed: Any = str | None
            if usual is not None:
                option.help = f"{help} [{usual(name)}]"
            elif values == ("true", "false"):
                option, typed = (
                    typer.Option(f"{dashed}/--no-{name.replace('_', '-')}" if default else dashed, **given),
                    bool | None,
                )
                option.show_default = "on" if default else False
            elif default is not None:
                option.show_default = shown(default)
            names[f"{into}_{place}"] = name
            parameter = inspect.Parameter(f"{into}_{place}", inspect.Parameter.KEYWORD_ONLY, default=None)
            made.append(parameter.replace(annotation=Annotated[typed, option]))

        @wraps(command)
        def run(**given: Any) -> None:
            texts = {name: value for key, name in names.items() if (value := given.pop(key)) is not None}
            command(**{into: {name: shown(value) for name, value in texts.items()}}, **given)

        own = inspect.signature(command).parameters
        rest = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in own.items() if name != into]
        return signed(run, [*rest, *made])

    return decorate


def takes_config(method: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each setting of a method in place of its parameter `changes`, those that were given."""
    from cyctr.config import shown, value_at
    from cyctr.methods.recipes import recipes_of

    recipes = recipes_of(method)

    def usual(name: str) -> str:
        """The value that all presets have, or that of each."""
        values = {preset: shown(value_at(config, name)) for preset, config in recipes.presets.items()}
        if len(set(values.values())) == 1:
            return f"default: {next(iter(values.values()))}"
        return ", ".join(f"{preset}: {value}" for preset, value in values.items())

    def panel(name: str) -> str:
        return Further(f"Settings of {name.rpartition('.')[0]}")

    return takes_fields(recipes.kind, "changes", panels=panel, usual=usual)


def signed(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """The command, which Typer takes to have these parameters."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def with_dashes(name: str) -> str:
    """The name of an option as it is declared, however its user spells it."""
    return name.replace("_", "-")


def numbers(option: str, text: str, lowest: int = 0) -> list[int]:
    """The numbers of a text such as `1,5` or `0-3`."""
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ConfigError(f"{option} is {text!r}; expected numbers such as 0,1,2 or 0-3")
        if len(first + last) > 9 or int(last or first) - int(first) > _MOST:
            raise ConfigError(f"{option} is {text!r}; expected at most {_MOST} numbers")
        found += range(int(first), int(last or first) + 1)
    if not found or min(found) < lowest or len(set(found)) != len(found):
        raise ConfigError(f"{option} is {text!r}; expected different numbers from {lowest} on, such as 1,5")
    return found


def refuse_to_replace(*paths: Path, allowed: bool) -> None:
    """Raises ConfigError for a file that is there already."""
    found = next((path for path in paths if path.exists()), None)
    if found is not None and not allowed:
        raise ConfigError(f"{found}: is there already; go on with --resume, replace it with --force, or choose --output")


def refuse_labelled(output: Path, support: Path) -> None:
    """Raises ConfigError for a file among labelled images that may be one of them, or a label: it is never replaced."""
    from cyctr.images.imaging import EXTENSIONS

    if output.suffix.lower() not in (*EXTENSIONS, ".json", ".txt") or not (output.is_file() and support.is_dir()):
        return
    if Path(os.path.realpath(output)).is_relative_to(os.path.realpath(support)):
        raise ConfigError(f"--output is {output}, a file among the labelled images; choose another name")


def print_table(rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Prints rows, the first of them headings, the first columns flush left. Nothing is cut, however narrow the screen."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))  # a name may look like rich's markup
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)


@contextmanager
def tells_of_a_stop() -> Iterator[None]:
    """Says that nothing was done yet where Ctrl-C comes before there is anything to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        print("stopped before the first image: the same command begins again")
        raise typer.Exit(130) from None


@contextmanager
def progress_bar(name: str) -> Iterator["OnProgress"]:
    """A bar that is gone when the work is done; a line now and then where there is no terminal to draw one on."""
    with progress_bars(name) as (progress,):
        yield progress


@contextmanager
def progress_bars(*names: str) -> Iterator[tuple["OnProgress", ...]]:
    """Likewise for several works, each bar from when its work begins."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")  # of several processes the first speaks
    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def make(name: str) -> Callable[[int, int], None]:
        task, told = bar.add_task(name, total=None, visible=False), time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal told
            bar.update(task, completed=done, total=total, visible=True)
            if not console.is_terminal and (now := time.monotonic()) - told > _TELL_SECONDS:
                told = now
                console.print(f"{name}: {done:,} of {total:,}", highlight=False, soft_wrap=True)

        return progress

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield tuple(map(make, names))


def floats(option: str, text: str) -> list[float]:
    """The numbers of a text such as `0.75,1`."""
    try:
        return [float(piece) for piece in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} is {text!r}; expected numbers such as 0.75,1,1.25") from error


def names(option: str, text: str) -> list[str]:
    """The names of a text such as `cup,plate`."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ConfigError(f"{option} is {text!r}; expected names such as cup,plate")
    return found


def place(option: str, text: str) -> tuple[int, int]:
    """The two numbers of a text such as `120,45`."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() and len(part.strip()) < 10 for part in parts):
        raise ConfigError(f"{option} is {text!r}; expected x,y in pixels, such as 120,45")
    return int(parts[0]), int(parts[1])
