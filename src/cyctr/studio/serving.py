"""Starts the server: opens the project, binds an address, says where it is, and opens the browser."""

import os
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cyctr.errors import ConfigError, DataError
from cyctr.inference.segmenter import Segmenter
from cyctr.storage import alone
from cyctr.studio import routes_clicks, routes_photos, routes_project
from cyctr.studio.events import Events
from cyctr.studio.examples import Examples
from cyctr.studio.importing import begin_project
from cyctr.studio.listing import list_photos
from cyctr.studio.masks import Masks
from cyctr.studio.photos import Photos
from cyctr.studio.project import LOCK, NAME, Project, open_project
from cyctr.studio.sam import Sam
from cyctr.studio.security import Guard, new_token
from cyctr.studio.web import Studio
from cyctr.studio.worker import Worker
from cyctr.words import counted

STATIC = Path(__file__).parent / "static"
_PATIENCE = 0.5  # seconds until the server answers, and a browser may be opened
_SECONDS_FOR_PAGES = 2  # to end their connections in, when the server stops
Say = Callable[[str], None]


@contextmanager
def opened(folder: Path, place: Path | None, open_segmenter: Callable[[], Segmenter]) -> Iterator[Studio]:
    """The parts of a server for a folder of photos; its project is open to this process only.

    Args:
        folder: of photos.
        place: the project's folder, by default within that of the photos.
        open_segmenter: makes the network ready; called in the thread that computes.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: {'is a file' if folder.exists() else 'no such folder'}; expected a folder of photos")
    own = place if place is not None else folder if (folder / "project.json").is_file() else folder / NAME
    with alone(own / LOCK, own, "close the other one"):
        project = open_project(folder, place, begin_project)
        try:
            yield _parts(project, open_segmenter)
        finally:
            project.close()


def application(studio: Studio, token: str, port: int, host: str = "127.0.0.1") -> Guard:
    """The app that answers requests for a project."""

    def page(request: Request) -> FileResponse:
        return FileResponse(STATIC / "index.html")

    routes = [
        Route("/", page),
        *routes_photos.ROUTES,
        *routes_clicks.ROUTES,
        *routes_project.ROUTES,
        Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _plain_error})
    app.state.studio = studio
    return Guard(app, token, port, host)


def _plain_error(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = error.detail if isinstance(error, HTTPException) else "it failed"
    return JSONResponse({"error": f"{request.url.path!r:.60}: {text}; load the page again"}, status)


def serve(
    folder: Path,
    place: Path | None,
    open_segmenter: Callable[[], Segmenter],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    say: Say = lambda text: None,
) -> None:
    """Serves a folder of photos until it is interrupted.

    Args:
        folder: of photos.
        place: the project's folder, by default within that of the photos.
        open_segmenter: makes the network ready.
        host: address to listen on.
        port: to listen on; 0 takes a free one.
        browser: open the page in a browser.
        say: told lines for the user.

    Raises:
        ConfigError: the address cannot be listened on.
        DataError: the folder or the project cannot be opened.
    """
    with _bound(host, port) as listener, opened(folder, place, open_segmenter) as studio:
        number = listener.getsockname()[1]
        token = new_token()
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{number}/?token={token}"
        if not _is_loopback(host):
            say(f"warning: {host} can be reached from other machines; whoever has the token can see and change the project")
        for problem in studio.project.problems[:5]:
            say(f"note: {problem}")
        count = studio.project.store.counts()["photos"]
        say(f"{counted(count, 'photo')} in {studio.project.photos}; the project is in {studio.project.folder}")
        say(f"open {address}")
        say("stop with Ctrl-C; everything that the page calls saved is on disk")
        config = uvicorn.Config(
            application(studio, token, number, host),
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_SECONDS_FOR_PAGES,
            server_header=False,
            timeout_keep_alive=60,
            limit_concurrency=256,
        )
        server = _Server(config, studio.events)
        studio.worker.start()
        try:
            with _launched(address if browser else None, say):
                server.run(sockets=[listener])
        finally:
            studio.worker.end()
        say("stopped")


class _Server(uvicorn.Server):
    """Ends the events of open pages when it stops, for which it would wait, and does not pass the signal on."""

    def __init__(self, config: uvicorn.Config, events: Events) -> None:
        super().__init__(config)
        self._events = events

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begins to stop; the second time without waiting for anybody."""
        self._events.end()
        self.force_exit = self.should_exit
        self.should_exit = True


def _parts(project: Project, open_segmenter: Callable[[], Segmenter]) -> Studio:
    """Everything that works on a project, which is put in order first."""
    if not project.is_new:  # whose photos were listed as it began
        list_photos(project)
    events, masks, photos = Events(), Masks(project), Photos(project)
    examples = Examples(project, masks)
    masks.heal()
    examples.heal()
    worker = Worker(project, masks, photos, examples, events, open_segmenter)
    return Studio(project, masks, photos, examples, events, worker, Sam(events))


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(kind, socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"the address {host!r} is not one of this machine ({error}); choose another", "host") from error
    with listener:
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
            listener.listen(128)
        except OSError as error:
            reason = "is in use" if error.errno in (98, 48, 10048) else f"cannot be listened on ({error.strerror})"
            raise ConfigError(f"port {port} of {host} {reason}; choose another, or 0 for any that is free", "port") from error
        yield listener


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


@contextmanager
def _launched(address: str | None, say: Say) -> Iterator[None]:
    """Opens the page by a file that only this user can read: a command line, which all can read, does not have the token."""
    if address is None:
        yield
        return
    handle, name = tempfile.mkstemp(".html", "cyctr-studio-")  # mode 0600
    with os.fdopen(handle, "w") as file:
        target = escape(address, quote=True)
        file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">')
    timer = threading.Timer(_PATIENCE, _open_browser, (Path(name).as_uri(), say))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with suppress(OSError):
            os.unlink(name)


def _open_browser(address: str, say: Say) -> None:
    try:
        if webbrowser.open(address):
            return
    except webbrowser.Error:
        pass
    say("no browser could be opened; open the address above in one")
