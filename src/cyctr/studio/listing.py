"""The photos of a project's folder: listed by name without reading any, and looked at when they are asked for."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from cyctr.errors import DataError
from cyctr.images.imaging import image_size
from cyctr.inference.folder.queries import apart, find_queries
from cyctr.studio.project import Project
from cyctr.studio.records import Photo
from cyctr.studio.refusals import GoneError
from cyctr.words import one_line


def photo_id(path: bytes) -> str:
    """What the page calls the photo of a relative path."""
    return hashlib.sha256(path).hexdigest()[:16]


def list_photos(project: Project) -> None:
    """Notes which photos are in the folder now: new ones are added, and those that have left it are marked.

    Raises:
        DataError: there is none, or the folder cannot be listed.
    """
    root, store = project.photos, project.store
    passed = [Path(os.fsdecode(os.path.join(os.fsencode(root), path))) for path in store.passed()]
    found = find_queries([root], [project.folder, *passed], project.problems.append)
    there = {photo_id(path): (path, query.key) for query in found for path in [_relative(query.path, root)]}
    known = store.known()
    store.set_gone([one for one, gone in known.items() if not gone and one not in there], True)
    store.set_gone([one for one, gone in known.items() if gone and one in there], False)
    new = {one: value for one, value in there.items() if one not in known}
    keys = apart([key for _, key in new.values()], store.keys())
    files = apart([key.replace("/", "__") for key in keys], store.files())
    store.add_photos(
        (one, path, _text(path), key, file) for (one, (path, _)), key, file in zip(new.items(), keys, files, strict=True)
    )


def path_of(project: Project, photo: Photo) -> Path:
    """The file of a photo."""
    return Path(os.fsdecode(os.path.join(os.fsencode(project.photos), photo.path)))


def looked_at(project: Project, photo: Photo) -> Photo:
    """The photo with its size, or its problem, as the file is now.

    Raises:
        GoneError: the file is no longer there, or is another than when it was looked at before.
    """
    path = path_of(project, photo)
    try:
        status = path.stat()
    except OSError:
        project.store.update(photo.id, gone=1)
        raise GoneError(f"{photo.name}: is no longer in the folder; its masks stay in the project") from None
    stamp = (status.st_size, status.st_mtime_ns)
    if stamp == photo.stamp:
        return photo
    size, problem = (0, 0), None
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(project.photos)):
            raise DataError(f"{photo.name}: is a link that leads out of the folder; open the folder that it leads to")
        size = image_size(path)
    except DataError as error:
        problem = one_line(error)
    replaced = photo.stamp is not None and photo.size != (0, 0) and photo.problem is None
    if replaced and size != photo.size:
        _set_aside(project, photo)
    project.store.update(photo.id, bytes=stamp[0], time=stamp[1], height=size[0], width=size[1], problem=problem)
    if replaced:
        raise GoneError(f"{photo.name}: was replaced by another file; load it again")
    return project.store.photo(photo.id)


def look_at_all(project: Project, photos: Iterable[Photo]) -> list[Photo]:
    """Likewise for some that are listed; those that have just gone are left out."""
    found = []
    for photo in photos:
        try:
            found.append(photo if photo.stamp is not None else looked_at(project, photo))
        except GoneError:
            continue
    return found


def _set_aside(project: Project, photo: Photo) -> None:
    """Keeps masks that fit the earlier photo only, in files of their own."""
    with project.lock:
        for class_id in project.store.masks([photo.id])[photo.id]:
            for place in project.places(class_id):
                path = place / f"{photo.file}.png"
                if path.is_file():
                    aside = project.folder / "aside" / place.name
                    aside.mkdir(parents=True, exist_ok=True)
                    names = apart([photo.file], [one.stem for one in aside.iterdir()])
                    os.replace(path, aside / f"{names[0]}.png")
            project.store.drop_mask(photo.id, class_id)
        if photo.example:
            project.store.update(photo.id, example=0)
    project.problems.append(f"{photo.name}: has another size now; its earlier masks are in {project.folder / 'aside'}")


def _relative(path: Path, root: Path) -> bytes:
    return os.fsencode(path.relative_to(root).as_posix())


def _text(path: bytes) -> str:
    """A path as text, whatever bytes it holds."""
    return path.decode(errors="backslashreplace")
