import gc
import math
import os
import sys
from functools import partial

import pytest
import torch

from cyctr import cli
from cyctr.datasets import synthetic_pool
from cyctr.training import loop

pytest_plugins = ["browsing"]
LONG = {"test_learning.py", "test_mutations.py", "test_release.py"}


def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait for a browser, a server or a process that they have started."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish():
    """What was imported and collected stays: the collector of garbage need not look through it in every test."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Long tests come first: at the end of a run, one of them would keep a worker busy while the others wait."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _whole_precision():
    """The Segmenter computes in float32 on every CPU, so that what is tested does not depend on whose it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cyctr.inference.predictor.half_pays", lambda device: device.type == "cuda")
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk():
    """No test cuts the power, and to wait until a disk has what was written takes longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def few_textures(monkeypatch):
    """`--data synthetic` is eight classes of a few small images."""
    monkeypatch.setattr(synthetic_pool, "SyntheticPool", partial(synthetic_pool.SyntheticPool, 8, 6, 65))


@pytest.fixture(autouse=True, scope="session")
def _curves_drawn_once():
    """Small trainings share one picture of curves, which takes longer to draw than they take; `test_trainer` draws its own."""
    draw, drawn = loop.draw_curves, []

    def draw_once(records):
        if not drawn:
            drawn.append(draw(records))
        return drawn[0] or drawn.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", draw_once)
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line in this process: its exit code, output and errors, without lines that a slow machine would add."""
    monkeypatch.setattr(sys.modules["cyctr.cli.options"], "_TELL_SECONDS", math.inf)  # cli.options is a function

    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["cyctr", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return main
