"""`make audit`, with a program in the place of pip-audit that answers as pip-audit does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"
GOOD, LOST = {"name": "torch", "version": "2.13.0", "vulns": []}, {"name": "timm", "skip_reason": "not found on PyPI"}
BAD = {"name": "pillow", "version": "13.0.0", "vulns": [{"id": "CVE-1", "fix_versions": ["13.0.1"], "aliases": []}]}
ANSWERS = {
    "no holes": ([GOOD], 0, "audit: packages looked up: 1, known holes: 0\n"),
    "a hole": ([GOOD, BAD], 1, "pillow 13.0.0: CVE-1; mended in 13.0.1\naudit: packages looked up: 2, known holes: 1\n"),
    "some unknown": ([GOOD, LOST], 0, "audit: packages looked up: 1, known holes: 0; not in the database: timm\n"),
    "all unknown": ([LOST], 0, "audit left out: the database of known holes has none of the packages"),
    "unreachable": (None, 0, "audit left out: the database of known holes cannot be reached (no route)\n"),
}


@pytest.mark.parametrize(("packages", "code", "words"), ANSWERS.values(), ids=ANSWERS)
def test_the_audit_says_what_it_asked_and_fails_for_a_hole_only(packages, code, words, tmp_path):
    answer = "sys.exit('first\\nno route')" if packages is None else f"print({json.dumps({'dependencies': packages})!r})"
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'asked')!r}).write_text(Path(sys.argv[-1]).read_text())\n{answer}\n"
    )
    program.chmod(0o755)
    done = audit(tmp_path)
    assert (done.returncode, done.stderr) == (code, "") and done.stdout.startswith(words)
    pins = (tmp_path / "asked").read_text().splitlines()
    assert {"torch", "ruff", "click"} <= {line.partition("==")[0] for line in pins}
    assert all("==" in line for line in pins)


def test_without_pip_audit_the_audit_is_left_out(tmp_path):
    done = audit(tmp_path)
    assert (done.returncode, done.stdout) == (0, "audit left out: pip-audit is not installed\n")


def audit(path):
    return subprocess.run(
        [sys.executable, SCRIPT], env={**os.environ, "PATH": str(path)}, capture_output=True, text=True, check=False
    )
