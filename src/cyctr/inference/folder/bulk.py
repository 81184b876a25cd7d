"""A folder of images -> a folder of masks, image by image."""

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cyctr.errors import DataError
from cyctr.formats import Found, Writer
from cyctr.images.imaging import write_image
from cyctr.inference.folder.ledger import OVERLAYS, REVIEW, Ledger, picture
from cyctr.inference.folder.queries import QueryFile
from cyctr.inference.result import PRESENT, drawn
from cyctr.inference.segment_options import SegmentOptions
from cyctr.inference.segmenter import Segmenter
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.limits import JPEG_SIDE, OVERLAY_PIXELS
from cyctr.types import Pixels
from cyctr.visual.contact import fitted

_THUMBNAIL = 320
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def segment_folder(
    segmenter: Segmenter,
    supports: Mapping[str, EncodedSupport],
    queries: Sequence[QueryFile],
    ledger: Ledger,
    writer: Writer,
    *,
    overlapping: bool = False,
    pictures: Sequence[str] = (OVERLAYS,),
    batch: int | None = None,
    on_image: Callable[[QueryFile, str | None], None] = lambda query, problem: None,
    options: SegmentOptions | None = None,
) -> dict[str, str]:
    """Segments images and writes what it finds; returns, by key, the problem of each that cannot be read or written.

    Args:
        segmenter: of the supports.
        supports: by the name of the class.
        queries: what `Ledger.remaining` gives.
        ledger: of the run.
        writer: of the masks.
        overlapping: masks may share pixels; otherwise each pixel belongs to the likeliest class only.
        pictures: of each image with its masks: `OVERLAYS`, `REVIEW` for small ones, or both.
        batch: images at a time.
        on_image: told of each image that is done, and of its problem if it has one.
        options: of `Segmenter.segment_many`.
    """
    stamps = [ledger.stamp(query) for query in queries]  # before they are read: what changes meanwhile is done again
    problems: dict[str, str] = {}
    # of these only pictures are missing: their masks stay, since somebody may have mended them
    drawn_alone = {query.key for query in queries if ledger.written(query, writer)}
    for query in queries:
        if query.key not in drawn_alone:
            ledger.records.pop(query.key, None)

    def complain(place: int, error: DataError) -> None:
        problems[queries[place].key] = str(error)
        on_image(queries[place], str(error))

    paths = [query.path for query in queries]
    for result in segmenter.segment_many(paths, supports, batch=batch, complain=complain, **(vars(options) if options else {})):
        query, place, image = queries[result.place], result.place, result.image
        labels = result.labels if len(result.classes) > 1 and (pictures or not overlapping) else None
        whole = {name: one.mask for name, one in result.classes.items()} if overlapping or labels is None else {}
        given = {
            name: (one.probability if writer.writes_probabilities else None, one.confidence)
            for name, one in result.classes.items()
        }
        del result  # and with it probabilities and masks, which of a large image are large
        apart = {} if labels is None else {name: labels == number for number, name in enumerate(given, 1)}
        found = [Found(name, mask, *given[name]) for name, mask in (whole or apart).items()]
        shown, record = list((apart or whole).values()), _record(query, found)
        del labels, whole, given, apart
        try:
            files = [] if query.key in drawn_alone else writer.write(query.key, query.path, found)
            found.clear()
            _draw(ledger.folder, query.key, image, shown, pictures)
        except DataError as error:
            if not _is_of_its_name(error):
                raise
            complain(place, error)
        else:
            if query.key not in drawn_alone:
                own = [name for name in files if name not in writer.shared] or list(writer.shared[:1])  # one for all
                ledger.add(query.key, {**record, "files": own}, stamps[place])
            on_image(query, None)
        del found, shown, image  # before the next is read
    return problems


def _draw(folder: Path, key: str, image: Pixels, masks: Sequence[NDArray[np.bool_]], pictures: Sequence[str]) -> None:
    if pictures:
        height, width = image.shape[:2]
        step = max(math.ceil(math.sqrt(height * width / OVERLAY_PIXELS)), math.ceil(max(height, width) / JPEG_SIDE))
        whole = drawn(image, masks, step)
        for kind in pictures:
            write_image(folder / picture(kind, key), fitted(whole, _THUMBNAIL) if kind == REVIEW else whole)


def _is_of_its_name(error: BaseException | None) -> bool:
    """Whether a file could not be written for what it is called; others can, then."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in _NAME_ERRORS


def _record(query: QueryFile, found: Sequence[Found]) -> dict[str, Any]:
    """What was found in an image; the files that were written are not known yet."""
    height, width = found[0].mask.shape
    classes = {
        one.name: {
            "confidence": round(one.confidence, 4),
            "present": one.confidence >= PRESENT and bool(one.mask.any()),  # another class may have taken all of it
            "pixels": int(one.mask.sum()),
            "box": _box(one.mask),
        }
        for one in found
    }
    return {"image": str(query.path), "height": height, "width": width, "classes": classes}


def _box(mask: Any) -> list[int] | None:
    """[left, top, right, bottom], the last two exclusive; None for an empty mask."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return None if not len(rows) else [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
