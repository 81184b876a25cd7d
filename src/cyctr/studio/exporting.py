"""Masks of a project -> files of other tools, by the same writers as the command line's."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cyctr.errors import CyctrError
from cyctr.formats import FORMATS, Found, open_writer
from cyctr.studio.listing import looked_at, path_of
from cyctr.studio.masks import Masks
from cyctr.studio.project import EXPORTS, Project
from cyctr.studio.records import Filter, Mask, Photo
from cyctr.studio.refusals import RefusedError
from cyctr.words import counted, one_line

DESCRIBED = {
    "png": ("PNG masks: 0 is background, other values are classes", True),
    "coco": ("COCO: one JSON with run lengths", True),
    "labelme": ("LabelMe: a JSON with polygons for each photo", False),
    "yolo": ("YOLO: a text file with polygons for each photo", False),
    "npz": ("NumPy arrays for each photo", True),
}
"""Each format in a few words, and whether it keeps every pixel."""
_PLACES = {"png": ("masks", "png"), "labelme": ("labels", "json"), "npz": ("arrays", "npz")}
_SHOWN = 4  # files in the picture of a folder


@dataclass
class Exported:
    """What an export wrote, or would write.

    Attributes:
        photos: how many.
        masks: that mark something.
        skipped: a line for each photo that was left out, or each kind of them.
        tree: the folder, in text.
        folder: where; none where nothing was written.
    """

    photos: int = 0
    masks: int = 0
    skipped: list[str] = field(default_factory=list)
    tree: str = ""
    folder: Path | None = None


def plan(project: Project, form: str, accepted_only: bool) -> Exported:
    """What an export would write."""
    _check(project, form)
    chosen, skipped = _chosen(project, accepted_only)
    masks = sum(mask.area > 0 for _, of_photo in chosen for mask in of_photo.values())
    keys = [photo.key for photo, _ in chosen]
    tree = _tree(_target(project, form).name, form, keys, len(project.classes) > 1)
    return Exported(len(chosen), masks, skipped, tree)


def export(project: Project, masks: Masks, form: str, accepted_only: bool) -> Exported:
    """Writes the masks of photos into a new folder of the project's exports.

    Raises:
        RefusedError: the format is not known, or there is nothing to write.
        CyctrError: a package that the format needs is missing, or the disk is full.
    """
    _check(project, form)
    chosen, skipped = _chosen(project, accepted_only)
    if not chosen:
        raise RefusedError("there is nothing to export; accept a photo, or export all")
    folder = _target(project, form)
    names = [one.name for _, one in sorted(project.classes.items())]
    writer = open_writer(form, folder, names)
    done = Exported(skipped=skipped, folder=folder)
    try:
        for photo, of_photo in chosen:
            try:
                photo = looked_at(project, photo)
                found = list(_found(project, masks, photo, of_photo))
            except CyctrError as error:
                done.skipped.append(one_line(error))
                continue
            writer.write(photo.key, path_of(project, photo), found)
            done.photos += 1
            done.masks += sum(bool(one.mask.any()) for one in found)
        writer.finish()
    except BaseException:  # such as a full disk: half an export is of no use, and nothing else lies there
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return done


def _found(project: Project, masks: Masks, photo: Photo, of_photo: dict[int, Mask]) -> Iterator[Found]:
    for number in sorted(of_photo):
        read = masks.read(photo, number)
        if read is not None and number in project.classes:
            mask, known = read
            sure = 1.0 if known.confidence is None else known.confidence
            yield Found(project.classes[number].name, np.ascontiguousarray(mask), None, sure)


def _check(project: Project, form: str) -> None:
    if form not in FORMATS:
        raise RefusedError(f"format is {form!r:.40}; expected {', '.join(FORMATS)}")
    if not project.classes:
        raise RefusedError("there is no class; add one, and paint it")


def _chosen(project: Project, accepted_only: bool) -> tuple[list[tuple[Photo, dict[int, Mask]]], list[str]]:
    """The photos to write with their masks, and lines about the others."""
    _, photos = project.store.photos(Filter())
    masks = project.store.masks([photo.id for photo in photos])
    left: Counter[str] = Counter()
    chosen: list[tuple[Photo, dict[int, Mask]]] = []
    for photo in photos:
        if accepted_only and photo.state != "accepted" and not photo.example:
            left["not accepted"] += 1
        elif photo.state == "rejected":
            chosen.append((photo, {}))
        elif not masks[photo.id]:
            left["without a mask"] += 1
        else:
            chosen.append((photo, masks[photo.id]))
    return chosen, [f"{counted(number, 'photo')} {why}" for why, number in left.items()]


def _target(project: Project, form: str) -> Path:
    """A folder that is not there yet."""
    number = 1
    while (project.folder / EXPORTS / f"{form}-{number}").exists():
        number += 1
    return project.folder / EXPORTS / f"{form}-{number}"


def _tree(name: str, form: str, keys: list[str], several: bool) -> str:
    """The folder as it will be, with the first few files."""
    folder, ending = {"png": ("masks", "png"), "labelme": ("labels", "json"), "npz": ("arrays", "npz")}.get(
        form, ("labels", "txt")
    )
    if form == "coco":
        return f"{name}/\n  annotations.json"
    lines = [f"{name}/", f"  {folder}/", *(f"    {one_line(key)}.{ending}" for key in keys[:_SHOWN])]
    if len(keys) > _SHOWN:
        lines.append(f"    ... {len(keys) - _SHOWN:,} more")
    if form == "yolo":
        lines.append("  data.yaml")
    if form == "png" and several:
        lines.append("  classes.txt")
    return "\n".join(lines)
