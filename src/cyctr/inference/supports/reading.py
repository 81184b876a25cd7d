"""A folder of labelled images -> the supports of each class, by whichever layout is there."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyctr.datasets.listing import subfolders
from cyctr.datasets.own_folder import IMAGES, MASKS
from cyctr.errors import ConfigError, DataError
from cyctr.images.imaging import find_images
from cyctr.inference.inputs import to_image, to_label
from cyctr.inference.supports.encoded import read_support
from cyctr.inference.supports.labelled import ByClass, Labelled
from cyctr.inference.supports.mask_values import by_values, of_one_class
from cyctr.inference.supports.outlined import from_above, from_coco, from_labelme
from cyctr.inference.supports.outlines import is_coco, read_documents
from cyctr.inference.supports.pairing import LAYOUT, complain_unmarked, images_in, matched, paired
from cyctr.words import counted, listed

_PARTS = (IMAGES, MASKS, "annotations")


@dataclass(frozen=True)
class LabelledClasses:
    """The labelled images that were found, by class.

    Attributes:
        classes: the labelled images of each class, one or more, each of which can be read; or the file of a saved support.
        problems: a line for each file that was passed over, and why.
        files: the labelled images and masks of every class, also of those that were not wanted.
    """

    classes: dict[str, tuple[Labelled, ...] | Path]
    problems: tuple[str, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class SupportFolder:
    """What a folder holds.

    Attributes:
        classes: the supports of each class, one or more, sorted by name; each has been read once and can be used.
        problems: a line for each file that was passed over, and why.
        lost: for each class without a usable image, why.
    """

    classes: dict[str, tuple[Labelled, ...]]
    problems: tuple[str, ...]
    lost: dict[str, str]


def read_supports(*places: str | Path, classes: Sequence[str] | None = None) -> LabelledClasses:
    """The labelled images of folders, and the files of saved supports, by class.

    In a folder, the first of these layouts that is there counts:

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
        places: folders of labelled images, and files that `EncodedSupport.save` wrote.
        classes: the classes wanted, in this order; None takes all, as they come.

    Raises:
        DataError: a folder holds nothing labelled, or nothing is left of a class that was asked for.
        ConfigError: `classes` names something that is not there, or a class comes from two places.
    """
    if not places:
        raise ConfigError("no place was given; expected folders of labelled images, or files of saved supports")
    if classes is not None and not classes:
        raise ConfigError("classes is empty; name one class or more, or leave it out to take them all")
    found: dict[str, tuple[Labelled, ...] | Path] = {}
    problems: list[str] = []
    lost: dict[str, str] = {}
    for path in map(Path, places):
        own: dict[str, tuple[Labelled, ...] | Path] = {}
        if path.is_file():
            own[read_support(path).name] = path
        else:
            folder = find_supports(path)
            own.update(folder.classes)
            problems += folder.problems
            lost |= {name: f"{path}: no labelled image of {name} is left; {why}" for name, why in folder.lost.items()}
        if twice := [name for name in own if name in found and (classes is None or name in classes)]:
            raise ConfigError(f"class {twice[0]!r} comes from two supports; rename one, or give one of them")
        found |= own
    for name in classes or ():
        if name not in found and name in lost:
            raise DataError(lost[name])
        if name not in found:
            shown = listed(sorted(found))
            raise ConfigError(f"there is no class {name!r}; the supports show {shown}: choose among these")
    shots = [shot for of_class in found.values() if not isinstance(of_class, Path) for shot in of_class]
    files = [path for shot in shots for path in (shot.image, shot.mask) if isinstance(path, Path)]
    return LabelledClasses(
        {name: found[name] for name in classes or found}, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(files))
    )


def find_supports(folder: Path) -> SupportFolder:
    """The labelled images of one folder; see `read_supports`."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {what}; expected labelled images: {LAYOUT}")
    problems: list[str] = []
    kept: dict[str, tuple[Labelled, ...]] = {}
    lost: dict[str, str] = {}
    sizes: dict[Path, tuple[int, int] | None] = {}
    for name, supports in _search(folder, problems).items():
        passed: list[str] = []
        usable = tuple(each for each in supports if _usable(each, sizes, passed))
        problems += passed
        if usable:
            kept[name] = usable
        else:
            lost[name] = _why(passed)
    if not kept:
        raise DataError(f"{folder}: no labelled image is left; {_why(problems)}")
    return SupportFolder(kept, tuple(dict.fromkeys(problems)), lost)


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


def _search(folder: Path, problems: list[str]) -> ByClass:
    """The labelled images of the folder itself; if there are none, those of its subfolders; else by a COCO file above."""
    found = _labelled(folder, None, problems)
    others = [each for each in subfolders(folder) if each.name.lower() not in _PARTS and not _loops(each, folder)]
    if found:
        holding = {parent for supports in found.values() for each in supports for parent in each.image.parents}
        if passed_over := [each.name for each in others if each not in holding]:
            problems.append(f"{folder}: holds labelled images itself, so its folders {listed(passed_over)} were passed over")
    else:
        found = _by_folder(others, problems)
    if not found and images_in(folder):
        found = from_above(folder, problems)
    return found


def _by_folder(folders: Sequence[Path], problems: list[str]) -> ByClass:
    """A folder for each class."""
    found: ByClass = {}
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


def _labelled(folder: Path, given: str | None, problems: list[str]) -> ByClass:
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
        return from_coco(documents, folder, problems)
    for path in coco:
        problems.append(f"{path}: is a COCO file in the folder of a class; give its own folder as the support")
    return _from_flat(folder, images, documents, given, problems)


def _from_masks(folder: Path, images: Path, masks: Path, given: str | None, problems: list[str]) -> ByClass:
    """images/ and masks/, of the same names."""
    named = find_images(images, problems.append)
    pairs = matched(named, find_images(masks, problems.append), problems)
    class_folders = [each for each in subfolders(masks) if not _loops(each, masks)]
    marked = set(pairs)
    found = by_values(folder, pairs, given, problems) if pairs or not class_folders else {}
    for inner in class_folders:
        if given is not None and inner.name != given:
            problems.append(f"{inner}: masks of another class in the folder of {given}; move them to a folder {inner.name}")
            continue
        of_class = matched(named, find_images(inner, problems.append), problems)
        marked |= set(of_class)
        supports = of_one_class(of_class, problems)
        if supports:
            found.setdefault(inner.name, []).extend(supports)
    complain_unmarked([path for path in named.values() if path not in marked], len(named), images, problems)
    return found


def _from_flat(
    folder: Path, images: Path, documents: Mapping[Path, dict[str, Any]], given: str | None, problems: list[str]
) -> ByClass:
    """Images with masks or LabelMe's JSON beside them."""
    pairs, alone = paired(images_in(images), problems)
    found = by_values(folder, pairs, given, problems)
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
    labels = from_labelme({image: (path, documents[path]) for image, path in outlined.items()}, given, problems)
    for label, supports in labels.items():
        found[label] = sorted([*found.get(label, []), *supports], key=lambda each: each.image.name)
    unmarked = [image for image in alone if image not in outlined]
    complain_unmarked(unmarked, len(pairs) + len(alone), images, problems)
    return found
