"""How commands join the command line, and how their help looks: the same for all."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

_ALL = "cyctr.help-all"
_KINDS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


class Further(str):
    """The title of a panel of options that `--help` leaves out and `--help-all` shows."""


class Command(TyperCommand):
    """A command with plain help: a list for each panel of options, names never cut, examples at the end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "rich_markup_mode": None})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes what the options are for, common ones first."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            panel = getattr(option, "rich_help_panel", None) or "Options"
            row = option.get_help_record(ctx)
            if row is not None and (ctx.meta.get(_ALL) or not isinstance(panel, Further)):
                panels.setdefault(panel, []).append((row[0].partition(" <")[0], row[1]))  # the type of an argument
        for name, rows in panels.items():
            with formatter.section(name):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes the examples, a line each."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Commands(TyperGroup):
    """All commands. Ctrl-C reaches `main` as an Abort, which it tells of; Typer would end without a word."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _abort_on_interrupt():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _abort_on_interrupt():
            return super().invoke(ctx)


@contextmanager
def _abort_on_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Abort from error


def group(help: str) -> typer.Typer:
    """A command of commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


def add(app: typer.Typer, name: str, command: Callable[..., None], examples: Sequence[str] = ()) -> None:
    """Adds a command.

    Args:
        app: where.
        name: on the command line.
        command: a function of Typer's parameters; those of other kinds than bool get a word for their value.
        examples: whole command lines, for the end of the help.
    """
    panels = []
    for parameter in inspect.signature(command).parameters.values():
        kind, *info = get_args(parameter.annotation)
        kinds = {*get_args(kind), kind}
        for one in info:
            if isinstance(one, OptionInfo) and one.metavar is None and bool not in kinds:
                one.metavar = next((word for own, word in _KINDS.items() if own in kinds), None)
            panels.append(getattr(one, "rich_help_panel", None))
    further = any(isinstance(panel, Further) for panel in panels)
    app.command(name, cls=Command, epilog="\n".join(examples))(_with_help_all(command) if further else command)


def _with_help_all(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option --help-all."""

    def show(ctx: typer.Context, wanted: bool) -> None:
        if wanted:
            ctx.meta[_ALL] = True
            print(ctx.get_help())
            raise typer.Exit

    option = typer.Option("--help-all", is_eager=True, callback=show, help="Show every option and exit.")
    extra = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])

    @wraps(command)
    def run(*, help_all: bool, **given: Any) -> None:
        command(**given)

    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in inspect.signature(command).parameters.values()]
    run.__signature__ = inspect.Signature([*own, extra])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, extra)}
    return run
