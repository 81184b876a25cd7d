"""A folder of labelled images -> the supports of each class, by whichever layout is there."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.datasets.instances import read_marks
from cyctr.datasets.listing import subfolders
from cyctr.datasets.own_folder import IMAGES, MASKS, NAMES, ONLY_CLASS, class_names
from cyctr.errors import ConfigError, DataError
from cyctr.images.counting import count_values
from cyctr.images.imaging import EXTENSIONS, find_images, read_values
from cyctr.inference.inputs import Box, Polygons, to_image, to_label
from cyctr.inference.supports.outlines import coco_outlines, is_coco, joined, labelme_shapes, read_documents, visible_files
from cyctr.types import IGNORE
from cyctr.words import counted, listed

LAYOUT = (
    f"{IMAGES}/ with {MASKS}/, NAME.jpg with NAME_mask.png, NAME.jpg with NAME.json of LabelMe, "
    "a COCO JSON, or a folder of these for each class"
)
_MARKERS = ("_mask", "-mask", ".mask")
_MARKER = 5  # characters of each
_SOFT, _BRIGHT = 8, 192  # so many values, most of those beside 0 bright, are a picture in black and white, not classes
_GREY = 32  # values and more, or a value this high, are rarely numbers of classes
_STEP = 2  # between neighbours of a gradient
_INSIDE = 0.1  # share of its pixels that a region has inside; of 3 x 3 pixels it is one
_PARTS = (IMAGES, MASKS, "annotations")
_LOSSY = (".jpg", ".jpeg")


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


@dataclass(frozen=True)
class SupportFolder:
    """What a folder holds.

    Attributes:
        classes: the supports of each class, one or more, sorted by name; each has been read once and can be used.
        problems: a line for each file that was passed over, and why.
    """

    classes: dict[str, tuple[Labelled, ...]]
    problems: tuple[str, ...]


Found = dict[str, list[Labelled]]


def find_supports(folder: Path, classes: Sequence[str] | None = None) -> SupportFolder:
    """The labelled images of a folder, by class.

    The first of these layouts that is there counts:

    - images/NAME.jpg and masks/NAME.png, or masks/CLASS/NAME.png with a mask for each class. Without images/, the images
      lie in the folder itself.
    - A COCO JSON, in the folder, in annotations/ or, where the folder holds nothing else that marks, one level above; its
      images beside it or in a subfolder. Polygons and RLE are read; images with a crowd of a class are no support of it.
    - NAME.jpg and NAME_mask.png, NAME-mask.png or NAME.mask.png; or NAME.png beside an image of another kind.
    - NAME.jpg and NAME.json of LabelMe, whose labels are the classes; polygons and rectangles are read.
    - A subfolder for each class, of any of these but COCO's. The class is the subfolder's name.

    Masks of 0 and 1, or of 0 and 255, mark one class, called after the folder. Other values are the numbers of classes,
    which classes.txt names on a line each, from 1 on; without it they are called by their numbers. See `to_label`.

    Args:
        folder: where.
        classes: the classes wanted, in this order; None takes all, as they come.

    Raises:
        DataError: nothing labelled is left, or nothing of a class that was asked for.
        ConfigError: `classes` names something that is not there.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}; expected labelled images: {LAYOUT}")
    if classes is not None and not classes:
        raise ConfigError("classes is empty; name one class or more, or leave it out to take them all")
    problems: list[str] = []
    found = _search(folder, problems)
    unknown = [name for name in classes or () if name not in found]
    if unknown and found:
        raise ConfigError(f"class {unknown[0]} is not in {folder}; it holds {listed(list(found))}: choose among these")
    wanted = found if classes is None else {name: found[name] for name in classes if name in found}
    kept: dict[str, tuple[Labelled, ...]] = {}
    sizes: dict[Path, tuple[int, int] | None] = {}
    for name, supports in wanted.items():
        passed: list[str] = []
        usable = tuple(each for each in supports if _usable(each, sizes, passed))
        if not usable and classes is not None:
            raise DataError(f"{folder}: no labelled image of {name} is left; {_why(passed or problems)}")
        problems += passed
        if usable:
            kept[name] = usable
    if not kept:
        raise DataError(f"{folder}: no labelled image is left; {_why(problems)}")
    return SupportFolder(kept, tuple(dict.fromkeys(problems)))


