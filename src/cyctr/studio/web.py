"""Requests -> calls: values checked, work done beside the event loop, errors as one line of JSON."""

import asyncio
import inspect
import json
import math
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cyctr import json_files
from cyctr.errors import CyctrError
from cyctr.limits import REQUEST_JSON_BYTES
from cyctr.studio.describing import photo_values
from cyctr.studio.events import Events
from cyctr.studio.examples import Examples
from cyctr.studio.masks import Masks
from cyctr.studio.photos import Photos
from cyctr.studio.project import Project
from cyctr.studio.records import Photo
from cyctr.studio.refusals import FullError, RefusedError
from cyctr.studio.sam import Sam
from cyctr.studio.security import body_of
from cyctr.studio.worker import Worker
from cyctr.words import one_line

T = TypeVar("T")
_LOOKS = 0.1  # seconds between two looks at whether a page still waits


@dataclass(frozen=True)
class Studio:
    """The parts of a running server.

    Attributes:
        project: that is open.
        masks: of it.
        photos: of it.
        examples: of it.
        events: that pages are told of.
        worker: what computes.
        sam: the other network for clicks.
        exporting: held while an export is written.
    """

    project: Project
    masks: Masks
    photos: Photos
    examples: Examples
    events: Events
    worker: Worker
    sam: Sam
    exporting: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Call:
    """One request, its body read.

    Attributes:
        studio: the server's parts.
        request: of Starlette.
        body: its bytes.
    """

    studio: Studio
    request: Request
    body: bytes

    @property
    def photo(self) -> Photo:
        """The photo that the path names."""
        return self.studio.project.store.photo(self.request.path_params["photo"])

    @property
    def class_id(self) -> int:
        """The class that the path names."""
        return self.studio.project.class_of(self.request.path_params["class_id"]).id

    def values(self) -> dict[str, Any]:
        """The JSON object of the body."""
        try:
            values = json_files.parse_object(self.body or b"{}")
            json.dumps(values, ensure_ascii=False).encode()  # half a character is no text: no table and no answer could hold it
        except ValueError as error:
            raise RefusedError(f"the request is not as expected ({error!s:.100}); expected a JSON object") from error
        return values

    def text(self, name: str) -> str | None:
        """A word of the query, if it is there."""
        value = self.request.query_params.get(name)
        return value if value else None

    def whole(self, name: str, default: int | None = None, least: int = 0, most: int = 2**31) -> int:
        """A whole number of the query."""
        text = self.request.query_params.get(name)
        if text is None and default is not None:
            return default
        if text is None or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
            raise RefusedError(f"{name} is {text!r:.40}; expected a whole number from {least} to {most}")
        return int(text)

    def share(self, name: str) -> float | None:
        """A number from 0 to 1 of the query, if it is there."""
        text = self.text(name)
        return None if text is None else number({name: text}, name, 0, 1)


def number(values: Mapping[str, Any], name: str, least: float, most: float) -> float:
    """A number among values."""
    value = values.get(name)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        found = float(value)
    except (ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most:
        raise RefusedError(f"{name} is {value!r:.40}; expected a number from {least:g} to {most:g}")
    return found


def flag(values: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    """True or false among values."""
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(f"{name} is {value!r:.40}; expected true or false")
    return value


def known_class(studio: Studio, value: object) -> int:
    """The id of a class among values."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(f"class is {value!r:.40}; expected the id of a class")
    return studio.project.class_of(value).id


Returned = Response | dict[str, Any] | list[Any] | None


def route(
    path: str, method: str, handle: Callable[[Call], "Returned | Awaitable[Returned]"], most: int = REQUEST_JSON_BYTES
) -> Route:
    """A route whose handler is called beside the event loop; an async one, in it."""

    async def endpoint(request: Request) -> Response:
        studio: Studio = request.app.state.studio
        try:
            body = b"" if method == "GET" else await body_of(request, most)
            call = Call(studio, request, body)
            if inspect.iscoroutinefunction(handle):
                found = await handle(call)
            else:
                found = await run_in_threadpool(handle, call)
        except ClientDisconnect:
            return Response(status_code=400)
        except RefusedError as error:
            return JSONResponse({"error": one_line(error), **error.more}, error.status)
        except CyctrError as error:
            return JSONResponse({"error": one_line(error)}, FullError.status if isinstance(error.__cause__, OSError) else 400)
        except (OSError, sqlite3.Error) as error:
            return JSONResponse({"error": f"cannot be read or written ({one_line(error)})"}, FullError.status)
        return found if isinstance(found, Response) else JSONResponse(found)

    return Route(path, endpoint, methods=[method])


async def answered(call: Call, future: "Future[T]") -> T:
    """What the worker computes, without holding a thread meanwhile; it is not begun for a page that has stopped waiting."""
    waiting = asyncio.wrap_future(future)
    while not waiting.done():
        await asyncio.wait([waiting], timeout=_LOOKS)
        if not waiting.done() and await call.request.is_disconnected():
            waiting.cancel()
            raise ClientDisconnect
    return waiting.result()


def tell_of_photo(studio: Studio, photo_id: str) -> dict[str, Any]:
    """What the page knows of a photo now; all pages are told."""
    (values,) = photo_values(studio.project, [studio.project.store.photo(photo_id)])
    studio.events.publish("photo", values)
    return values
