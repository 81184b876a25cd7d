"""What a local server owes its user: who may ask, from where, and how much at a time.

Any page that is open in the browser can send requests to a server of this machine. So each request is checked before
anything else: the host it names, the token it brings, and the page it comes from.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cyctr.limits import REQUEST_BYTES
from cyctr.studio.refusals import TooLargeError

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer; one that says something else about being kept keeps that."""
_SAFE = ("GET", "HEAD")
_LONGEST_PATH = 200  # characters: ids and numbers are short
_ENTER = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>cyctr studio</title>'


def new_token() -> str:
    """A secret that nobody can guess."""
    return secrets.token_urlsafe(32)


class Guard:
    """Lets only the user's own page and scripts through to an app.

    Args:
        app: what is guarded.
        token: the secret that a request must bring.
        port: that the server listens on.
        host: that the server was told to listen on, if that is not this machine only.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, host: str = "127.0.0.1") -> None:
        self._app, self._token, self._port, self._host = app, token, port, host
        self.cookie = f"cyctr-studio-{port}"  # browsers do not tell the ports of a host apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # web sockets: there are none
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that does not get through."""
        headers = Headers(scope=scope)
        if len(scope["path"]) > _LONGEST_PATH:
            return _refused(414, f"the path has {len(scope['path']):,} characters; expected at most {_LONGEST_PATH}")
        if not self._is_own(headers.get("host", "")):
            return _refused(403, "this server answers to the address it printed only")
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin, headers["host"]):
            return _refused(403, "the request comes from another page")
        request = HTTPConnection(scope)
        given = request.query_params.get("token")
        if scope["path"] == "/" and given is not None and scope["method"] == "GET":
            return (
                self._entered() if self._is_token(given) else _refused(401, "the token is another; use the address it printed")
            )
        if not self._is_token(request.cookies.get(self.cookie, "")):
            kind, _, value = headers.get("authorization", "").partition(" ")
            if kind.lower() not in ("token", "bearer") or not self._is_token(value):
                return _refused(401, "there is no token; open the address that cyctr studio printed")
        if scope["method"] not in _SAFE and headers.get("x-cyctr") != "1":
            return _refused(403, "the header X-Cyctr is missing; expected 1")
        return None

    def _entered(self) -> Response:
        """Gives the cookie, and leads to the page. A redirect from a file would lose the cookie, which is Strict."""
        response = HTMLResponse(_ENTER)
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="strict", path="/")
        return response

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _is_own_origin(self, origin: str, host: str) -> bool:
        return origin == f"http://{host}"

    def _is_own(self, host: str) -> bool:
        """Whether a Host names this server."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None or parts.username is not None or parts.path or (port or 80) != self._port:
            return False
        if name == "localhost" or name == self._host:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or ipaddress.ip_address(self._listens()).is_unspecified

    def _listens(self) -> str:
        try:
            return str(ipaddress.ip_address(self._host))
        except ValueError:
            return "127.0.0.1"


async def body_of(request: Request, most: int = REQUEST_BYTES) -> bytes:
    """The bytes of a request, counted as they come: what it says of its length may be a lie.

    Raises:
        TooLargeError: there are more.
    """
    parts: list[bytes] = []
    count = 0
    async for part in request.stream():
        count += len(part)
        if count > most:
            raise TooLargeError(f"the request has more than {most:,} bytes; send less at a time")
        parts.append(part)
    return b"".join(parts)


def _refused(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)