def _why(problems: Sequence[str]) -> str:
    """Of what was passed over the first, in one line."""
    if not problems:
        return f"expected {LAYOUT}"
    problems = list(dict.fromkeys(problems))
    return problems[0] + (f" (and {counted(len(problems) - 1, 'more problem')})" if len(problems) > 1 else "")


def _usable(support: Labelled, sizes: dict[Path, tuple[int, int] | None], problems: list[str]) -> bool:
    """Whether image and mask can be read and fit each other; each image is read once."""
    try:
        if support.image not in sizes:
            sizes[support.image] = None
            height, width, _ = to_image(support.image).shape
            sizes[support.image] = (height, width)
        size = sizes[support.image]
        if size is not None:
            to_label(support.mask, size, support.class_id, name=str(support.image))
        return size is not None
    except DataError as error:
        problems.append(str(error))
        return False


def _search(folder: Path, problems: list[str]) -> Found:
    """The labelled images of the folder itself; if there are none, those of its subfolders; else by a COCO file above."""
    found = _labelled(folder, None, problems)
    others = [each for each in subfolders(folder) if each.name.lower() not in _PARTS and not _loops(each, folder)]
    if found:
        holding = {parent for supports in found.values() for each in supports for parent in each.image.parents}
        if passed_over := [each.name for each in others if each not in holding]:
            problems.append(f"{folder}: holds labelled images itself, so its folders {listed(passed_over)} were passed over")
    else:
        found = _by_folder(others, problems)
    if not found and _images(folder):
        found = _from_above(folder, problems)
    return found


def _by_folder(folders: Sequence[Path], problems: list[str]) -> Found:
    """A folder for each class."""
    found: Found = {}
    for folder in folders:
        try:
            supports = _labelled(folder, folder.name, problems).get(folder.name)
        except DataError as error:
            problems.append(str(error))
        else:
            if supports:
                found[folder.name] = supports
    return found


def _loops(inner: Path, folder: Path) -> bool:
    """Whether a subfolder is a link to the folder, or to one above it."""
    place, here = (Path(os.path.realpath(path)) for path in (inner, folder))
    return place == here or place in here.parents


def _labelled(folder: Path, given: str | None, problems: list[str]) -> Found:
    """The labelled images of one folder.

    Args:
        folder: where.
        given: the one class that all of it is of; None where the files say.
        problems: is added to.
    """
    inner = {path.name.lower(): path for path in subfolders(folder)}
    images, masks = inner.get(IMAGES, folder), inner.get(MASKS)
    if masks is not None:
        return _from_masks(folder, images, masks, given, problems)
    places = list(dict.fromkeys([folder, *([inner["annotations"]] if "annotations" in inner else []), images]))
    documents = read_documents(places, problems)
    coco = {path: document for path, document in documents.items() if is_coco(document)}
    if coco and given is None:
        return _from_coco(documents, folder, problems)
    for path in coco:
        problems.append(f"{path}: is a COCO file in the folder of a class; give its own folder as the support")
    return _from_flat(folder, images, documents, given, problems)


def _images(folder: Path) -> list[Path]:
    """The image files that lie in a folder, sorted; hidden ones are passed over."""
    return [path for path in visible_files(folder) if path.suffix.lower() in EXTENSIONS]


