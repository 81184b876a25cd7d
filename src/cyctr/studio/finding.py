"""What the network finds in a photo -> masks of the project, where no person has decided."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cyctr.inference.result import ImageResult
from cyctr.storage import write_atomically
from cyctr.studio.masks import Bools, Masks, encoded
from cyctr.studio.project import CACHE, Project
from cyctr.studio.records import Mask, Photo

_SAME = 0.98  # IoU with the earlier mask, from which a mask has not changed


@dataclass(frozen=True)
class Stored:
    """A mask that was written.

    Attributes:
        mask: what is known of it.
        iou: with the mask that was there before; none where there was none.
    """

    mask: Mask
    iou: float | None

    @property
    def changed(self) -> bool:
        """Whether it differs from the mask that was there before."""
        return self.iou is not None and self.iou < _SAME


def store_result(project: Project, masks: Masks, photo: Photo, result: ImageResult, compare: bool) -> list[Stored]:
    """Writes what was found of each class in a photo.

    Args:
        project: of the photo.
        masks: of the project.
        photo: as it was when it was read.
        result: with the ids of classes for names.
        compare: keep the earlier mask of what has changed.
    """
    known = project.store.masks([photo.id])[photo.id]
    taken = [read[0] for number, one in known.items() if one.origin == "person" and (read := masks.read(photo, number))]
    stored = []
    for name, mask in result.disjoint.items():
        number = int(name)
        for other in taken:
            mask = mask & ~other  # what a person has painted belongs to its class
        before = masks.read(photo, number) if compare else None
        made = masks.put_found(photo.id, number, mask, result.classes[name].confidence)
        if made is None:
            continue
        one = Stored(made, None if before is None else iou(before[0], mask))
        if compare and before is not None and one.changed:
            _keep_before(project, photo, number, before[0])
            project.store.add_change(photo.id, number, round(one.iou or 0.0, 4))
        stored.append(one)
    return stored


def before_path(project: Project, photo: Photo, class_id: int) -> Any:
    """Where the mask is kept that a run has changed."""
    return project.folder / CACHE / "before" / project.class_of(class_id).folder / f"{photo.file}.png"


def iou(one: Bools, other: Bools) -> float:
    """Of two masks; 1 where both are empty."""
    union = np.count_nonzero(one | other)
    return float(np.count_nonzero(one & other) / union) if union else 1.0


def _keep_before(project: Project, photo: Photo, class_id: int, mask: Bools) -> None:
    write_atomically(before_path(project, photo, class_id), encoded(mask))
