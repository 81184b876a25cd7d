import errno
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from learning import same_bits
from miniature import state, truncate
from safetensors.torch import save_file

from cyctr.checkpoint import pack, unpack
from cyctr.episodes.latent import Regions
from cyctr.errors import CheckpointError, ConfigError
from cyctr.training.run_folder import (
    BEST,
    CONFIG,
    CURVES,
    LAST,
    METRICS,
    STATE,
    RunFolder,
    kept_for_good,
)
from cyctr.training.state import Standing, random_state

TENSORS = {
    "weights.a": torch.arange(6.0).view(2, 3),
    "convolutions.step.a": torch.tensor(3.0),
    "average.a": torch.arange(6.0).view(2, 3).T,  # not contiguous
    "transformer.exp_avg.b": torch.tensor([1e-40, -0.0, float("inf")]),
}
STANDING = Standing(step=7, validated=6, best=0.1 + 0.2)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "deep" / "run")


@pytest.fixture
def kept(folder):
    """A folder in which a run left a state and metrics."""
    folder.write_config({"config": {}, "data": {}})
    folder.save_state(TENSORS, STANDING)
    folder.write(LAST, b"a network")
    for step in (2, 4, 6):
        folder.log({"step": step, "loss": 1 / step})
    return folder


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_state_comes_back_as_it_was(folder):
    folder.save_state(TENSORS, STANDING)
    tensors, standing = folder.load_state()
    assert same_bits(tensors, TENSORS)
    assert all(value.dtype == TENSORS[name].dtype for name, value in tensors.items())
    assert standing == STANDING


def test_the_same_state_is_the_same_file(folder):
    folder.save_state(TENSORS, STANDING)
    once = (folder.path / STATE).read_bytes()
    folder.save_state(dict(reversed(TENSORS.items())), STANDING)
    assert (folder.path / STATE).read_bytes() == once


def test_a_later_state_replaces_an_earlier_one(kept):
    later = {"weights.a": torch.zeros(1)}
    kept.save_state(later, Standing(8))
    tensors, standing = kept.load_state()
    assert same_bits(tensors, later)
    assert standing == Standing(8)
    assert not [path for path in kept.path.iterdir() if path.name.startswith(".")]


def test_a_run_that_never_kept_its_state_has_none(folder):
    folder.write_config({})
    assert folder.load_state() is None


def _garbage(path):
    path.write_bytes(bytes(range(256)) * 9)


def _flip(path):
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF  # in the header
    path.write_bytes(content)


