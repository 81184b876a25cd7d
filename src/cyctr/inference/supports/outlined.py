"""JSON of LabelMe and of COCO, and the images it names -> supports by class."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cyctr.datasets.coco_json import read_marks
from cyctr.datasets.listing import subfolders
from cyctr.errors import DataError
from cyctr.inference.shapes import Polygons
from cyctr.inference.supports.labelled import ByClass, Labelled
from cyctr.inference.supports.outlines import coco_outlines, is_coco, joined, labelme_shapes, read_documents
from cyctr.inference.supports.pairing import images_in
from cyctr.words import counted, listed


def from_labelme(documents: Mapping[Path, tuple[Path, dict[str, Any]]], given: str | None, problems: list[str]) -> ByClass:
    """Image -> its JSON, as supports of each label."""
    marks = {image: labelme_shapes(path, image, document, problems) for image, (path, document) in documents.items()}
    labels = list(dict.fromkeys(label for shapes in marks.values() for label, _ in shapes))
    if given is not None:
        own = [label for label in labels if label.lower() == given.lower()] or labels
        if len({label.lower() for label in own}) > 1:
            places = next(path for path, _ in documents.values()).parent
            problems.append(f"{places}: labels {listed(own)} in the folder of {given}; expected one: call them {given}")
            return {}
        marks = {image: [(given, shape) for label, shape in shapes if label in own] for image, shapes in marks.items()}
        labels = [given] if own else []
    found: ByClass = {label: [] for label in sorted(labels)}
    for image, shapes in marks.items():
        for label in dict.fromkeys(label for label, _ in shapes):
            found[label].append(Labelled(image, joined([shape for name, shape in shapes if name == label]), None))
    return {label: supports for label, supports in found.items() if supports}


def from_coco(documents: Mapping[Path, dict[str, Any]], folder: Path, problems: list[str]) -> ByClass:
    """What COCO files in a folder mark, in images beside them or in a subfolder."""
    found: dict[str, dict[Path, Labelled]] = {}
    for path in [path for path, document in documents.items() if not is_coco(document)]:
        problems.append(f"{path}: is passed over, for a COCO file is there; keep one of the two")
    bases = [folder, *subfolders(folder)]
    for path in [path for path, document in documents.items() if is_coco(document)]:
        names, pictures, passed = read_marks(documents[path], path)
        found |= {name: {} for name in names if name not in found}
        problems += [f"{path}: {problem}" for problem in passed]
        for picture in pictures:
            image = _located(picture.file, [path.parent, *bases])
            if image is None:
                problems.append(
                    f"{path}: names {picture.file}, which is not there; add it beside the JSON, or remove its entry"
                )
            else:
                _add(found, path, image, coco_outlines(path, image, picture, names, problems), problems)
    marked = {image for supports in found.values() for image in supports}
    if unmarked := [image for base in bases for image in images_in(base) if image not in marked]:
        problems.append(f"{folder}: {counted(len(unmarked), 'image')} passed over, {unmarked[0].name} first: no outline to use")
    return _in_order(found)


def from_above(folder: Path, problems: list[str]) -> ByClass:
    """What COCO files one level above a folder mark in its images."""
    above = Path(os.path.abspath(folder)).parent
    found: dict[str, dict[Path, Labelled]] = {}
    try:
        documents = read_documents([above], problems=None)
    except DataError:  # a folder that we may not list
        return {}
    for path in [path for path, document in documents.items() if is_coco(document)]:
        names, pictures, _ = read_marks(documents[path], path)
        found |= {name: {} for name in names if name not in found}
        for picture in pictures:  # many may lie in other folders
            if (image := _located(picture.file, [folder])) is not None:
                _add(found, path, image, coco_outlines(path, image, picture, names, problems), problems)
    return _in_order(found)


def _add(
    found: dict[str, dict[Path, Labelled]], path: Path, image: Path, outlines: Mapping[str, Polygons], problems: list[str]
) -> None:
    """Adds an image to the supports of each class it shows; where another file has marked the class in it, that counts."""
    for name, polygons in outlines.items():
        if image in found[name]:
            problems.append(f"{path}: marks {name} in {image.name} as another file does; keep one")
        else:
            found[name][image] = Labelled(image, polygons, None)


def _in_order(found: Mapping[str, Mapping[Path, Labelled]]) -> ByClass:
    return {name: [supports[image] for image in sorted(supports)] for name, supports in found.items() if supports}


def _located(file: str, bases: Sequence[Path]) -> Path | None:
    """The file of that name, below one of some folders, or of its last part only."""
    candidates = [base / name for name in dict.fromkeys((file, file.rpartition("/")[2])) for base in bases]
    return next((path for path in candidates if os.path.isfile(path)), None)
