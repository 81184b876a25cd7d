"""Image and mask files -> supports by class: the values in the masks say which classes there are."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cyctr.datasets.own_folder import NAMES, ONLY_CLASS, class_names
from cyctr.errors import DataError
from cyctr.images.counting import count_values
from cyctr.images.imaging import read_values
from cyctr.inference.supports.labelled import ByClass, Labelled
from cyctr.types import IGNORE
from cyctr.words import counted, listed

_SOFT, _BRIGHT = 8, 192  # so many values, most of those beside 0 bright, are a picture in black and white, not classes
_GREY = 32  # values and more, or a value this high, are rarely numbers of classes
_STEP = 2  # between neighbours of a gradient
_INSIDE = 0.1  # share of its pixels that a region has inside; of 3 x 3 pixels it is one
_LOSSY = (".jpg", ".jpeg")


def by_values(folder: Path, pairs: Mapping[Path, Path], given: str | None, problems: list[str]) -> ByClass:
    """The classes that the values of masks stand for."""
    if given is not None:
        return {given: supports} if (supports := of_one_class(pairs, problems)) else {}
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
    found: ByClass = {}
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


def of_one_class(pairs: Mapping[Path, Path], problems: list[str]) -> list[Labelled]:
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
    inner = np.ones(centre.shape, bool)  # equal to all four neighbours: the inside of a region. A soft edge has hardly any
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
