"""Requests about the project: classes, settings, previews, the job, review, export, events."""

import io
import re
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import cyctr
from cyctr.formats import FORMATS
from cyctr.inference.segmenter import Segmenter
from cyctr.limits import PREVIEWS
from cyctr.studio.describing import class_values
from cyctr.studio.exporting import DESCRIBED, export, plan
from cyctr.studio.refusals import BusyError, RefusedError
from cyctr.studio.web import Call, Studio, answered, flag, known_class, number, route


def project_values(studio: Studio) -> dict[str, Any]:
    """All that the page has to know when it is opened."""
    project, worker = studio.project, studio.worker
    return {
        "folder": str(project.photos),
        "project": str(project.folder),
        "version": cyctr.__version__,
        "classes": class_values(project),
        "counts": project.store.counts(),
        "settings": vars(project.settings),
        "model": worker.model,
        "job": None if worker.jobs.status is None else asdict(worker.jobs.status),
        "sam": studio.sam.values(),
        "problems": project.problems[:100],
        "formats": [{"name": name, "text": DESCRIBED[name][0], "exact": DESCRIBED[name][1]} for name in FORMATS],
    }


def project(call: Call) -> dict[str, Any]:
    """The project."""
    return project_values(call.studio)


def change_settings(call: Call) -> dict[str, Any]:
    """Changes settings."""
    given = call.values().get("settings")
    if not isinstance(given, dict):
        raise RefusedError("settings are missing; expected an object")
    call.studio.project.change_settings(given)
    return _tell(call.studio)


def add_class(call: Call) -> dict[str, Any]:
    """Adds a class."""
    values = call.values()
    made = call.studio.project.add_class(values.get("name"), values.get("color"))
    _tell(call.studio)
    return _class_of(call.studio, made.id)


def change_class(call: Call) -> dict[str, Any]:
    """Renames a class, or gives it another colour."""
    values = call.values()
    call.studio.project.change_class(call.class_id, values.get("name"), values.get("color"))
    _tell(call.studio)
    return _class_of(call.studio, call.class_id)


def delete_class(call: Call) -> dict[str, Any]:
    """Removes a class and its masks."""
    studio, class_id = call.studio, call.class_id
    counts = _class_of(studio, class_id)
    if counts["person"] and not flag(call.values(), "force", False):
        raise RefusedError(f"{counts['person']} masks of {counts['name']!r} were painted; confirm that they are to be removed")
    with studio.project.lock:
        for photo in studio.project.store.negative_photos(class_id):
            studio.examples.set_negative(photo, class_id, False)
        studio.masks.remove_class(class_id)
        studio.project.remove_class(class_id)
    return _tell(studio)


def previews(call: Call) -> dict[str, Any]:
    """Segments photos soon."""
    values, studio = call.values(), call.studio
    photos = values.get("photos")
    if not isinstance(photos, list) or len(photos) > PREVIEWS:
        raise RefusedError(f"photos are not as expected; expected a list of at most {PREVIEWS} ids")
    known = [studio.project.store.photo(str(one)).id for one in photos]
    chosen = values.get("class")
    class_id = None if chosen is None else known_class(studio, chosen)
    return {"request": studio.worker.preview(list(dict.fromkeys(known)), class_id)}


def begin_job(call: Call) -> dict[str, Any]:
    """Begins to segment all photos, or goes on."""
    values = call.values()
    if values.get("what", "segment") != "segment":
        raise RefusedError(f"what is {values['what']!r:.40}; expected segment")
    only = values.get("only", "open")
    if not isinstance(only, str):
        raise RefusedError(f"only is {only!r:.40}; expected open, or all not accepted")
    call.studio.worker.check()
    status = call.studio.worker.jobs.begin(only)
    call.studio.worker.wake()
    return asdict(status)


def stop_job(call: Call) -> dict[str, Any] | None:
    """Stops the job."""
    status = call.studio.worker.jobs.stop()
    return None if status is None else asdict(status)