def _from_masks(folder: Path, images: Path, masks: Path, given: str | None, problems: list[str]) -> Found:
    """images/ and masks/, of the same names."""
    named = find_images(images, problems.append)
    pairs = _matched(named, find_images(masks, problems.append), problems)
    class_folders = [each for each in subfolders(masks) if not _loops(each, masks)]
    marked = set(pairs)
    found = _by_values(folder, pairs, given, problems) if pairs or not class_folders else {}
    for inner in class_folders:
        if given is not None and inner.name != given:
            problems.append(f"{inner}: masks of another class in the folder of {given}; move them to a folder {inner.name}")
            continue
        of_class = _matched(named, find_images(inner, problems.append), problems)
        marked |= set(of_class)
        supports = _of_one_class(of_class, problems)
        if supports:
            found.setdefault(inner.name, []).extend(supports)
    _complain_unmarked([path for path in named.values() if path not in marked], len(named), images, problems)
    return found


def _matched(images: Mapping[str, Path], masks: Mapping[str, Path], problems: list[str]) -> dict[Path, Path]:
    """Image -> mask of the same name, or of that with _mask."""
    pairs: dict[Path, Path] = {}
    for stem, mask in masks.items():
        image = images.get(stem) or (images.get(stem[:-_MARKER]) if stem.lower().endswith(_MARKERS) else None)
        if image is None:
            problems.append(f"{mask}: belongs to no image; expected one called {stem}: add or rename it, or remove the mask")
        elif image in pairs:
            problems.append(f"{mask}: is a second mask of {image.name}, beside {pairs[image].name}; remove one")
        else:
            pairs[image] = mask
    return dict(sorted(pairs.items()))


def _complain_unmarked(images: Sequence[Path], of: int, folder: Path, problems: list[str]) -> None:
    """A line for each image without a mask; a single one where none has any."""
    if images and len(images) == of:
        problems.append(f"{folder}: none of its {counted(of, 'image')} has a mask; expected {LAYOUT}")
        return
    problems += [f"{image}: has no mask; expected one called {image.stem}_mask.png or {image.stem}.json" for image in images]


def _by_values(folder: Path, pairs: Mapping[Path, Path], given: str | None, problems: list[str]) -> Found:
    """The classes that the values of masks stand for."""
    if given is not None:
        return {given: supports} if (supports := _of_one_class(pairs, problems)) else {}
    names = class_names(folder / NAMES, problems.append) if (folder / NAMES).is_file() else None
    named = 0 if names is None else len(names)
    held = {image: values for image, mask in pairs.items() if (values := _marked_values(mask, problems, named))}
    values = sorted({value for each in held.values() for value in each})
    if set(values) <= {1, IGNORE} and (names is None or len(names) == 1):
        name = names[0] if names else _title(folder)
        supports = []
        for image, own in held.items():
            if 1 in values and 1 not in own:
                problems.append(f"{pairs[image]}: holds 255 but no 1, which other masks hold; write 1 where the object is")
            else:
                supports.append(Labelled(image, pairs[image], None))
        return {name: supports} if supports else {}
    found: Found = {}
    for value in [value for value in values if value != IGNORE]:
        holders = [image for image, own in held.items() if value in own]
        if names is not None and value > len(names):
            remedy = f"expected 1 to {len(names)}: correct the mask, or name it in {NAMES}"
            problems += [f"{pairs[image]}: holds the value {value}, which {NAMES} does not name; {remedy}" for image in holders]
        else:
            found[names[value - 1] if names else str(value)] = [Labelled(each, pairs[each], value) for each in holders]
    for image in [image for image, own in held.items() if own == [IGNORE]]:
        problems.append(f"{pairs[image]}: holds only 0 and 255, which is ignored beside numbers of classes; give a number")
    return found


def _of_one_class(pairs: Mapping[Path, Path], problems: list[str]) -> list[Labelled]:
    """Supports of the one class that the masks are of, whatever value it has."""
    supports: list[Labelled] = []
    for image, mask in pairs.items():
        values = _marked_values(mask, problems)
        if values in ([1], [IGNORE], [1, IGNORE]):
            supports.append(Labelled(image, mask, None))
        elif len(classes := [value for value in values if value != IGNORE]) == 1:
            supports.append(Labelled(image, mask, classes[0]))
        elif values:
            held = listed([str(value) for value in values])
            problems.append(f"{mask}: holds the values {held}; expected one, for the class, and 0 elsewhere: correct the mask")
    return supports


