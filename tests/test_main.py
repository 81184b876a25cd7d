"""Ctrl-C at chosen moments of a start: while a module is looked for."""

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
HOME, _, FUNCTION = PROJECT["scripts"]["cyctr"].partition(":")
STARTS = {"module": ("-m", "cyctr"), "script": ("-c", f"from {HOME} import {FUNCTION} as main; main()")}
INTERRUPT = """
    import os, signal, sys

    class Interrupt:
        def find_spec(self, name, *_):
            if name == os.environ["INTERRUPTED_AT"]:
                os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
    sys.meta_path.insert(0, Interrupt())
"""
MOMENTS = {
    "typer": "before the commands are known",
    "cyctr.cli.weights": "when the last of them is imported",
    "torch": "when a command has begun",
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("at", MOMENTS, ids=MOMENTS.values())
def test_ctrl_c_while_python_imports_ends_with_one_line(at, start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(INTERRUPT))
    where = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = ("explain", "--support", tmp_path, "--query", tmp_path, "--output", tmp_path / "out.png")
    done = subprocess.run(
        [sys.executable, *start, *map(str, given)],
        env={**os.environ, "PYTHONPATH": where, "INTERRUPTED_AT": at},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cyctr: stopped\n")
