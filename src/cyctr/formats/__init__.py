"""Masks -> the files of other tools: PNG, COCO, LabelMe, YOLO, NumPy. `open_writer` opens a folder to write them into."""

from collections.abc import Sequence
from pathlib import Path

from cyctr.errors import ConfigError, DataError
from cyctr.formats.coco_writer import CocoWriter
from cyctr.formats.labelme import LabelmeWriter
from cyctr.formats.npz import ArrayWriter
from cyctr.formats.png import MaskWriter, NumberWriter, OverlapWriter
from cyctr.formats.writing import Found, Writer, check_classes
from cyctr.formats.yolo import YoloWriter
from cyctr.words import one_line

__all__ = ["FORMATS", "Found", "Writer", "open_writer"]

FORMATS: tuple[str, ...] = ("png", "coco", "labelme", "yolo", "npz")


def open_writer(
    format: str,  # noqa: A002 - the word that the command line has for it
    folder: Path,
    classes: Sequence[str],
    *,
    overlapping: bool = False,
    instances: bool = False,
    polygons: bool = False,
) -> Writer:
    """A writer of masks in one format. The folder is made when the first file is written.

    Args:
        format: one of `FORMATS`.
        folder: where; what an earlier run of the same classes left there is gone on with.
        classes: of the run.
        overlapping: masks of several classes may overlap: PNG has a file for each class then. Other formats always can.
        instances: COCO has an annotation for each connected region. LabelMe and YOLO always have a polygon for each.
        polygons: COCO has polygons instead of RLE. They cannot express holes, which count as filled. LabelMe and YOLO
            always have polygons.

    Raises:
        ConfigError: a choice that the format does not have, or a package that it needs is not installed.
        DataError: the folder holds files of other classes, or is none.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; expected one of {', '.join(FORMATS)}")
    for choice, chosen in (("instances", instances), ("polygons", polygons)):
        if chosen and format in ("png", "npz"):
            raise ConfigError(f"format is {format}, which has no {choice}; choose coco, labelme or yolo, or leave {choice} out")
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{one_line(folder)}: is a file; expected a folder: choose another place")
    names = check_classes(classes)
    match format:
        case "coco":
            return CocoWriter(folder, names, instances, polygons)
        case "labelme":
            return LabelmeWriter(folder, names)
        case "yolo":
            return YoloWriter(folder, names)
        case "npz":
            return ArrayWriter(folder, names)
    if len(names) == 1:
        return MaskWriter(folder, names)
    return OverlapWriter(folder, names) if overlapping else NumberWriter(folder, names)