def _marked_values(mask: Path, problems: list[str], named: int = 0) -> list[int]:
    """The values beside 0 in a mask; none, and a problem, where it is no mask. Those up to `named` are classes for sure."""
    try:
        pixels = read_values(mask)
    except DataError as error:
        problems.append(str(error))
        return []
    counts = count_values(pixels)
    values = [int(value) for value in np.flatnonzero(counts) if value != 0]
    if not values:
        problems.append(f"{mask}: marks nothing, every value is 0; mark the object, or remove the mask")
    soft = any(named < value < IGNORE for value in values) and _is_soft(pixels, values, counts)
    if soft or (mask.suffix.lower() in _LOSSY and values not in ([], [1], [IGNORE])):
        what = "it has soft edges or greys, it seems" if soft else "JPEG does not keep values"
        problems.append(
            f"{mask}: holds {counted(len(values), 'value')} beside 0, as {what}; "
            f"save it as PNG, 0 and 255 where the object is; numbers of classes can be named in {NAMES}"
        )
        return []
    return values


def _is_soft(pixels: NDArray[np.uint8], values: Sequence[int], counts: NDArray[np.int64]) -> bool:
    """Whether the values of a mask are the greys of a picture, of an edge or a gradient, rather than classes."""
    centre = pixels[1:-1, 1:-1]
    inner = np.ones(centre.shape, bool)  # like all four neighbours: the inside of a region, of which an edge has hardly any
    for neighbour in (pixels[:-2, 1:-1], pixels[2:, 1:-1], pixels[1:-1, :-2], pixels[1:-1, 2:]):
        inner &= centre == neighbour
    inside = count_values(centre[inner])
    solid = [value for value in values if inside[value] > _INSIDE * counts[value]]
    edges = [value for value in values if value not in solid and value != IGNORE]
    high = max(edges, default=0) >= _GREY
    if high and len(solid) == 1 and max(edges) < max(solid):  # one region, and darker greys where it ends
        return True
    bright = counts[_BRIGHT:].sum() > counts[1:_BRIGHT].sum()
    if len(values) >= _SOFT and (bright or (high and len(edges) > len(values) / 2)):
        return True
    if len(values) < _GREY:
        return False
    steps = np.concatenate([np.abs(np.diff(pixels.astype(np.int16), axis=axis)).ravel() for axis in (0, 1)])
    return bool((steps[steps > 0] <= _STEP).mean() > 0.75)


def _title(folder: Path) -> str:
    return os.path.basename(os.path.abspath(folder)) or ONLY_CLASS


def _from_flat(
    folder: Path, images: Path, documents: Mapping[Path, dict[str, Any]], given: str | None, problems: list[str]
) -> Found:
    """Images with masks or LabelMe's JSON beside them."""
    pairs, alone = _paired(_images(images), problems)
    found = _by_values(folder, pairs, given, problems)
    outlined: dict[Path, Path] = {}
    by_name = {path.name: path for path in alone}
    by_stem = {path.stem: path for path in reversed(alone)}
    for path in [path for path, document in documents.items() if not is_coco(document)]:
        written = documents[path].get("imagePath")
        name = re.split(r"[\\/]", written)[-1] if isinstance(written, str) else ""
        image = by_stem.get(path.stem) or by_name.get(name)
        if image is not None and image not in outlined:
            outlined[image] = path
        elif path.stem in {image.stem for image in pairs}:
            problems.append(f"{path}: is passed over, for a mask marks the same image; remove one")
        else:
            problems.append(f"{path}: has no image beside it; expected one called {path.stem}: add it, or remove the JSON")
    labels = _from_labelme({image: (path, documents[path]) for image, path in outlined.items()}, given, problems)
    for label, supports in labels.items():
        found[label] = sorted([*found.get(label, []), *supports], key=lambda each: each.image.name)
    unmarked = [image for image in alone if image not in outlined]
    _complain_unmarked(unmarked, len(pairs) + len(alone), images, problems)
    return found


