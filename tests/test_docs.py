import re
from pathlib import Path

import pytest

from cyctr.cli import app
from cyctr.config import ABLATIONS, PRESETS, Config, settings
from cyctr.model import build
from cyctr.weights import cache, find

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HOW = (ROOT / "docs" / "how-it-works.md").read_text()


@pytest.mark.parametrize("row", re.findall(r"^\| (?:ablation )?`(\w+)`.*\| ([\d,]+) \| ([\d,]+) \|$", HOW, re.M))
def test_the_parameter_counts_in_the_docs_are_those_of_the_network(row):
    name, trained, used = row[0], *(int(number.replace(",", "")) for number in row[1:])
    config = PRESETS[name].model if name in PRESETS else ABLATIONS[name]
    counted = build(config).parameter_count()
    assert (counted.trained, counted.used_at_test) == (trained, used)


def test_the_docs_state_counts_of_both_presets_and_of_ablations():
    assert len(re.findall(r"^\| .*\| [\d,]{7,} \| [\d,]{7,} \|$", HOW, re.M)) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_in_the_docs_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_settings_named_in_the_decisions_exist():
    named = set(
        re.findall(
            r"`((?:encoder|sampling|head|model|loss|optimizer|backbone)\.\w+)`", (ROOT / "docs/decisions.md").read_text()
        )
    )
    known = {name.removeprefix("model.") if name.count(".") == 2 else name for name, _, _ in settings(Config)}
    assert named
    assert named <= known


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/how-it-works.md"], ids=lambda page: page.name)
def test_the_python_in_the_docs_runs(page):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        for name in re.findall(r'weights="([\w-]+)"', code):
            if cache.cached(find(name)) is None:
                pytest.skip(f"weights {name} are not in the cache")
        small = code.replace("473", "65").replace("100:300", "10:40").replace("(30, 30)", "(3, 3)")
        names: dict = {}
        exec(compile(small, str(page), "exec"), names)
        assert names["prediction"].mask.shape == (1, 65, 65)


def test_commands_in_the_readme_exist():
    registered = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    used = set(re.findall(r"^cyctr (\w+)", (ROOT / "README.md").read_text(), re.M))
    assert used
    assert used <= registered
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M)) <= targets
