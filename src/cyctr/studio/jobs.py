"""The job that segments all photos: photo by photo, with stop and continue; what it has done is noted with each photo."""

import json
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from cyctr import json_files
from cyctr.errors import CyctrError, DataError
from cyctr.inference.result import ImageResult
from cyctr.inference.segmenter import Segmenter
from cyctr.studio.describing import photo_values
from cyctr.studio.events import Events
from cyctr.studio.examples import Examples
from cyctr.studio.finding import store_result
from cyctr.studio.listing import looked_at, path_of
from cyctr.studio.masks import Masks
from cyctr.studio.project import CACHE, Project
from cyctr.studio.records import Photo, State
from cyctr.studio.refusals import GoneError, RefusedError
from cyctr.words import one_line

SCOPES: dict[str, tuple[State, ...]] = {"open": ("open",), "all not accepted": ("open", "rejected")}
_RECENT = 30  # photos from whose times the rate is told
_NOTE = "job"


@dataclass(frozen=True)
class Status:
    """How far a job is.

    Attributes:
        id: grows with every job.
        state: what it does.
        only: which photos, a key of `SCOPES`.
        done: photos.
        total: photos.
        changed: masks that differ from those before it.
        rate: photos a second, lately.
        seconds_left: at that rate.
        problem: why it failed.
    """

    id: int
    state: Literal["running", "stopped", "finished", "failed"]
    only: str
    done: int
    total: int
    changed: int = 0
    rate: float | None = None
    seconds_left: float | None = None
    problem: str | None = None


