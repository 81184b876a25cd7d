"""The command line. Each command has a file of its own; what needs torch is imported when a command runs."""

import io
import os
import sys
import time
import warnings
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import typer

import cyctr
from cyctr.cli import (
    convert_release,
    data,
    demo,
    episodes,
    evaluate,
    explain,
    info,
    prepare,
    segment,
    studio,
    support,
    train,
    weights,
)
from cyctr.cli.command import Commands, add
from cyctr.cli.options import with_dashes
from cyctr.errors import ConfigError, CyctrError
from cyctr.methods.table import USUAL
from cyctr.words import one_line


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cyctr {cyctr.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that come before any command."""


def make_app(method: str = USUAL) -> typer.Typer:
    """The command line, with the settings of a method as options of `train`."""
    made = typer.Typer(
        name="cyctr",
        cls=Commands,
        help="Few-shot segmentation: label a few images of anything, segment it in every other image.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "token_normalize_func": with_dashes},
    )
    add(made, "studio", studio.studio, studio.EXAMPLES)
    add(made, "segment", segment.segment, segment.EXAMPLES)
    add(made, "explain", explain.explain, explain.EXAMPLES)
    made.add_typer(support.app, name="support")
    add(made, "demo", demo.demo, demo.EXAMPLES)
    add(made, "info", info.info, info.EXAMPLES)
    add(made, "episodes", episodes.episodes, episodes.EXAMPLES)
    add(made, "evaluate", evaluate.evaluate, evaluate.EXAMPLES, evaluate.LISTS)
    add(made, "train", train.command(method), train.EXAMPLES, train.LISTS)
    add(made, "merge", evaluate.merge, evaluate.MERGE_EXAMPLES)
    add(made, "convert-release", convert_release.convert_release, convert_release.EXAMPLES)
    made.add_typer(data.app, name="data")
    made.add_typer(weights.app, name="weights")
    made.add_typer(prepare.app, name="prepare")
    made.callback()(options)
    return made


app = make_app()


@cache
def _usual() -> Any:
    """The command line of the usual method, made once: Typer takes a while."""
    return typer.main.get_command(app)


_USAGE_ERROR: Any = typer.BadParameter.__base__  # click's, wherever typer keeps it
_FLAGS = {"half": "precision float32"}  # what an option of the library is called here
_MOMENT = 1.0  # seconds


def _say(message: object, error: BaseException | None = None) -> None:
    """One line for the user; of the processes that torchrun started on a machine, the first speaks for all.

    Args:
        message: the line.
        error: the reason. An error of one process of several has a note with its rank, and that process tells it.
    """
    whose = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
    if whose or os.environ.get("LOCAL_RANK", "0") == "0":
        names = (_FLAGS.get(name, name.replace("_", "-")) for name in getattr(error, "options", ()))
        flags = ", ".join(f"--{name}" for name in names)
        print(f"cyctr: {whose}{one_line(message)}{f' ({flags})' if flags else ''}", file=sys.stderr, flush=True)


def _note(message: Warning | str, *_: object, **__: object) -> None:
    _say(f"note: {message}")


def _give_others_time() -> None:
    """Lets the other processes of a run speak, if they have something to say: as soon as one ends, torchrun ends them all."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        time.sleep(_MOMENT)


def _method_named(arguments: Sequence[str]) -> str | None:
    """The method that `cyctr train` is told of."""
    if arguments[1:2] != ["train"]:
        return None
    after = next((value for name, value in pairwise(arguments) if name == "--method"), None)
    return after or next((text.removeprefix("--method=") for text in arguments if text.startswith("--method=")), None)


def _refuse_nowhere(arguments: Sequence[str]) -> None:
    """Raises ConfigError for an empty --output, as of a variable that is not set: to a path that is the folder one is in."""
    if "--output=" in arguments or ("--output", "") in pairwise(arguments):
        raise ConfigError("--output is empty; expected a path, or . for this folder")


def main() -> None:
    """Runs the command line: one line and exit code 2 for anything the user can mend."""
    warnings.showwarning = _note
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of a file whose name it does not say; what is wrong becomes an error
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be no text
    try:
        _refuse_nowhere(sys.argv)
        method = _method_named(sys.argv)
        command = _usual() if method is None else make_app(method)
        sys.exit(command(standalone_mode=False))
    except CyctrError as error:
        _say(error, error)
    except _USAGE_ERROR as error:
        if len(sys.argv) > 1 and error.format_message().strip():
            command = error.ctx.command_path if error.ctx else "cyctr"
            message = " ".join(error.format_message().split()).rstrip(".")
            _say(f"{message}; see {command} --help", error)
        else:
            error.show()
    except OSError as error:  # of the file system, where nobody expected it
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}; check the path and its permissions", error)
    except (typer.Abort, KeyboardInterrupt):
        _say("stopped")
        sys.exit(130)
    _give_others_time()
    sys.exit(2)
