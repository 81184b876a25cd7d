import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cyctr.storage
from cyctr.storage import alone, cache_folder, locked, sweep, write_atomically, write_pieces_atomically


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_what_is_written_is_there_and_nothing_else(tmp_path):
    write_atomically(tmp_path / "a.bin", b"new\r\n\x00")
    assert (tmp_path / "a.bin").read_bytes() == b"new\r\n\x00"
    assert names(tmp_path) == ["a.bin"]


def test_folders_are_made_as_deep_as_need_be(tmp_path):
    write_atomically(tmp_path / "one" / "two" / "a.bin", b"deep")
    assert (tmp_path / "one" / "two" / "a.bin").read_bytes() == b"deep"


def test_what_was_there_is_replaced(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"something longer")
    write_atomically(path, b"short")
    assert path.read_bytes() == b"short" and names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full disk", "interrupt"]
)
def test_a_failure_while_writing_leaves_the_old_content_and_no_draft(failure, tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    write_bytes = Path.write_bytes

    def write_half(self, content):
        write_bytes(self, content[: len(content) // 2])
        raise failure

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(type(failure)):
        write_atomically(path, b"new content")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


def test_pieces_are_written_one_after_another(tmp_path):
    write_pieces_atomically(tmp_path / "deep" / "a.bin", (bytes([number]) for number in range(3)))
    assert (tmp_path / "deep" / "a.bin").read_bytes() == b"\0\1\2"
    assert names(tmp_path) == ["a.bin", "deep"]


def test_a_failure_between_pieces_leaves_the_old_content_and_no_draft(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")

    def pieces():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pieces_atomically(tmp_path / "a.bin", pieces())
    assert (tmp_path / "a.bin").read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


def test_a_failure_while_replacing_leaves_what_was_there_and_no_draft(tmp_path):
    (tmp_path / "place" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="place"):
        write_atomically(tmp_path / "place", b"new")
    assert names(tmp_path) == ["inside", "place"]


def test_a_file_where_the_folder_should_be_is_an_oserror_and_stays(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken" / "a.bin", b"new")
    assert names(tmp_path) == ["taken"] and (tmp_path / "taken").read_text() == "mine"


def test_readers_see_one_whole_content_while_many_threads_write(tmp_path):
    path = tmp_path / "a.bin"
    contents = [bytes([i]) * 200_000 for i in range(8)]
    path.write_bytes(contents[0])

    def write_and_read(i):
        write_atomically(path, contents[i % 8])
        return path.read_bytes() in contents

    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(write_and_read, range(160)))
    assert names(tmp_path) == ["a.bin"]


def test_the_cache_is_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("CYCTR_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "mine"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, (".cache", "cyctr")),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, ("xdg", "cyctr")),
        ("darwin", {"XDG_CACHE_HOME": "xdg"}, ("Library", "Caches", "cyctr")),
        ("win32", {}, ("AppData", "Local", "cyctr")),
        ("win32", {"LOCALAPPDATA": "local"}, ("local", "cyctr")),
    ],
)
def test_otherwise_the_cache_is_in_the_platform_s_place_for_caches(platform, variables, expected, tmp_path, monkeypatch):
    for name in ("CYCTR_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path.joinpath(*expected)


@pytest.mark.skipif(os.name == "nt", reason="windows has no empty environment variables")
def test_an_empty_variable_counts_as_none(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("CYCTR_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "cyctr"


def test_a_lock_is_held_against_another_process_and_given_back(tmp_path):
    path = tmp_path / "deep" / ".lock"
    code = f"from pathlib import Path; from cyctr.storage import locked\nwith locked(Path({str(path)!r})) as held: print(held)"

    def another() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    with locked(path) as held:
        assert held
        assert another() == "False"
    assert another() == "True"
    assert not path.exists()


@pytest.mark.skipif(os.name == "nt", reason="windows does not take away an open file")
@pytest.mark.parametrize("newcomer", [False, True])
def test_a_lock_on_a_file_that_was_just_taken_away_is_not_held(tmp_path, monkeypatch, newcomer):
    path, taken, attempts = tmp_path / ".lock", cyctr.storage._take, []

    def overtaken(file):
        attempts.append(file)
        if len(attempts) == 1:  # another gave the lock back between our opening the file and locking it
            path.unlink()
            if newcomer:
                path.touch()
        return taken(file)

    monkeypatch.setattr(cyctr.storage, "_take", overtaken)
    with locked(path) as held:
        assert held and len(attempts) == 2
        with locked(path) as twice:
            assert not twice
    assert not path.exists()


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    (out / "masks").mkdir(parents=True)
    (out / "masks" / ".0.png.12.34.cyctr-draft").write_bytes(b"half")
    mine = [out / "masks" / ".0.png.12.34", out / ".notes.draft", out / "masks" / "0.png"]
    for path in mine:
        path.write_bytes(b"mine")
    with alone(out / ".lock", out):
        assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted([*mine, out / ".lock"])


def test_what_a_killed_process_left_beside_a_file_is_removed_by_the_next_that_writes_it(tmp_path):
    names = [".results.json.12.34.cyctr-draft", ".other.json.12.34.cyctr-draft"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    with alone(tmp_path / ".results.json.lock", tmp_path / "results.json"):
        assert [path.name for path in tmp_path.iterdir() if "draft" in path.name] == names[1:]


def test_a_process_that_is_killed_leaves_a_draft_by_the_name_that_is_removed(tmp_path, monkeypatch):
    def die(*_):
        raise SystemExit

    monkeypatch.setattr(os, "replace", die)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        write_atomically(tmp_path / "a.txt", b"half")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    with alone(tmp_path / ".lock", tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_drafts_beside_a_file_go_when_their_process_is_gone(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = tmp_path / f".cup.cyctr.{ended.pid}.34.cyctr-draft"
    kept = [tmp_path / name for name in (f".cup.cyctr.{os.getpid()}.34.cyctr-draft", ".cup.cyctr.x.cyctr-draft", "cup.cyctr")]
    for path in (gone, *kept):
        path.write_bytes(b"half")
    sweep(tmp_path / "cup.cyctr")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    sweep(tmp_path / "nowhere" / "cup.cyctr")
