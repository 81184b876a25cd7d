"""The lists of packages that `make` installs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pins(*names):
    """The versions of packages, by their name as pip compares it."""
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
    found = [re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines]
    return {re.sub(r"[-_.]+", "-", one[1]).lower(): one[2] for one in found if one}


def test_every_package_has_the_hashes_of_its_version_but_those_with_several_builds():
    wanted = pins("requirements.txt", "requirements-dev.txt", "constraints.txt")
    assert pins("hashes.txt") == {name: version for name, version in wanted.items() if name not in ("torch", "torchvision")}
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", (ROOT / "hashes.txt").read_text(), flags=re.MULTILINE).strip())
    assert len(entries) == len(pins("hashes.txt"))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
