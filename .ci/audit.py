"""Asks pip-audit for known holes in the packages that `make` installs; exit code 1 where it finds one.

Without pip-audit, or without its database, that is said in one line and nothing fails.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FILES = ("requirements.txt", "requirements-dev.txt", "constraints.txt")
ASKED = ("--disable-pip", "--no-deps", "--progress-spinner", "off", "--timeout", "5", "--format", "json")


def found(program: str, root: Path) -> list[dict[str, Any]] | str:
    """What pip-audit says of each pinned package, or why it says nothing."""
    pins = [line for name in FILES for line in (root / name).read_text().splitlines() if "==" in line]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "pins.txt")
        listed.write_text("\n".join(pins))
        done = subprocess.run([program, *ASKED, "--requirement", listed], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)["dependencies"]
    except ValueError:
        return (done.stderr.strip().splitlines() or [f"pip-audit ended with code {done.returncode}"])[-1][:200]


def main() -> int:
    """Prints what was found, and gives the exit code."""
    program = shutil.which("pip-audit")
    if program is None:
        print("audit left out: pip-audit is not installed")
        return 0
    packages = found(program, Path(__file__).parents[1])
    if isinstance(packages, str):
        print(f"audit left out: the database of known holes cannot be reached ({packages})")
        return 0
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages):
        print("audit left out: the database of known holes has none of the packages, as behind a mirror of their files")
        return 0
    holes = [(one, hole) for one in packages for hole in one.get("vulns", ())]
    for one, hole in holes:
        mended = ", ".join(hole["fix_versions"]) or "no version"
        print(f"{one['name']} {one['version']}: {hole['id']}; mended in {mended}")
    missing = f"; not in the database: {', '.join(unknown)}" if unknown else ""
    print(f"audit: packages looked up: {len(packages) - len(unknown)}, known holes: {len(holes)}{missing}")
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