DAMAGES = {
    "cut short": truncate,
    "cut to its first bytes": lambda path: path.write_bytes(path.read_bytes()[:5]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": _garbage,
    "a flipped byte": _flip,
    "another file of tensors": lambda path: save_file(TENSORS | {"average.a": torch.ones(1)}, path),
    "words that are no JSON": lambda path: save_file({"a": torch.ones(1)}, path, {"about": "{step"}),
    "words that are no standing": lambda path: save_file({"a": torch.ones(1)}, path, {"about": '{"step": 1}'}),
    "words of another kind": lambda path: save_file({"a": torch.ones(1)}, path, {"about": "[]"}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_one_clear_error(damage, kept):
    damage(kept.path / STATE)
    before = state(kept.path)
    with pytest.raises(CheckpointError, match=r"state\.safetensors: not a whole state of a run") as found:
        kept.load_state()
    assert "\n" not in str(found.value)
    assert "begin again in another output" in str(found.value)
    assert found.value.options == ("output",)
    assert state(kept.path) == before


def _half(path, content):
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
    full()


@pytest.mark.parametrize(("place", "failure"), [((os, "fsync"), full), ((Path, "write_bytes"), _half)], ids=["sync", "write"])
def test_a_full_disk_leaves_what_was_saved_and_says_so(place, failure, kept, monkeypatch):
    before = state(kept.path)
    monkeypatch.setattr(*place, failure)
    for attempt in (
        lambda: kept.save_state({"weights.a": torch.zeros(1)}, Standing(8)),
        lambda: kept.write(LAST, b"a later network"),
        lambda: kept.write_config({"other": 1}),
        lambda: kept.forget_after(2, 2),
    ):
        with pytest.raises(
            CheckpointError, match=r"No space left on device.*what was saved before is whole.*resume the run"
        ) as found:
            attempt()
        assert found.value.options == ("resume",)
    monkeypatch.undo()
    assert state(kept.path) == before
    assert same_bits(kept.load_state()[0], TENSORS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_metrics_on_a_full_disk_are_one_clear_error(folder):
    folder.path.mkdir(parents=True)
    (folder.path / METRICS).symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be written \(No space left on device\).*make room"):
        folder.log({"step": 1})


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "occupied").write_text("mine")
    folder = RunFolder(tmp_path / "occupied")
    for attempt in (
        lambda: folder.write_config({}),
        lambda: folder.save_state(TENSORS, STANDING),
        lambda: folder.log({"step": 1}),
    ):
        with pytest.raises(CheckpointError, match=r"occupied/.*cannot be written"):
            attempt()
    assert (tmp_path / "occupied").read_text() == "mine"


MAPS, STEPS = torch.arange(18).byte().view(2, 3, 3), torch.tensor([1 / 3, 2.0], dtype=torch.float64)
REGIONS = Regions([3, 5], MAPS, STEPS, torch.tensor([[4, 3], [6, 5]]), 7)
DIGEST = "0123456789ab" + "c" * 52


def test_regions_come_back_as_they_were_to_whoever_asks_for_the_same(folder):
    assert folder.load_regions(DIGEST) is None
    folder.save_regions(REGIONS, DIGEST)
    found = folder.load_regions(DIGEST)
    assert (found.images, found.count) == (REGIONS.images, REGIONS.count)
    for name in ("maps", "steps", "sizes"):
        assert torch.equal(getattr(found, name), getattr(REGIONS, name))
    assert folder.load_regions("f" * 64) is None


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_regions_are_none_and_a_warning_says_so(damage, folder):
    folder.save_regions(REGIONS, DIGEST)
    damage(folder.path / "regions-0123456789ab.safetensors")
    with pytest.warns(UserWarning, match=r"regions-0123456789ab\.safetensors: not whole.*latent classes are looked for anew"):
        assert folder.load_regions(DIGEST) is None


def test_where_nothing_was_saved_a_full_disk_does_not_promise_a_state_to_resume(folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"nothing was saved yet: make room.*begin again") as found:
        folder.save_state(TENSORS, STANDING)
    assert "resume" not in str(found.value)
    assert found.value.options == ("output",)
    assert not folder.saved


def test_metrics_are_read_as_they_were_logged(folder):
    assert folder.records() == []
    records = [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "validation": {"miou": 0.5, "classes": {"tasse à café": 1 / 3}}}]
    for record in records:
        folder.log(record)
    assert folder.records() == records
    assert (folder.path / METRICS).read_text().count("\n") == 2


@pytest.mark.parametrize("size", [1, 7, -2])
def test_a_line_that_a_crash_cut_short_is_left_out(size, kept):
    line = json.dumps({"step": 8, "loss": 0.25})
    with (kept.path / METRICS).open("a") as file:
        file.write(line[:size])
    assert [record["step"] for record in kept.records()] == [2, 4, 6]
    kept.forget_after(6, 6)
    kept.log({"step": 8, "loss": 0.5})
    assert [record["step"] for record in kept.records()] == [2, 4, 6, 8]
    assert all(json.loads(line) for line in (kept.path / METRICS).read_text().splitlines())


@pytest.mark.parametrize(("step", "left"), [(0, []), (3, [2]), (4, [2, 4]), (9, [2, 4, 6])])
def test_metrics_of_steps_that_will_be_done_again_are_forgotten(step, left, kept):
    kept.forget_after(step, step)
    assert [record["step"] for record in kept.records()] == left


def test_a_validation_that_will_be_done_again_is_forgotten(kept):
    for step in (4, 6):
        kept.log({"step": step, "validation": {}})
    kept.forget_after(6, 4)
    assert [record["step"] for record in kept.records()] == [2, 4, 6, 4]


def test_forgetting_where_nothing_was_logged_is_no_error(folder):
    folder.forget_after(3, 3)
    assert folder.records() == []


def test_what_says_how_a_run_is_made_comes_back(folder):
    about = {"config": {"model": {"dim": 16, "taps": [1, 2]}}, "data": {"train": ["tasse à café"]}}
    folder.write_config(about)
    assert folder.read_config() == about


def test_a_folder_without_a_run_has_nothing_to_resume(folder):
    with pytest.raises(ConfigError, match=r"config\.json: no such file, so there is no run to resume; leave resume out"):
        folder.read_config()
    assert not folder.path.exists()


@pytest.mark.parametrize("damage", [truncate, lambda path: path.write_text("[]")], ids=["cut short", "another kind"])
def test_a_damaged_config_is_one_clear_error(damage, kept):
    damage(kept.path / CONFIG)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read .*begin again in another output"):
        kept.read_config()


FILES = (CONFIG, METRICS, STATE, LAST, BEST, CURVES, kept_for_good(64), "regions-0123456789ab.safetensors")
OWN = (*FILES, "tensorboard/events.out.tfevents.1.host.2.0")
MINE = (
    *("notes.txt", "mine.safetensors", "tensorboard/notes.txt", "old/last.safetensors", ".hidden"),
    *("regions-mine.safetensors", "regions-0123.safetensors"),
    *("at-home.safetensors", "at-64.safetensors", "at-0000000064.safetensors", "at-000000064.safetensors.old"),
)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_with_any_file_of_a_run_has_begun(name, folder):
    assert not folder.begun
    for mine in MINE:
        folder.write(mine, b"")
    assert not folder.begun
    (folder.path / name).write_text("")
    assert folder.begun


ABOUT = {"config": {}, "data": {}, "sessions": []}


def test_clearing_removes_what_a_run_left(folder):
    for name in OWN:
        folder.write(name, b"of a run")
    folder.write_config(ABOUT)
    folder.clear()
    assert not [path for path in folder.path.rglob("*") if path.is_file()]
    assert not folder.begun
    folder.clear()  # of nothing is no error


def test_clearing_leaves_what_the_user_put_there(folder):
    for name in (*OWN, *MINE):
        folder.write(name, b"something")
    folder.write_config(ABOUT)
    folder.clear()
    assert {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()} == set(MINE)


@pytest.mark.parametrize("config", [None, b'{"my": "settings"}', b"not JSON"], ids=["none", "another's", "damaged"])
def test_files_that_may_be_somebody_elses_are_not_cleared(config, folder):
    folder.write(BEST, b"mine")
    if config is not None:
        folder.write(CONFIG, config)
    with pytest.raises(ConfigError, match=r"holds what no run has written \(.*best\.safetensors\).*choose another output"):
        folder.clear()
    assert (folder.path / BEST).read_bytes() == b"mine"


def test_what_was_half_written_when_a_run_was_killed_is_removed_and_nothing_else(folder):
    drafts = [f".{name}.{os.getpid()}.{threading.get_ident()}" for name in FILES]
    others = (*OWN, *MINE, ".last.safetensors", ".last.safetensors.old", ".mine.txt.12.34")
    for name in (*drafts, *others):
        folder.write(name, b"something")
    folder.tidy()
    assert {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()} == set(others)


def test_a_draft_is_named_as_one_that_is_tidied_away(folder, monkeypatch):
    def crash(*_):
        raise SystemExit

    monkeypatch.setattr(os, "replace", crash)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    for name in FILES:
        with pytest.raises(SystemExit):
            folder.write(name, b"half")
    monkeypatch.undo()
    assert len(list(folder.path.iterdir())) == len(FILES)
    folder.tidy()
    assert not list(folder.path.iterdir())


def test_a_line_of_the_metrics_that_is_none_of_ours_is_left_out(folder):
    folder.log({"step": 1})
    with (folder.path / METRICS).open("a") as file:
        file.write('[1]\n"two"\n{}\n{"step": "x"}\n')
    folder.log({"step": 2})
    assert folder.records() == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("line", [b'{"step": \xff}\n', b"\xff\xfe\n", b"[" * 10_000 + b"\n"], ids=["byte", "utf-16", "deep"])
def test_a_line_of_the_metrics_that_is_no_text_or_nested_too_deep_is_left_out(line, folder):
    folder.log({"step": 1})
    with (folder.path / METRICS).open("ab") as file:
        file.write(line)
    folder.log({"step": 2})
    assert folder.records() == [{"step": 1}, {"step": 2}]


def test_a_config_that_is_nested_too_deep_is_one_clear_error(kept):
    (kept.path / CONFIG).write_text("[" * 10_000)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read \(it is nested more than 64 deep\)"):
        kept.read_config()


def test_a_flipped_bit_in_the_state_of_a_run_is_noticed(kept):
    content = bytearray((kept.path / STATE).read_bytes())
    content[-1] ^= 1
    (kept.path / STATE).write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum is not of what it holds"):
        kept.load_state()


@pytest.mark.parametrize("change", [{"step": "3"}, {"step": -1}, {"validated": None}, {"best": []}])
def test_a_state_that_says_something_else_than_numbers_is_one_clear_error(change, kept):
    tensors, about = unpack(kept.path / STATE)
    kept.write(STATE, pack(tensors, {**about, **change}))
    with pytest.raises(CheckpointError, match="expected two counts and a number"):
        kept.load_state()


def test_a_line_of_the_metrics_with_a_text_for_a_number_is_left_out(folder):
    folder.log({"step": 1, "seconds": "long"})
    folder.log({"step": 2, "episodes": 8, "validation": {"miou": None}})
    folder.log({"step": 3, "seconds": 1.5})
    assert folder.records() == [{"step": 3, "seconds": 1.5}]


def test_what_dropout_drops_is_a_function_of_seed_and_step():
    def drawn(seed, step):
        torch.rand(3)  # whatever was drawn before
        random_state(seed, step, torch.device("cpu"))
        return tuple(torch.rand(4).tolist())

    keys = [(seed, step) for seed in (0, 1, 2**31 - 1) for step in (0, 1, 2**20)]
    assert len({drawn(*key) for key in keys}) == len(keys)
    assert [drawn(*key) for key in keys] == [drawn(*key) for key in keys]
