"""Writes docs/cli.md from the help of every command: `python docs/make_cli.py`."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cyctr.cli import app

PAGE = Path(__file__).parent / "cli.md"
INTRODUCTION = """# The command line

Every command with its options, as `cyctr COMMAND --help` has them. (Made by `python docs/make_cli.py`; do not edit.)

`python -m cyctr` is the same as `cyctr`. What you can mend is one line, and the exit code is 2; 130 after Ctrl-C."""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    commands = sorted(_commands(root, "cyctr"), key=lambda found: found[0])
    index = "\n".join(f"- [`{name}`](#{name.replace(' ', '-')}): {_first_line(command)}" for name, command in commands)
    return "\n\n".join([INTRODUCTION, index, *(_section(name, command) for name, command in commands)]) + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for own, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {own}")
        else:
            yield f"{name} {own}", command


def _first_line(command: Any) -> str:
    return " ".join(command.help.split("\n\n")[0].split())


def _section(name: str, command: Any) -> str:
    text = [" ".join(paragraph.split()) for paragraph in command.help.split("\n\n")]
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
    tables = [part for title, rows in panels.items() for part in ([f"*{title}*"] if title else []) + [_table(rows)]]
    return "\n\n".join([f"## {name}", *text, *tables])


def _table(parameters: list[Any]) -> str:
    rows = ["| option | what it does | default |", "| --- | --- | --- |"]
    for one in parameters:
        what, default = _help_and_default(one)
        rows.append(f"| {_cell(_title(one), code=True)} | {_cell(what)} | {_cell(default)} |")
    return "\n".join(rows)


def _title(parameter: Any) -> str:
    """How it is given: --option, --option one|other, --option / --no-option, or ARGUMENT."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    choices = f" {parameter.metavar}" if "|" in (parameter.metavar or "") else ""
    return " / ".join([*parameter.opts, *parameter.secondary_opts]) + choices


def _help_and_default(parameter: Any) -> tuple[str, str]:
    what = " ".join((parameter.help or "").split())
    if what.endswith("]") and parameter.show_default is False:  # a setting, whose help says what each preset has
        what, _, default = what[:-1].rpartition(" [")
        return what, default.removeprefix("default: ")
    if parameter.required:
        return what, "required"
    if isinstance(parameter.show_default, str):
        return what, parameter.show_default
    return what, _shown(parameter.default)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "–" if value is None or value == math.inf else str(value)


def _cell(text: str, code: bool = False) -> str:
    text = text.replace("|", "\\|")
    return f"`{text}`" if code else text.replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
