"""The demonstration: photographs that installed packages bring along, segmented by a few labelled ones, on one page."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cyctr.datasets.gallery import Scene, scenes
from cyctr.errors import DataError
from cyctr.evaluation.metrics import Counts, count
from cyctr.inference.explanation import explain
from cyctr.inference.result import Segmentation
from cyctr.inference.segmenter import Segmenter
from cyctr.storage import write_atomically
from cyctr.types import Pixels
from cyctr.visual.contact import Block, contact_sheet, tile
from cyctr.visual.draw import BLUE, GREEN, RED
from cyctr.visual.page import Section, page

_SIDE = 230
_TITLE = "cyctr: a few labelled, the rest segmented"
_LEAD = (
    "Each class was shown to the network by a few labelled crops (red) and looked for in other crops (green; truth blue). "
    "It has never seen these classes, and nothing was trained."
)
_NOTE = (
    "Supports and queries of a scene are crops of one photograph, so that this is easier than real use. "
    "In a cycle map, red and blue tokens of the first support come back from the query to their own class; grey ones do not."
)


@dataclass(frozen=True, eq=False)
class Shown:
    """One scene and what was found in it.

    Attributes:
        scene: with the truth.
        found: for each query.
        cycles: for each query, a picture of the first support.
        seconds: for the supports, and for each query.
    """

    scene: Scene
    found: tuple[Segmentation, ...]
    cycles: tuple[Pixels, ...]
    seconds: tuple[float, float]

    @property
    def iou(self) -> float:
        """Of all queries together."""
        pairs = zip(self.scene.queries, self.found, strict=True)
        return sum((_counts(query.label, one) for query, one in pairs), start=Counts()).iou


def show(segmenter: Segmenter, on_scene: Callable[[int, int], None] = lambda done, total: None) -> list[Shown]:
    """Segments every scene of the gallery.

    Args:
        segmenter: which network.
        on_scene: told how many scenes are done, of how many.
    """
    every, shown = scenes(), []
    for number, scene in enumerate(every):
        on_scene(number, len(every))
        start = time.perf_counter()
        support = segmenter.encode_support(
            [shot.image for shot in scene.supports], [shot.label for shot in scene.supports], name=scene.name, class_id=1
        )
        encoded = time.perf_counter()
        results = segmenter.segment_many([query.image for query in scene.queries], support)
        found = tuple(result.classes[scene.name] for result in results)
        each = (time.perf_counter() - encoded) / len(found)
        cycles = tuple(explain(segmenter, query.image, support).lines[1][1].pixels for query in scene.queries)
        shown.append(Shown(scene, found, cycles, (encoded - start, each)))
    on_scene(len(every), len(every))
    return shown


def table(shown: Sequence[Shown]) -> list[list[str]]:
    """Rows of cells, the first of them headings, the last the mean."""
    rows = [["class", "labelled", "images", "IoU", "s per image"]]
    for one in shown:
        counts = (str(len(one.scene.supports)), str(len(one.scene.queries)))
        rows.append([one.scene.title, *counts, f"{100 * one.iou:.1f}", f"{one.seconds[1]:.2f}"])
    mean = sum(one.iou for one in shown) / len(shown)
    return [*rows, ["mean", "", "", f"{100 * mean:.1f}", f"{sum(one.seconds[1] for one in shown) / len(shown):.2f}"]]


def write_page(path: Path, shown: Sequence[Shown], name: str) -> None:
    """Writes the page of it, pictures inside; what is there is replaced."""
    sections = [Section(f"{one.scene.title}: IoU {100 * one.iou:.0f} %", _words(one), _blocks(one)) for one in shown]
    try:
        write_atomically(path, page(f"{_TITLE} ({name})", f"{_LEAD} {_NOTE}", [table(shown)], sections).encode())
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another place", "output") from error


def is_page(path: Path) -> bool:
    """Whether `write_page` has written a file."""
    try:
        return path.is_file() and f"<title>{_TITLE}".encode() in path.read_bytes()
    except OSError:
        return False


def draw_sheet(shown: Sequence[Shown], title: str, footer: str, across: int = 6) -> Pixels:
    """For each scene the first support and the first query with what was found, on one picture."""
    blocks = [
        Block(
            (_support(one, 0), _found(one, 0)),
            f"{one.scene.title}: IoU {100 * one.iou:.0f} %, {len(one.scene.supports)} labelled",
        )
        for one in shown
    ]
    return np.asarray(contact_sheet(blocks, title, footer, across))


def _words(one: Shown) -> str:
    return f"Photograph: {one.scene.source} ({one.scene.licence})."


def _blocks(one: Shown) -> list[Block]:
    labelled = Block(tuple(_support(one, place) for place in range(len(one.scene.supports))), "labelled by hand")
    answers = [
        Block((_truth(one, place), _found(one, place), tile(one.cycles[place], None, _SIDE)), _caption(one, place))
        for place in range(len(one.found))
    ]
    return [labelled, *answers]


def _caption(one: Shown, place: int) -> str:
    iou = 100 * _counts(one.scene.queries[place].label, one.found[place]).iou
    return (
        f"truth, what was found (IoU {iou:.0f} %, confidence {one.found[place].confidence:.2f}), cycle map of the first support"
    )


def _support(one: Shown, place: int) -> Pixels:
    shot = one.scene.supports[place]
    return tile(shot.image, shot.label == 1, _SIDE, RED)


def _truth(one: Shown, place: int) -> Pixels:
    shot = one.scene.queries[place]
    return tile(shot.image, shot.label == 1, _SIDE, BLUE)


def _found(one: Shown, place: int) -> Pixels:
    return tile(one.found[place].image, one.found[place].mask, _SIDE, GREEN)


def _counts(label: Pixels, found: Segmentation) -> Counts:
    return count(torch.from_numpy(found.mask), torch.from_numpy(label))
