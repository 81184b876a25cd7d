"""What the server says no to: an error in one line, with the status that tells the page what to do."""

from typing import Any

from cyctr.errors import CyctrError


class RefusedError(CyctrError):
    """A request that is not done.

    Attributes:
        status: of HTTP.
        more: further values for the page, such as the revision that a mask has.
    """

    status = 400

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more


class UnknownError(RefusedError):
    """There is no photo or class of that id."""

    status = 404


class StaleError(RefusedError):
    """The mask was changed since the page has read it."""

    status = 409


class GoneError(RefusedError):
    """The photo is no longer there, or another one has taken its place."""

    status = 410


class TooLargeError(RefusedError):
    """More bytes or pixels than are taken."""

    status = 413


class BusyError(RefusedError):
    """As many jobs are waiting as may wait."""

    status = 429


class FullError(RefusedError):
    """The disk takes no more; nothing was changed."""

    status = 507