def job(call: Call) -> dict[str, Any] | None:
    """How far the job is."""
    status = call.studio.worker.jobs.status
    return None if status is None else asdict(status)


def changes(call: Call) -> dict[str, Any]:
    """What the last run changed."""
    total, found = call.studio.project.store.changes(call.whole("offset", 0), call.whole("limit", 100, 1, 500))
    items = [{"photo": photo, "class": class_id, "iou_with_before": iou} for photo, class_id, iou in found]
    return {"total": total, "items": items}


def accept(call: Call) -> dict[str, Any]:
    """Accepts all open photos that are certain enough, or says how many these are."""
    values, studio = call.values(), call.studio
    least, chosen = number(values, "min", 0, 1), values.get("class")
    class_id = None if chosen is None else known_class(studio, chosen)
    found = studio.project.store.acceptable(least, class_id)
    if not flag(values, "dry", False):
        with studio.project.store.changing():
            for photo in found:
                studio.project.store.update(photo, state="accepted")
        _tell(studio)
    return {"count": len(found)}


def write_export(call: Call) -> dict[str, Any]:
    """Exports masks, or says what would be written."""
    values, studio = call.values(), call.studio
    form, only = str(values.get("format")), flag(values, "accepted_only", False)
    if flag(values, "dry", False):
        planned = plan(studio.project, form, only)
        return {"photos": planned.photos, "masks": planned.masks, "skipped": planned.skipped, "tree": planned.tree}
    if not studio.exporting.acquire(blocking=False):
        raise BusyError("an export is being written; wait for it")
    try:
        done = export(studio.project, studio.masks, form, only)
    finally:
        studio.exporting.release()
    return {"folder": str(done.folder), "photos": done.photos, "masks": done.masks, "skipped": done.skipped}


async def export_support(call: Call) -> Response:
    """The examples as files of `cyctr support`."""
    studio = call.studio

    def work(segmenter: Segmenter) -> list[tuple[str, bytes]]:
        supports = studio.examples.supports(segmenter, lambda text: None)
        files = []
        with tempfile.TemporaryDirectory() as folder:
            for class_id, support in supports.items():
                path = Path(folder, f"{class_id}.cyctr")
                support.save(path)
                files.append((f"{studio.project.class_of(class_id).folder}.cyctr", path.read_bytes()))
        return files

    files = await answered(call, studio.worker.ask(work))
    if not files:
        raise RefusedError("no class has an example; paint one, and use it as an example")
    if len(files) == 1:
        return _download(*files[0])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, one in files:
            archive.writestr(name, one)
    return _download("examples.zip", content.getvalue())


def fetch_sam(call: Call) -> dict[str, Any]:
    """Begins to fetch SAM."""
    return call.studio.sam.fetch()


async def events(call: Call) -> Response:
    """What happens, as it happens."""
    return StreamingResponse(call.studio.events.join(), media_type="text/event-stream")


def _tell(studio: Studio) -> dict[str, Any]:
    values = project_values(studio)
    studio.events.publish("project", values)
    return values


def _class_of(studio: Studio, class_id: int) -> dict[str, Any]:
    return next(one for one in class_values(studio.project) if one["id"] == class_id)


def _download(name: str, content: bytes) -> Response:
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)
    headers = {"Content-Disposition": f'attachment; filename="{plain}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


ROUTES: list[Route] = [
    route("/api/project", "GET", project),
    route("/api/project", "PATCH", change_settings),
    route("/api/classes", "POST", add_class),
    route("/api/classes/{class_id:int}", "PATCH", change_class),
    route("/api/classes/{class_id:int}", "DELETE", delete_class),
    route("/api/previews", "POST", previews),
    route("/api/job", "POST", begin_job),
    route("/api/job/stop", "POST", stop_job),
    route("/api/job", "GET", job),
    route("/api/changes", "GET", changes),
    route("/api/accept", "POST", accept),
    route("/api/export", "POST", write_export),
    route("/api/export/support", "GET", export_support),
    route("/api/sam", "POST", fetch_sam),
    route("/api/events", "GET", events),
]
