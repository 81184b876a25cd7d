"""The page on the architecture names files, functions and rooms that exist."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from cyctr.methods.table import METHODS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cyctr"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
WALKS = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| `([\w.]+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.M)


def names_in(path: Path) -> set[str]:
    """The functions, classes and values of a module, and the methods of its classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("file", "name"), WALKS, ids=lambda part: part)
def test_a_stage_of_a_walk_is_a_function_that_exists(file, name):
    assert name in names_in(SOURCE / file)


def test_each_walk_is_a_table_of_about_ten_stages():
    walks = [part for part in PAGE.split("\n## ") if "| stage |" in part]
    assert len(walks) == 4
    stages = [len(re.findall(r"^\| [^|]+ \| `[\w/]+\.py` \|", walk, re.M)) for walk in walks]
    assert sum(stages) == len(WALKS) and all(5 <= count <= 12 for count in stages)


def test_every_file_and_folder_on_the_page_exists():
    for path in re.findall(r"`((?:[\w]+/)*[\w]+(?:\.py|/))`", PAGE):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path


def test_the_rooms_stand_in_the_order_of_the_imports():
    rooms = PAGE.partition("## Rooms")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", rooms, re.M)
    listed = [[name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([\w./]+)`", cell)] for cell in cells]
    layers = [layer.split(" | ") for layer in next(one["layers"] for one in CONTRACTS if "layers" in one)]
    height = {name: -place for place, layer in enumerate(layers) for name in layer}
    order = [height[name] for row in listed for name in row if "/" not in name]
    assert order == sorted(order)
    assert {name for row in listed for name in row if "/" not in name} | {"__main__"} == set(height)


@pytest.mark.parametrize("field", ["modules", "protected_modules", "forbidden_modules"])
def test_the_imports_of_every_method_of_the_table_are_checked(field):
    known = {module for one in CONTRACTS for module in one.get(field, ()) if module.startswith("cyctr.methods.")}
    assert {place.kind.rpartition(".")[0] for place in METHODS.values()} <= known


LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if "cli" not in path.relative_to(SOURCE).parts]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(SOURCE)))
def test_an_error_of_the_library_names_no_flag(path):
    raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
    for node in raised:
        parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        text = "".join(parts).partition("cyctr weights get")[0]  # a whole command may have flags
        assert not re.search(r"(?<!\w)--[a-z]", text), text