def _paired(files: Sequence[Path], problems: list[str]) -> tuple[dict[Path, Path], list[Path]]:
    """Image -> mask by their names, and the images without a mask."""
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(path.stem, []).append(path)
    masks: dict[str, list[Path]] = {}
    for stem in [stem for stem in groups if stem.lower().endswith(_MARKERS) and stem[:-_MARKER] in groups]:
        masks.setdefault(stem[:-_MARKER], []).extend(groups[stem])
    named = {mask for group in masks.values() for mask in group}
    pairs: dict[Path, Path] = {}
    alone: list[Path] = []
    for stem, group in groups.items():
        if group[0] in named:
            continue
        of_image = masks.get(stem, [])
        pngs = [path for path in group if path.suffix.lower() == ".png"]
        if not of_image and len(group) == 2 and len(pngs) == 1:
            group, of_image = [path for path in group if path not in pngs], pngs
        if stem.lower().endswith(_MARKERS) and not of_image:
            expected = stem[:-_MARKER]
            problems += [f"{path}: belongs to no image; expected one called {expected}: add it, or remove it" for path in group]
            continue
        for extra, first in [(path, group[0]) for path in group[1:]] + [(path, of_image[0]) for path in of_image[1:]]:
            problems.append(f"{extra}: stands for the same as {first.name}; rename or remove one")
        if of_image:
            pairs[group[0]] = of_image[0]
        else:
            alone.append(group[0])
    return pairs, alone


def _from_labelme(documents: Mapping[Path, tuple[Path, dict[str, Any]]], given: str | None, problems: list[str]) -> Found:
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
    found: Found = {label: [] for label in sorted(labels)}
    for image, shapes in marks.items():
        for label in dict.fromkeys(label for label, _ in shapes):
            found[label].append(Labelled(image, joined([shape for name, shape in shapes if name == label]), None))
    return {label: supports for label, supports in found.items() if supports}


def _from_coco(documents: Mapping[Path, dict[str, Any]], folder: Path, problems: list[str]) -> Found:
    """What COCO files in a folder mark, in images beside them or in a subfolder."""
    found: dict[str, dict[Path, Labelled]] = {}
    for path in [path for path, document in documents.items() if not is_coco(document)]:
        problems.append(f"{path}: is passed over, for a COCO file is there; keep one of the two")
    bases = [folder, *subfolders(folder)]
    for path in [path for path, document in documents.items() if is_coco(document)]:
        names, pictures, passed = read_marks(documents[path])
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
    if unmarked := [image for base in bases for image in _images(base) if image not in marked]:
        problems.append(f"{folder}: {counted(len(unmarked), 'image')} passed over, {unmarked[0].name} first: no outline to use")
    return _in_order(found)


def _from_above(folder: Path, problems: list[str]) -> Found:
    """What COCO files one level above a folder mark in its images."""
    above = Path(os.path.abspath(folder)).parent
    found: dict[str, dict[Path, Labelled]] = {}
    try:
        documents = read_documents([above], problems=None)
    except DataError:  # a folder that we may not list
        return {}
    for path in [path for path, document in documents.items() if is_coco(document)]:
        names, pictures, _ = read_marks(documents[path])
        found |= {name: {} for name in names if name not in found}
        for picture in pictures:  # of which many may lie in other folders
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


def _in_order(found: Mapping[str, Mapping[Path, Labelled]]) -> Found:
    return {name: [supports[image] for image in sorted(supports)] for name, supports in found.items() if supports}


def _located(file: str, bases: Sequence[Path]) -> Path | None:
    """The file of that name, below one of some folders, or of its last part only."""
    candidates = [base / name for name in dict.fromkeys((file, file.rpartition("/")[2])) for base in bases]
    return next((path for path in candidates if os.path.isfile(path)), None)
