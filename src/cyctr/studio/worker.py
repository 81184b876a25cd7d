"""The one thread that computes: what a user waits for first, then previews, then the job."""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cyctr.errors import CyctrError
from cyctr.inference.segmenter import Segmenter
from cyctr.limits import QUESTIONS
from cyctr.studio.describing import mask_values
from cyctr.studio.events import Events
from cyctr.studio.examples import Examples
from cyctr.studio.finding import store_result
from cyctr.studio.jobs import Jobs
from cyctr.studio.listing import looked_at
from cyctr.studio.masks import Masks
from cyctr.studio.photos import Photos
from cyctr.studio.project import CACHE, FEATURES, Project
from cyctr.studio.refusals import BusyError, GoneError, RefusedError
from cyctr.words import one_line

T = TypeVar("T")


@dataclass(frozen=True)
class Previews:
    """Photos that are to be segmented now.

    Attributes:
        request: its number.
        photos: ids, the first one first.
        class_id: one class, or none for all.
    """

    request: int
    photos: tuple[str, ...]
    class_id: int | None


class Worker:
    """Computes for a project. Requests ask it from their threads."""

    def __init__(
        self,
        project: Project,
        masks: Masks,
        photos: Photos,
        examples: Examples,
        events: Events,
        open_segmenter: Callable[[], Segmenter],
    ) -> None:
        self.jobs = Jobs(project, masks, examples, events)
        self.segmenter: Segmenter | None = None
        self.problem: str | None = None
        self._project, self._masks, self._photos, self._examples, self._events = project, masks, photos, examples, events
        self._open = open_segmenter
        self._numbers = itertools.count(1)
        self._wake = threading.Condition()
        self._questions: deque[tuple[Callable[[Segmenter], Any], Future[Any]]] = deque()
        self._previews: Previews | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="cyctr-studio", daemon=True)

    @property
    def model(self) -> dict[str, Any]:
        """What the page knows of the network."""
        name = self.segmenter.name if self.segmenter else None
        return {"name": name, "ready": self.segmenter is not None, "problem": self.problem}

    def start(self) -> None:
        """Begins to compute; the network is loaded first."""
        self._thread.start()

    def end(self) -> None:
        """Ends after what is being computed; a job that runs goes on when the project is opened again."""
        with self._wake:
            self._ends = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout=60)
        self._refuse_questions("the server has stopped")

    def check(self) -> None:
        """Raises RefusedError where there is no network; one that is still loading is waited for."""
        if self.problem is not None:
            raise RefusedError(self.problem)

    def ask(self, work: Callable[[Segmenter], T]) -> "Future[T]":
        """Computes something as soon as what is being computed is done.

        Raises:
            BusyError: too many others wait.
        """
        future: Future[T] = Future()
        with self._wake:
            self.check()
            if len(self._questions) >= QUESTIONS:
                raise BusyError(f"{len(self._questions)} requests wait for the network; try again in a moment")
            self._questions.append((work, future))
            self._wake.notify()
        return future

    def preview(self, photos: Sequence[str], class_id: int | None) -> int:
        """Segments photos soon; what an earlier request has left is dropped. Returns the number of the request."""
        with self._wake:
            self.check()
            number = next(self._numbers)
            self._previews = Previews(number, tuple(photos), class_id)
            self._wake.notify()
            return number

    def wake(self) -> None:
        """Looks for work, such as a job that has begun."""
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        try:
            segmenter = self._open()
            _warm_up(segmenter)
            segmenter.remember_features(self._project.folder / CACHE / FEATURES)
            self.segmenter = segmenter
        except (CyctrError, OSError) as error:
            with self._wake:
                self.problem = one_line(error)
            self.jobs.stop()  # one that ran when the server ended goes on when there is a network
            self._events.publish("project", {"model": self.model})
            self._events.publish("problem", {"text": self.problem})
            return self._refuse_questions(self.problem)
        self._events.publish("project", {"model": self.model})
        while True:
            with self._wake:
                while not (self._ends or self._questions or self._previews or self.jobs.runs):
                    self.jobs.forget()
                    self._wake.wait()
                if self._ends:
                    return self.jobs.forget()
                question = self._questions.popleft() if self._questions else None
            try:
                self._work(self.segmenter, question)
            except Exception as error:  # the thread goes on, whatever one photo does
                self._events.publish("problem", {"text": f"{type(error).__name__}: {one_line(error)}"})
                self.jobs.stop()

    def _work(self, segmenter: Segmenter, question: tuple[Callable[[Segmenter], Any], "Future[Any]"] | None) -> None:
        if question is not None:
            work, future = question
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(segmenter))
                except BaseException as error:
                    future.set_exception(error)
        elif self._previews is not None:
            self._preview_one(segmenter)
        else:
            self.jobs.step(segmenter)

    def _preview_one(self, segmenter: Segmenter) -> None:
        with self._wake:
            one = self._previews
            if one is None:
                return
            rest = one.photos[1:]
            self._previews = Previews(one.request, rest, one.class_id) if rest else None
        if not one.photos:
            return
        try:
            self._segment(segmenter, one, one.photos[0])
        except GoneError as error:
            self._events.publish("problem", {"text": one_line(error), "photo": one.photos[0]})
        except (CyctrError, OSError) as error:
            self._events.publish("problem", {"text": one_line(error), "photo": one.photos[0], "request": one.request})
        finally:
            self._events.publish("previewed", {"photo": one.photos[0], "request": one.request})

    def _segment(self, segmenter: Segmenter, previews: Previews, photo_id: str) -> None:
        supports = self._examples.supports(segmenter, lambda text: self._events.publish("problem", {"text": text}))
        wanted = {str(number): one for number, one in supports.items() if previews.class_id in (None, number)}
        if not wanted:
            return
        photo = looked_at(self._project, self._project.store.photo(photo_id))
        if photo.state == "accepted":
            return
        options = self._project.settings.options()
        (result,) = segmenter.segment_many([self._photos.pixels(photo)], wanted, **vars(options))
        for one in store_result(self._project, self._masks, photo, result, compare=False):
            about = {"photo": photo.id, "class": one.mask.class_id, "request": previews.request}
            self._events.publish("preview", about | mask_values(one.mask))

    def _refuse_questions(self, why: str) -> None:
        with self._wake:
            waiting, self._questions = list(self._questions), deque()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(RefusedError(why))


def _warm_up(segmenter: Segmenter) -> None:
    """Computes an answer that nobody asked for: the first one takes longer, and no user should wait for that."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    mask = np.zeros((64, 64), np.bool_)
    mask[16:48, 16:48] = True
    segmenter.segment(pixels, segmenter.encode_support(pixels, mask, name="nothing"))
