"""What a training run leaves on disk, and how it goes on from there.

config.json        how it is made: config, data, versions
metrics.jsonl      a line for each log and each validation; tensorboard/ has the same
state.safetensors  all that a resumed run needs
last.safetensors   the network, ready for use; best.safetensors and at-NUMBER.safetensors likewise
regions-DIGEST.safetensors  where latent classes are, so that a resumed run learns from the very same
curves.png         loss and validation over episodes
"""

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from cyctr import json_files
from cyctr.checkpoint import pack, unpack
from cyctr.config import Recipe, from_dict
from cyctr.episodes.latent import Regions
from cyctr.errors import CheckpointError, ConfigError
from cyctr.methods.table import USUAL, find_method
from cyctr.storage import write_atomically
from cyctr.training.state import Standing

STATE, LAST, BEST, CURVES = "state.safetensors", "last.safetensors", "best.safetensors", "curves.png"
CONFIG, METRICS = "config.json", "metrics.jsonl"
_RESTORE = "restore it, or begin again in another output"
_NUMBERED = re.compile(r"at-\d{9}|regions-[0-9a-f]{12}")
_DRAFT = re.compile(r"\.(\w+|at-\d{9}|regions-[0-9a-f]{12})\.(json|jsonl|safetensors|png)\.\d+\.\d+(\.cyctr-draft)?")


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def begun(self) -> bool:
        """Whether a run has written here."""
        return bool(self._own())

    @property
    def saved(self) -> bool:
        """Whether there is a state to go on from."""
        return os.path.exists(self.path / STATE)

    def clear(self) -> None:
        """Removes what an earlier run left, and nothing else."""
        self.check_ours()
        for file in (*self._own(), *self.path.glob("tensorboard/events.out.tfevents.*")):
            file.unlink()

    def check_ours(self) -> None:
        """Raises ConfigError where there are files of a run's names, and nothing says that they are a run's."""
        if self.begun and not self._is_ours():
            names = ", ".join(path.name for path in self._own())
            raise ConfigError(
                f"{self.path}: holds what no run has written ({names}), and what one would replace; choose another output, "
                "or move it away",
                "output",
            )

    def tidy(self) -> None:
        """Removes what a run that was killed while it saved has left half written. No other process may be writing here."""
        for file in self.path.glob(".*"):
            if _DRAFT.fullmatch(file.name):
                file.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether the config that is here is that of a run."""
        try:
            return {"config", "data", "sessions"} <= self.read_config().keys()
        except ConfigError:
            return False

    def _own(self) -> list[Path]:
        """The files of a run that are there."""
        fixed = [self.path / name for name in (CONFIG, METRICS, STATE, LAST, BEST, CURVES)]
        numbered = [path for path in self.path.glob("*.safetensors") if _NUMBERED.fullmatch(path.stem)]
        return [path for path in (*fixed, *numbered) if path.exists()]

    def write(self, name: str, content: bytes) -> None:
        """Writes a file in one step."""
        try:
            write_atomically(self.path / name, content)
        except OSError as error:
            raise self._unwritten(name, error) from error

    def _unwritten(self, name: str, error: OSError) -> CheckpointError:
        before, then, option = "nothing was saved yet", "begin again, or choose another output", "output"
        if self.saved:
            before, then, option = "what was saved before is whole", "resume the run", "resume"
        path, remedy = self.path / name, "make room, or mend the permissions"
        return CheckpointError(f"{path}: cannot be written ({error.strerror}); {before}: {remedy}, and {then}", option)

    def write_config(self, about: Mapping[str, Any]) -> None:
        """Says how the run is made."""
        self.write(CONFIG, (json.dumps(about, indent=2) + "\n").encode())

    def read_config(self) -> dict[str, Any]:
        """What `write_config` wrote."""
        path = self.path / CONFIG
        try:
            return json_files.read_object(path)
        except FileNotFoundError as error:
            remedy, option = (
                ("restore it, or choose another output", "output")
                if self.begun
                else ("leave resume out to begin one", "resume")
            )
            raise ConfigError(f"{path}: no such file, so there is no run to resume; {remedy}", option) from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); {_RESTORE}", "output") from error

    def method(self, given: str | None = None) -> str:
        """The method of the run, by the name that `find_method` knows; that another one is given is refused."""
        own = str(self.read_config().get("method", USUAL))
        if given is not None and find_method(given) is not find_method(own):
            raise ConfigError(
                f"{self.path}: is a run of {own}, not of {given}; leave method out, or choose another output", "method"
            )
        return own

    def settings(self) -> Recipe:
        """The config of the run."""
        values: Any = self.read_config().get("config")
        try:
            found: Recipe = from_dict(find_method(self.method()).Config, values)
            return found
        except ConfigError as error:
            raise ConfigError(f"{self.path / CONFIG}: {error}; {_RESTORE}", "output") from error

    def data(self) -> dict[str, Any]:
        """What the run learns from; nothing where its file does not say."""
        found = self.read_config().get("data")
        return found if isinstance(found, dict) else {}

    def last_session(self) -> dict[str, Any]:
        """How the run was last gone on with; nothing where its file does not say."""
        found = self.read_config().get("sessions")
        return found[-1] if isinstance(found, list) and found and isinstance(found[-1], dict) else {}

    def save_state(self, tensors: Mapping[str, Tensor], standing: Standing) -> None:
        """Keeps all that a resumed run needs; what was kept before stays until this is whole."""
        self.write(STATE, pack(tensors, standing._asdict()))

    def load_state(self) -> tuple[dict[str, Tensor], Standing] | None:
        """What `save_state` kept, or none where a run ended before it first did.

        Raises:
            CheckpointError: it is damaged, or it is gone, and going on would replace the network that was made with it.
        """
        path = self.path / STATE
        if not path.exists():
            if (self.path / LAST).exists():
                raise CheckpointError(
                    f"{path}: is gone, and the run cannot go on from {LAST}; restore it, or begin again in another output, or "
                    "replace the run that is here",
                    "output",
                    "force",
                )
            return None
        try:
            tensors, about = unpack(path)
            if about.keys() != set(Standing._fields):
                raise ValueError(f"it has {sorted(about)}, expected {sorted(Standing._fields)}")
            standing = Standing(**about)
            if not (_is_count(standing.step) and _is_count(standing.validated) and _is_number(standing.best)):
                raise ValueError(f"it says {standing}; expected two counts and a number")
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: not a whole state of a run ({error}); begin again in another output", "output"
            ) from error
        return tensors, standing

    def save_regions(self, regions: Regions, digest: str) -> None:
        """Keeps where latent classes are, under a digest of what they depend on."""
        tensors = {"maps": regions.maps, "steps": regions.steps, "sizes": regions.sizes}
        self.write(_regions_name(digest), pack(tensors, {"images": list(regions.images), "count": regions.count}))

    def load_regions(self, digest: str) -> Regions | None:
        """What `save_regions` kept under that digest; none where nothing is kept, or nothing whole, which a warning says."""
        path = self.path / _regions_name(digest)
        if not path.exists():
            return None
        try:
            tensors, about = unpack(path)
            return Regions(about["images"], tensors["maps"], tensors["steps"], tensors["sizes"], about["count"])
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            warnings.warn(f"{path}: not whole ({error}); latent classes are looked for anew", stacklevel=2)
            return None

    def log(self, record: Mapping[str, Any]) -> None:
        """Adds a line to the metrics."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self._unwritten(METRICS, error) from error

    def records(self) -> list[dict[str, Any]]:
        """The metrics so far; lines that a crash cut short, or that another program wrote, are left out."""
        path = self.path / METRICS
        records = [record for _, record in json_files.read_lines(path)] if path.exists() else []
        return [record for record in records if _is_ours(record)]

    def seconds(self, step: int) -> float:
        """How long the run has taken to get to a step."""
        return max((line.get("seconds", 0.0) for line in self.records() if line["step"] <= step), default=0.0)

    def forget_after(self, step: int, validated: int) -> None:
        """Removes metrics of steps after this one, and validations after that one: a resumed run will do them again."""
        kept = [line for line in self.records() if line["step"] <= (validated if "validation" in line else step)]
        self.write(METRICS, "".join(json.dumps(record) + "\n" for record in kept).encode())


def _is_ours(record: Any) -> bool:
    """Whether what is read of a line of the metrics is of the right types."""
    if not isinstance(record, dict) or not _is_count(record.get("step")):
        return False
    scores = record.get("validation", {})
    values = [record.get(name, 0) for name in ("seconds", "episodes", "loss", "main", "auxiliary")]
    return isinstance(scores, dict) and all(map(_is_number, (*values, scores.get("miou", 0))))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def kept_for_good(episodes: int) -> str:
    """The name of the checkpoint after so many episodes."""
    return f"at-{episodes:09d}.safetensors"


def _regions_name(digest: str) -> str:
    return f"regions-{digest[:12]}.safetensors"
