"""What happens, told to every open page as it happens (server-sent events)."""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

from cyctr.limits import PAGES
from cyctr.studio.refusals import BusyError

_MOST_WAITING = 1_000  # events for a page that does not read them; it begins again then
_SILENCE = 15.0  # seconds, after which a comment keeps the connection


class Events:
    """Tells pages. Any thread may publish."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pages: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Queue[bytes | None]]] = {}

    def publish(self, kind: str, data: Any) -> None:
        """Tells all pages of an event."""
        with self._lock:
            number = next(self._numbers)
            message = f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
            pages = list(self._pages.items())
        for page, (loop, queue) in pages:
            try:
                loop.call_soon_threadsafe(self._put, page, queue, message)
            except RuntimeError:  # its loop has ended
                self._leave(page)

    def join(self) -> AsyncIterator[bytes]:
        """The events from now on, as they are sent; call it in the event loop of the page.

        Raises:
            BusyError: too many pages are open.
        """
        with self._lock:
            if len(self._pages) >= PAGES:
                raise BusyError(f"{len(self._pages)} pages are open; close one")
            queue: asyncio.Queue[bytes | None] = asyncio.Queue()
            page = next(self._numbers)
            self._pages[page] = (asyncio.get_running_loop(), queue)
        return self._read(page, queue)

    def end(self) -> None:
        """Ends the events of all pages, so that the server can stop."""
        with self._lock:
            pages = list(self._pages.values())
        for loop, queue in pages:
            try:
                loop.call_soon_threadsafe(queue.put_nowait, None)
            except RuntimeError:
                continue

    async def _read(self, page: int, queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 1000\n: welcome\n\n"
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), _SILENCE)
                except TimeoutError:
                    message = b": still here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._leave(page)

    def _put(self, page: int, queue: asyncio.Queue[bytes | None], message: bytes) -> None:
        if queue.qsize() < _MOST_WAITING:
            queue.put_nowait(message)
        elif page in self._pages:  # it asks for a fresh state when it comes back
            self._leave(page)
            queue.put_nowait(None)

    def _leave(self, page: int) -> None:
        with self._lock:
            self._pages.pop(page, None)
