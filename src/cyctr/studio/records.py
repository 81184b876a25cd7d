"""What is known of a photo and of a mask, and which photos a list asks for."""

from dataclasses import dataclass
from typing import Literal

from cyctr.studio.refusals import RefusedError

State = Literal["open", "accepted", "rejected"]
Origin = Literal["person", "found"]
STATES: tuple[State, ...] = ("open", "accepted", "rejected")
SORTS = ("name", "confidence", "changed")


@dataclass(frozen=True)
class Photo:
    """A photo of the folder.

    Attributes:
        id: what the page calls it.
        path: relative to the folder, as the file system has it.
        name: the same as text.
        key: a relative name without ending, which no other photo has; exports use it.
        file: the name of its masks, without ending.
        stamp: bytes and time of the file when it was last looked at; none before.
        size: (height, width) upright; (0, 0) while it is unknown.
        state: whether somebody has looked at it.
        example: whether its masks are examples.
        problem: why it cannot be read, if so.
        gone: whether it has left the folder.
        run: the last job that did it.
    """

    id: str
    path: bytes
    name: str
    key: str
    file: str
    stamp: tuple[int, int] | None
    size: tuple[int, int]
    state: State
    example: bool
    problem: str | None
    gone: bool
    run: int


@dataclass(frozen=True)
class Mask:
    """What is known of the mask of a class in a photo.

    Attributes:
        photo: its id.
        class_id: the class.
        origin: who made it.
        revision: grows with every write of the project.
        confidence: of what the network has found.
        area: marked pixels.
        changed: nanoseconds since 1970, those of its file.
    """

    photo: str
    class_id: int
    origin: Origin
    revision: int
    confidence: float | None
    area: int
    changed: int


@dataclass(frozen=True)
class Filter:
    """Which photos are listed, and in which order.

    Attributes:
        sort: one of `SORTS`; "confidence" begins with the least certain.
        state: of all of them.
        class_id: the class whose confidence counts; those without a mask of it are left out.
        least: confidence of the least certain mask.
        most: likewise.
        examples: examples only, or no examples.
    """

    sort: str = "name"
    state: str | None = None
    class_id: int | None = None
    least: float | None = None
    most: float | None = None
    examples: bool | None = None

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise RefusedError(f"sort is {self.sort!r:.40}; expected {', '.join(SORTS)}")
        if self.state is not None and self.state not in STATES:
            raise RefusedError(f"state is {self.state!r:.40}; expected {', '.join(STATES)}")
