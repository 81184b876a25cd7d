"""Requests about photos: lists, pictures, masks, states."""

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from cyctr.limits import REQUEST_BYTES
from cyctr.studio.describing import photo_values
from cyctr.studio.finding import before_path
from cyctr.studio.listing import look_at_all, looked_at
from cyctr.studio.masks import Patch, decoded, encoded
from cyctr.studio.records import SORTS, STATES, Filter, Photo
from cyctr.studio.refusals import RefusedError, UnknownError
from cyctr.studio.web import Call, flag, known_class, route, tell_of_photo

_MOST_LISTED = 500
_DIGITS = 18  # of a number that the tables can hold


def listed(call: Call) -> dict[str, Any]:
    """Some of the photos that a query finds, and how many there are."""
    sort, chosen = call.text("sort") or SORTS[0], call.text("class")
    class_id = None if chosen is None else call.studio.project.class_of(call.whole("class")).id
    least, most = call.share("min"), call.share("max")
    query = Filter(sort, call.text("state"), class_id, least, most, {"1": True, "0": False}.get(call.text("example") or ""))
    total, photos = call.studio.project.store.photos(query, call.whole("offset", 0), call.whole("limit", 100, 1, _MOST_LISTED))
    return {"total": total, "items": photo_values(call.studio.project, look_at_all(call.studio.project, photos))}


def position(call: Call) -> dict[str, Any]:
    """Where a photo is in the order of the names."""
    return {"index": call.studio.project.store.position(call.photo.id)}


def one(call: Call) -> dict[str, Any]:
    """What is known of a photo."""
    return photo_values(call.studio.project, [looked_at(call.studio.project, call.photo)])[0]


def image(call: Call) -> Response:
    """A picture of a photo."""
    photo, side = looked_at(call.studio.project, call.photo), call.whole("side", 1280)
    return _kept(call, photo, side, lambda: call.studio.photos.picture(photo, side), "image/jpeg")


def tile(call: Call) -> Response:
    """A part of a large photo."""
    photo, place = looked_at(call.studio.project, call.photo), call.request.path_params
    numbers = (place["level"], place["column"], place["row"])
    return _kept(call, photo, numbers, lambda: call.studio.photos.tile(photo, *numbers), "image/jpeg")


def mask(call: Call) -> Response:
    """The mask of a class, or the one before the last run."""
    photo, class_id = call.photo, call.class_id
    if call.text("run") == "before":
        path = before_path(call.studio.project, photo, class_id)
        content = path.read_bytes() if path.is_file() else None
        if content is None:
            return Response(status_code=204)
        return _png(encoded(_small(decoded(content, str(path)), call)), 0)
    read = call.studio.masks.read(looked_at(call.studio.project, photo), class_id)
    if read is None:
        return Response(status_code=204, headers={"X-Revision": "0"})
    return _png(encoded(_small(read[0], call)), read[1].revision)


def put_mask(call: Call) -> dict[str, Any]:
    """Puts a rectangle in a mask."""
    photo = looked_at(call.studio.project, call.photo)
    if photo.problem is not None:
        raise RefusedError(photo.problem)
    left, top, width, height = (call.whole(name) for name in ("x", "y", "width", "height"))
    if min(width, height) < 1 or left + width > photo.size[1] or top + height > photo.size[0]:
        raise RefusedError(
            f"the rectangle is {left},{top}, {width} x {height}; expected one inside {photo.size[1]} x {photo.size[0]}"
        )
    patch = Patch(left, top, decoded(call.body, "the mask", (height, width)))
    made = call.studio.masks.patch(photo, call.class_id, patch, call.whole("base", most=2**53))
    tell_of_photo(call.studio, photo.id)
    return {"revision": made.revision, "area": made.area}


def delete_mask(call: Call) -> dict[str, Any]:
    """Removes a mask."""
    call.studio.masks.remove(call.photo, call.class_id, call.whole("base", most=2**53))
    return tell_of_photo(call.studio, call.photo.id)


def state(call: Call) -> dict[str, Any]:
    """Accepts or rejects a photo, or takes that back."""
    values, photo, studio = call.values(), call.photo, call.studio
    wanted = values.get("state")
    if wanted not in STATES:
        raise RefusedError(f"state is {wanted!r:.40}; expected {', '.join(STATES)}")
    base = values.get("base") or {}
    if not isinstance(base, dict) or not all(
        _is_number(key) and isinstance(value, int) and _is_number(str(value)) for key, value in base.items()
    ):
        raise RefusedError("base is not as expected; expected the revision of each class")
    with studio.project.lock:
        studio.masks.check_revisions(photo, {int(key): value for key, value in base.items()})
        was_rejected = photo.state == "rejected"
        studio.project.store.update(photo.id, state=wanted)
        if studio.project.settings.reject_is_negative and (wanted == "rejected") != was_rejected:
            for class_id in list(studio.project.classes):
                studio.examples.set_negative(photo, class_id, wanted == "rejected")
    return tell_of_photo(studio, photo.id)


def example(call: Call) -> dict[str, Any]:
    """Makes a photo an example, or takes that back."""
    photo = looked_at(call.studio.project, call.photo)
    call.studio.examples.set_example(photo, flag(call.values(), "on"))
    return tell_of_photo(call.studio, photo.id)


def negative(call: Call) -> dict[str, Any]:
    """Notes that a class is not in a photo, or takes that back."""
    values = call.values()
    call.studio.examples.set_negative(call.photo, known_class(call.studio, values.get("class")), flag(values, "on"))
    return tell_of_photo(call.studio, call.photo.id)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _kept(call: Call, photo: Photo, part: object, make: Any, kind: str) -> Response:
    """A picture that the browser may keep as long as the photo is the same."""
    headers = {"ETag": f'"{photo.id}-{photo.stamp}-{part}"'.replace(" ", ""), "Cache-Control": "private, no-cache"}
    if call.request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(make(), media_type=kind, headers=headers)


def _small(found: Any, call: Call) -> Any:
    """A mask, or every n-th of its pixels where the page shows it small."""
    side = call.whole("side", 0)
    longest = max(found.shape)
    if not 0 < side < longest:
        return found
    rows, columns = (
        [min(int((place + 0.5) * length / count), length - 1) for place in range(count)]
        for length, count in ((length, max(1, round(length * side / longest))) for length in found.shape)
    )
    return found[rows][:, columns]


def _png(content: bytes, revision: int) -> Response:
    return Response(content, media_type="image/png", headers={"X-Revision": str(revision)})


def missing(call: Call) -> None:
    """Refuses a path that leads nowhere."""
    raise UnknownError(f"{call.request.url.path!r:.60} does not exist; load the page again")


_ONE = "/api/photos/{photo:str}"
ROUTES: list[Route] = [
    route("/api/photos", "GET", listed),
    route(_ONE, "GET", one),
    route(f"{_ONE}/position", "GET", position),
    route(f"{_ONE}/image", "GET", image),
    route(f"{_ONE}/tile/{{level:int}}/{{column:int}}/{{row:int}}", "GET", tile),
    route(f"{_ONE}/mask/{{class_id:int}}", "GET", mask),
    route(f"{_ONE}/mask/{{class_id:int}}", "PUT", put_mask, REQUEST_BYTES),
    route(f"{_ONE}/mask/{{class_id:int}}", "DELETE", delete_mask),
    route(f"{_ONE}/state", "POST", state),
    route(f"{_ONE}/example", "POST", example),
    route(f"{_ONE}/negative", "POST", negative),
]