class Jobs:
    """The job of a project. Requests begin and stop it; the worker's thread takes its steps."""

    def __init__(self, project: Project, masks: Masks, examples: Examples, events: Events) -> None:
        self._project, self._masks, self._examples, self._events = project, masks, examples, events
        self._lock = threading.RLock()
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._results: Iterator[ImageResult] | None = None
        self._given: list[Photo] = []
        self._made_with: tuple[object, ...] = ()
        self.status = self._resumed()

    @property
    def runs(self) -> bool:
        """Whether there is a step to take."""
        return self.status is not None and self.status.state == "running"

    def begin(self, only: str) -> Status:
        """A new job; one that was stopped and had the same photos goes on."""
        if only not in SCOPES:
            raise RefusedError(f"only is {only!r:.40}; expected {' or '.join(SCOPES)}")
        with self._lock:
            if self.status is not None and self.status.state == "running":
                return self.status
            if not any(count["examples"] for count in self._project.store.class_counts().values()):
                raise RefusedError("no class has an example; paint one, and use it as an example")
            before = self.status
            if before is not None and before.state == "stopped" and before.only == only:
                return self._set(replace(before, state="running", rate=None, seconds_left=None))
            self._project.store.clear_changes()
            shutil.rmtree(self._project.folder / CACHE / "before", ignore_errors=True)
            number = 1 + (0 if before is None else before.id)
            return self._set(Status(number, "running", only, 0, len(self._project.store.todo(number, SCOPES[only]))))

    def stop(self) -> Status | None:
        """Stops the job after the photo that it is at."""
        with self._lock:
            if self.status is not None and self.status.state == "running":
                self._set(replace(self.status, state="stopped", rate=None, seconds_left=None))
            return self.status

    def step(self, segmenter: Segmenter) -> None:
        """Does one photo."""
        started = time.monotonic()
        try:
            result = self._next(segmenter)
        except CyctrError as error:
            with self._lock:
                if self.runs and self.status is not None:
                    self._set(replace(self.status, state="failed", problem=one_line(error)))
            self.forget()
            return None
        with self._lock:
            if not self.runs or self.status is None:
                return self.forget()
            if result is None:
                self._set(replace(self.status, state="finished", rate=None, seconds_left=None))
                return self.forget()
        self._keep(self._given[result.place], result)
        self._times.append(time.monotonic() - started)
        return None

    def forget(self) -> None:
        """Lets go of photos that were read ahead."""
        self._results, self._given, self._made_with = None, [], ()

    def _next(self, segmenter: Segmenter) -> ImageResult | None:
        supports = self._examples.supports(segmenter, self._complain)
        options = self._project.settings.options()
        made_with = (options, *supports.values())
        if (
            self._results is None
            or len(made_with) != len(self._made_with)
            or any(one is not other and one != other for one, other in zip(made_with, self._made_with, strict=True))
        ):
            if not supports:
                raise DataError("no class has an example any more; paint one, and begin again")
            self.forget()
            self._made_with = made_with
            named = {str(number): support for number, support in supports.items()}
            paths = self._paths()
            self._results = segmenter.segment_many(paths, named, batch=1, complain=self._unreadable, **vars(options))
        return next(self._results, None)

    def _paths(self) -> Iterator[Path]:
        """The files that are still to do, each looked at just before it is read."""
        assert self.status is not None
        for photo in self._project.store.todo(self.status.id, SCOPES[self.status.only]):
            try:
                photo = self._as_it_is(photo)
            except GoneError:
                self._done(photo, 0)
                continue
            if photo.problem is not None:
                self._done(photo, 0)
                continue
            self._given.append(photo)
            yield path_of(self._project, photo)

    def _as_it_is(self, photo: Photo) -> Photo:
        try:
            return looked_at(self._project, photo)
        except GoneError:  # replaced by another file, which is done in its place, or really gone
            return looked_at(self._project, self._project.store.photo(photo.id))

    def _unreadable(self, place: int, error: DataError) -> None:
        photo = self._given[place]
        self._project.store.update(photo.id, problem=one_line(error))
        self._complain(one_line(error))
        self._done(photo, 0)

    def _keep(self, photo: Photo, result: ImageResult) -> None:
        try:
            stored = store_result(self._project, self._masks, photo, result, compare=True)
        except (CyctrError, OSError) as error:  # such as a full disk: the photo is done again
            with self._lock:
                if self.status is not None:
                    self._set(replace(self.status, state="stopped", problem=one_line(error)))
            return self.forget()
        self._done(photo, sum(one.changed for one in stored))
        now = self._project.store.photo(photo.id)
        self._events.publish("photo", photo_values(self._project, [now])[0])
        return None

    def _done(self, photo: Photo, changed: int) -> None:
        with self._lock:
            assert self.status is not None
            self._project.store.update(photo.id, run=self.status.id)
            done = self.status.done + 1
            spent = sum(self._times)
            rate = round(len(self._times) / spent, 3) if spent else None
            total = max(self.status.total, done)
            left = round((total - done) / rate, 1) if rate else None
            now = replace(self.status, done=done, total=total, changed=self.status.changed + changed)
            self._set(replace(now, rate=rate, seconds_left=left) if now.state == "running" else now)

    def _set(self, status: Status) -> Status:
        self.status = status
        self._project.store.keep(_NOTE, json.dumps(asdict(status)))
        self._events.publish("job", asdict(status))
        return status

    def _complain(self, problem: str) -> None:
        self._events.publish("problem", {"text": problem})

    def _resumed(self) -> Status | None:
        """The last job, as far as the photos say that it came."""
        status = _noted(self._project.store.note(_NOTE))
        if status is None:
            return None
        if status.state != "running":
            return status
        left = len(self._project.store.todo(status.id, SCOPES[status.only]))
        return replace(status, done=status.total - left if status.total >= left else 0, rate=None, seconds_left=None)


def _noted(text: str | None) -> Status | None:
    """The job of a note; none where there is no note, or it is damaged: what was done is known of each photo."""
    try:
        about = json_files.parse_object(text or "")
    except ValueError:
        return None
    match about:
        case {
            "state": "running" | "stopped" | "finished" | "failed" as state,
            "only": str(only),
            "id": int(number),
            "done": int(done),
            "total": int(total),
            "changed": int(changed),
        } if only in SCOPES and all(type(one) is int and 0 <= one < 2**31 for one in (number, done, total, changed)):
            problem = about.get("problem")
            return Status(number, state, only, done, total, changed, problem=problem if isinstance(problem, str) else None)
    return None
