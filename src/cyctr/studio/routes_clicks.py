"""Requests for proposals: smart clicks, the wand, explanations. Nothing is stored."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.routing import Route

from cyctr.inference.explanation import explain
from cyctr.inference.segmenter import Segmenter
from cyctr.studio.listing import looked_at
from cyctr.studio.masks import encoded
from cyctr.studio.records import Photo
from cyctr.studio.refusals import RefusedError
from cyctr.studio.smart import Clicked, Corners, Point, propose
from cyctr.studio.wand import wand
from cyctr.studio.web import Call, answered, known_class, number, route

_MOST_POINTS = 200
_MOST_SHOTS = 5  # that pictures of an explanation have room for
_KINDS = ("auto", "plain", "sam")


async def click(call: Call) -> dict[str, Any]:
    """A mask for clicks and a box."""
    values, studio = call.values(), call.studio
    photo = _readable(call)
    kind = values.get("kind", "auto")
    if kind not in _KINDS:
        raise RefusedError(f"kind is {kind!r:.40}; expected {', '.join(_KINDS)}")
    points, outside = _points(values, photo)
    box = _box(values, photo)
    chosen = ("sam" if studio.sam.ready else "plain") if kind == "auto" else kind

    def work(segmenter: Segmenter) -> Clicked:
        pixels = studio.photos.pixels(photo)
        if chosen == "sam":
            return studio.sam.propose((photo.id, photo.stamp), pixels, points, outside, box)
        return propose(segmenter.network, pixels, points, outside, box)

    found = await answered(call, studio.worker.ask(work))
    return {"kind": chosen, **_cut(found.mask), "agreement": found.agreement}


def magic_wand(call: Call) -> dict[str, Any]:
    """The region of one colour around a place."""
    values, photo = call.values(), _readable(call)
    x, y = (number(values, name, 0, 2**31) for name in ("x", "y"))
    found = wand(call.studio.photos.pixels(photo), x, y, number(values, "tolerance", 0, 200))
    return {"kind": "wand", **_cut(found), "agreement": 1.0}


async def region(call: Call) -> dict[str, Any]:
    """What the network finds in a part of a photo, when it looks at this part only."""
    values, studio = call.values(), call.studio
    photo, class_id = _readable(call), known_class(studio, values.get("class"))
    box = _box(values, photo)
    if box is None:
        raise RefusedError("box is missing; expected [left, top, right, bottom]")
    left, top, right, bottom = math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])

    def work(segmenter: Segmenter) -> dict[str, Any]:
        supports = studio.examples.supports(segmenter, lambda text: None)
        if class_id not in supports:
            raise RefusedError("the class has no example that can be used; paint one first")
        part = np.ascontiguousarray(studio.photos.pixels(photo)[top:bottom, left:right])
        found = segmenter.segment(part, supports[class_id], **vars(studio.project.settings.options()))
        png = base64.b64encode(encoded(np.asarray(found.mask, bool))).decode()
        place = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        return {"masks": [{"class": class_id, **place, "png": png, "confidence": found.confidence}]}

    return await answered(call, studio.worker.ask(work))


async def explanation(call: Call) -> dict[str, Any]:
    """Which examples speak for a place."""
    values, studio = call.values(), call.studio
    photo, class_id = _readable(call), known_class(studio, values.get("class"))
    at = (int(number(values, "x", 0, photo.size[1] - 1)), int(number(values, "y", 0, photo.size[0] - 1)))

    def work(segmenter: Segmenter) -> dict[str, Any]:
        support = studio.examples.encode(segmenter, class_id, _MOST_SHOTS, lambda text: None)
        shown = explain(segmenter, studio.photos.pixels(photo), support, at)
        cells = [cell for line in shown.lines for cell in line]
        pictures = [{"name": one.title, "text": one.caption, "png": _base64(one.pixels)} for one in cells]
        return {"title": shown.title, "images": pictures}

    return await answered(call, studio.worker.ask(work))


def _readable(call: Call) -> Photo:
    photo = looked_at(call.studio.project, call.photo)
    if photo.problem is not None:
        raise RefusedError(photo.problem)
    return photo


def _points(values: Mapping[str, Any], photo: Photo) -> tuple[list[Point], list[Point]]:
    """The clicks on the thing, and those beside it."""
    given = values.get("points", [])
    if not isinstance(given, list) or len(given) > _MOST_POINTS:
        raise RefusedError(f"points are not as expected; expected a list of at most {_MOST_POINTS} of [x, y, 1 or 0]")
    points: list[Point] = []
    outside: list[Point] = []
    for one in given:
        if not isinstance(one, list) or len(one) != 3 or one[2] not in (0, 1):
            raise RefusedError(f"a point is {one!r:.40}; expected [x, y, 1 or 0]")
        named = {"x": one[0], "y": one[1]}
        place = (number(named, "x", 0, photo.size[1] - 0.001), number(named, "y", 0, photo.size[0] - 0.001))
        (points if one[2] else outside).append(place)
    return points, outside


def _box(values: Mapping[str, Any], photo: Photo) -> Corners | None:
    given = values.get("box")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 4:
        raise RefusedError(f"box is {given!r:.40}; expected [left, top, right, bottom]")
    named = dict(zip(("left", "top", "right", "bottom"), given, strict=True))
    most = {"left": photo.size[1], "right": photo.size[1], "top": photo.size[0], "bottom": photo.size[0]}
    left, top, right, bottom = (number(named, name, 0, most[name]) for name in named)
    if left >= right or top >= bottom:
        raise RefusedError(f"box is {given!r:.60}; expected left below right and top below bottom")
    return left, top, right, bottom


def _cut(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask as the rectangle that holds it."""
    rows, columns = (np.flatnonzero(mask.any(axis=1 - axis)) for axis in (0, 1))
    if not len(rows):
        return {"x": 0, "y": 0, "width": 0, "height": 0, "png": "", "area": 0}
    top, left, bottom, right = int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1
    part = np.ascontiguousarray(mask[top:bottom, left:right])
    png = base64.b64encode(encoded(part)).decode()
    return {"x": left, "y": top, "width": right - left, "height": bottom - top, "png": png, "area": int(part.sum())}


def _base64(pixels: NDArray[np.uint8]) -> str:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG", compress_level=1)
    return base64.b64encode(content.getvalue()).decode()


_ONE = "/api/photos/{photo:str}"
ROUTES: list[Route] = [
    route(f"{_ONE}/click", "POST", click),
    route(f"{_ONE}/wand", "POST", magic_wand),
    route(f"{_ONE}/region", "POST", region),
    route(f"{_ONE}/explain", "POST", explanation),
]
