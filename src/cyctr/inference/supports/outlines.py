"""JSON of LabelMe and of COCO -> the outlines in it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr import json_files
from cyctr.datasets.coco_json import MarkedImage, shapes_of
from cyctr.errors import DataError
from cyctr.images.imaging import image_size
from cyctr.inference.shapes import Box, Polygons
from cyctr.limits import RUNS

Outline = tuple[tuple[float, float], ...]

_MEANINGLESS = ("__ignore__", "_background_")  # labels of LabelMe that are no class
_COCO = ("images", "annotations", "categories")


def read_documents(places: Sequence[Path], problems: list[str] | None) -> dict[Path, dict[str, Any]]:
    """The JSON files in some folders that are COCO's or LabelMe's; without `problems` others are passed over in silence."""
    documents: dict[Path, dict[str, Any]] = {}
    for path in [path for place in places for path in visible_files(place) if path.suffix.lower() == ".json"]:
        try:
            document = json_files.read(path)
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        except ValueError as error:
            reason = f"is not JSON ({str(error)[:100]})"
        else:
            if isinstance(document, dict) and (is_coco(document) or isinstance(document.get("shapes"), list)):
                document.pop("imageData", None)  # a copy of the photo in JSON of LabelMe, which nobody reads
                documents[path] = document
                continue
            reason = "is JSON of another kind"
        if problems is not None:
            problems.append(f"{path}: {reason}; expected one of COCO or of LabelMe: export it again, or remove it")
    return documents


def is_coco(document: Mapping[str, Any]) -> bool:
    """Whether a document has the three lists that make it COCO's."""
    return all(isinstance(document.get(part), list) for part in _COCO)


def visible_files(folder: Path) -> list[Path]:
    """The files that lie in a folder, sorted; hidden ones are passed over."""
    try:
        return sorted(
            (path for path in folder.iterdir() if path.name[0] != "." and not path.is_dir()), key=lambda path: path.name
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); expected a folder you may read") from error


def labelme_shapes(
    path: Path, image: Path, document: Mapping[str, Any], problems: list[str]
) -> list[tuple[str, Box | Polygons]]:
    """Label and outline of each shape in a JSON of LabelMe."""
    height, width = document.get("imageHeight"), document.get("imageWidth")
    if type(height) is int and type(width) is int and not _fits(image, (height, width), f"{path.name} says", problems):
        return []
    shapes: list[tuple[str, Box | Polygons]] = []
    for number, shape in enumerate(document["shapes"]):
        try:
            shapes.append(_shape(shape))
        except DataError as error:
            problems.append(f"{path}: shape {number}: {error}")
    if not document["shapes"]:
        problems.append(f"{path}: holds no shape; outline an object, or remove the JSON")
    return shapes


def _shape(shape: Any) -> tuple[str, Box | Polygons]:
    if not isinstance(shape, dict):
        raise DataError(f"is {shape!r:.40}; expected an object with label and points")
    label, points, kind = shape.get("label"), shape.get("points"), shape.get("shape_type") or "polygon"
    if not isinstance(label, str) or not label.strip():
        raise DataError(f"has the label {label!r:.40}; expected the name of a class")
    if label in _MEANINGLESS:
        raise DataError(f"is labelled {label}, which is no class; it counts as background")
    if kind not in ("polygon", "rectangle"):
        raise DataError(f"is a {kind!s:.40}; expected a polygon or a rectangle: outline the object with one")
    if not isinstance(points, list):
        raise DataError(f"has the points {points!r:.40}; expected a list of x, y")
    if kind == "polygon":
        return label.strip(), Polygons((points,))  # type: ignore[arg-type]  # it checks them
    corners = Polygons(([*points, points[0]] if len(points) == 2 else points,)).contours[0]  # type: ignore[arg-type]
    x, y = zip(*corners, strict=True)
    return label.strip(), Box(min(x), min(y), max(x), max(y))


def coco_outlines(
    path: Path, image: Path, picture: MarkedImage, names: Sequence[str], problems: list[str]
) -> dict[str, Polygons]:
    """The outlines of each class that a COCO file marks in an image, without classes that have a crowd there."""
    if not _fits(image, picture.size, f"{path.name} says", problems):
        return {}
    outlines: dict[int, list[Outline]] = {}
    crowds = {number for _, number, crowd, _ in picture.marks if crowd}
    for number in sorted(crowds):
        problems.append(f"{path}: marks a crowd of {names[number]} in {image.name}; expected single objects: outline each")
    for title, number, _, segmentation in [mark for mark in picture.marks if mark[1] not in crowds]:
        try:
            for shape in shapes_of(segmentation, picture.size):
                drawn = _rectangles(shape["counts"], picture.size) if isinstance(shape, dict) else [_points(shape)]
                outlines.setdefault(number, []).extend(drawn)
        except DataError as error:
            problems.append(f"{path}: {title}, in {image.name}, {error}")
    return {names[number]: Polygons(tuple(drawn)) for number, drawn in sorted(outlines.items()) if drawn}


def _fits(image: Path, size: tuple[int, int], says: str, problems: list[str]) -> bool:
    """Whether an image has the size that it was outlined at; true of one that cannot be read, as whoever reads it will say."""
    try:
        own = image_size(image)
    except DataError:
        return True
    if own != size:
        problems.append(
            f"{image}: image is {own[0]} x {own[1]}, {says} {size[0]} x {size[1]} (height x width); "
            "put the image there that was outlined, or outline this one"
        )
    return own == size


def joined(shapes: Sequence[Box | Polygons]) -> Box | Polygons:
    """One mark of several."""
    if len(shapes) == 1:
        return shapes[0]
    return Polygons(tuple(contour for shape in shapes for contour in _contours(shape)))


def _contours(shape: Box | Polygons) -> tuple[Outline, ...]:
    return (_rectangle(shape.left, shape.top, shape.right, shape.bottom),) if isinstance(shape, Box) else shape.contours


def _rectangle(left: float, top: float, right: float, bottom: float) -> Outline:
    return ((left, top), (right, top), (right, bottom), (left, bottom))


def _points(flat: Sequence[float]) -> Outline:
    """x, y, x, y, ... -> (x, y), ..."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _rectangles(runs: NDArray[np.int64], size: tuple[int, int]) -> list[Outline]:
    """The runs of an RLE, which go down the columns, as rectangles: holes and all, to the pixel."""
    if len(runs) > RUNS:
        raise DataError(f"has an RLE of {len(runs):,} runs; expected at most {RUNS:,}: save it as a PNG mask")
    height, width = size
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height)
    edges = np.diff(np.pad(inside, ((0, 0), (1, 1))).astype(np.int8), axis=1)  # (W, H + 1)
    columns, tops = np.nonzero(edges == 1)
    bottoms = np.nonzero(edges == -1)[1]
    begun: dict[tuple[int, int], tuple[int, int]] = {}  # top and bottom -> where the rectangle begins and ends across
    done: list[Outline] = []
    for column, top, bottom in zip(columns.tolist(), tops.tolist(), bottoms.tolist(), strict=True):
        first, end = begun.get((top, bottom), (column, column))
        if end != column:
            done.append(_rectangle(first, top, end, bottom))
            first = column
        begun[top, bottom] = (first, column + 1)
    return done + [_rectangle(first, top, end, bottom) for (top, bottom), (first, end) in begun.items()]
