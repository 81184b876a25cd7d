"""A folder that was labelled elsewhere: its masks, LabelMe or COCO files become the first examples of a project."""

import os
from pathlib import Path

from cyctr.errors import CyctrError, DataError
from cyctr.inference.inputs import to_label
from cyctr.inference.supports.reading import SupportFolder, find_supports
from cyctr.studio.examples import Examples
from cyctr.studio.listing import list_photos, looked_at, photo_id
from cyctr.studio.masks import Masks
from cyctr.studio.project import Project
from cyctr.words import one_line

_MARKERS = ("_mask", "-mask", ".mask")


def begin_project(project: Project) -> None:
    """Lists the photos of a new project, and takes over the labels that lie beside them."""
    try:
        found = find_supports(project.photos)
    except CyctrError:  # nothing is labelled
        list_photos(project)
        return
    project.store.pass_over(_masks_of(found, project.photos))
    list_photos(project)
    masks = Masks(project)
    examples = Examples(project, masks)
    numbers = {one.name: number for number, one in project.classes.items()}  # of a beginning that was cut short
    project.problems += found.problems
    for name, shots in found.classes.items():
        try:
            number = numbers[name] if name in numbers else project.add_class(name).id
            for shot in shots:
                photo = looked_at(project, project.store.photo(_id(shot.image, project.photos)))
                label = to_label(shot.mask, photo.size, shot.class_id, str(shot.image))
                masks.put(photo, number, label == 1, "person")
                examples.set_example(project.store.photo(photo.id), True)
        except (CyctrError, ValueError) as error:
            project.problems.append(one_line(error))


def _masks_of(found: SupportFolder, root: Path) -> list[bytes]:
    """The files below a folder that are masks, also those that could not be used."""
    used = {shot.mask for shots in found.classes.values() for shot in shots if isinstance(shot.mask, Path)}
    beside = {path.parent for path in used}
    others = {path for folder in beside for path in folder.iterdir() if path.stem.lower().endswith(_MARKERS)}
    images = {shot.image.parent for shots in found.classes.values() for shot in shots}
    own = {path for folder in beside - images for path in folder.iterdir() if path.is_file()}  # a folder of masks only
    return [os.fsencode(os.path.relpath(path, root)) for path in used | others | own]


def _id(image: Path, root: Path) -> str:
    relative = os.path.relpath(image, root)
    if relative.startswith(".."):
        raise DataError(f"{image}: is labelled, but lies outside the folder")
    return photo_id(os.fsencode(Path(relative).as_posix()))
