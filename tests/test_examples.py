"""The scripts in examples/ that no page of the docs runs."""

import runpy
import sys
from pathlib import Path

import pytest
from making import episode, tiny
from PIL import Image

from cyctr.errors import CyctrError

SCRIPT = Path(__file__).parent.parent / "examples" / "learn_from_scratch.py"
EXAMPLE = runpy.run_path(str(SCRIPT))


@pytest.fixture
def script(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def test_learning_from_scratch_writes_a_picture(script, tmp_path, capsys):
    folder = tmp_path / "deep" / "pictures"
    script("--steps", 2, "--output", folder)
    assert [path.name for path in folder.iterdir()] == ["episodes.png"]
    assert str(folder / "episodes.png") in capsys.readouterr().out
    with Image.open(folder / "episodes.png") as picture:
        low, high = picture.convert("L").getextrema()
    assert low < high


def test_learning_from_scratch_does_not_write_over_a_file(script, tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("mine")
    with pytest.raises(SystemExit, match=r"occupied: cannot be made .*choose another --output"):
        script("--steps", 2, "--output", occupied)
    assert occupied.read_text() == "mine"


@pytest.mark.parametrize(("option", "value"), [("--steps", 0), ("--seed", -1), ("--seed", 2**32)])
def test_learning_from_scratch_refuses_numbers_out_of_range(script, option, value, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script(option, value, "--output", tmp_path / "out")
    assert f"is {value}; expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sheet_has_a_row_per_episode_and_a_column_per_view():
    given = episode(batch=3)
    model = tiny()
    prediction = model(given, explain=True)
    page = EXAMPLE["episode_sheet"](given, prediction, model.backbone.grid, "title", ["a", "b", "c"], factor=2)
    assert page.width > len(EXAMPLE["COLUMNS"]) * 130
    assert page.height > 3 * 130


def test_a_sheet_takes_a_query_of_another_size_than_its_support():
    given = episode(batch=1, size=33, query_size=97)
    model = tiny()
    page = EXAMPLE["episode_sheet"](given, model(given, explain=True), model.backbone.grid, "title", ["a"], factor=1)
    assert page.width > len(EXAMPLE["COLUMNS"]) * 97


def test_a_sheet_of_an_unexplained_prediction_is_refused():
    given = episode(batch=1)
    model = tiny()
    with pytest.raises(CyctrError, match="explain=True"):
        EXAMPLE["episode_sheet"](given, model(given), model.backbone.grid, "title", ["a"])
