"""A labelled image that a folder names: its file, and what marks the class in it."""

from dataclasses import dataclass
from pathlib import Path

from cyctr.inference.shapes import Box, Polygons


@dataclass(frozen=True)
class Labelled:
    """A support image of one class, not read yet.

    Attributes:
        image: its file.
        mask: what marks the class in it, for `to_label`.
        class_id: the value of the class in the mask, for `to_label`.
    """

    image: Path
    mask: Path | Polygons | Box
    class_id: int | None


ByClass = dict[str, list[Labelled]]
