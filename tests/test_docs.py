import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import typer
from learning import photos

from cyctr.checkpoint import describe_checkpoint
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


def _shell(page: Path) -> list[list[str]]:
    """The commands of a page's sh blocks, comments left out."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_docs_is_one_that_the_command_line_takes(page):
    for name, *words in _shell(page):
        if name == "cyctr":
            command = typer.main.get_command(app)
            while hasattr(command, "commands"):
                command, words = command.commands[words[0]], words[1:]
            parsed = command.make_context(command.name, words)  # refuses what it does not know
            assert not parsed.args
        else:
            assert name in {"make", "pip", "python", "torchrun", "."}, f"{page.name}: {name}"


def test_the_walk_through_your_own_data_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    cached = cache.cached(find("efficientnet-lite0"))
    for name, *words in _shell(ROOT / "docs/your-own-data.md"):
        if name == "python":
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        elif words[0] != "weights":
            quick = [{"efficientnet-lite0": "tiny"}.get(word, word) for word in words] if cached is None else words
            quick = ["4" if word == "50" else word for word in quick]
            monkeypatch.setattr(sys, "argv", ["cyctr", *quick])
            app(quick, standalone_mode=False)
    assert "no problems" in capsys.readouterr().out
    assert (tmp_path / "coins-episodes.png").stat().st_size > 10_000
    assert (tmp_path / "coins-evaluation" / "index.html").stat().st_size > 10_000


def test_the_python_in_the_datasets_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/datasets.md").read_text(), re.S)
    exec(compile(code, "datasets.md", "exec"), {})
    assert "torch.Size([3, 5, 3, 473, 473])" in capsys.readouterr().out


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


def test_the_python_in_the_training_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    photos(Path("photos"), each=2)
    for number, name in enumerate(("cup", "plate")):
        Path(f"photos/masks/thing{number}").rename(f"photos/masks/{name}")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.S)
    for usual, quick in {"257": "65", "5000": "16", "efficientnet-lite0": "tiny"}.items():
        assert usual in code
        code = code.replace(usual, quick)
    names: dict = {}
    exec(compile(code, "training.md", "exec"), names)
    assert describe_checkpoint(names["checkpoint"])[1]["test"] == ["cup", "plate"]


def test_commands_in_the_readme_exist():
    registered = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    used = set(re.findall(r"^cyctr (\w+)", (ROOT / "README.md").read_text(), re.M))
    assert used
    assert used <= registered
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M)) <= targets
