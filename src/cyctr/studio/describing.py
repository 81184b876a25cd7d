"""Photos, classes and the project as the page is told of them: plain values for JSON."""

from collections.abc import Sequence
from typing import Any

from cyctr.studio.project import Project
from cyctr.studio.records import Mask, Photo


def mask_values(mask: Mask) -> dict[str, Any]:
    """What the page knows of a mask."""
    return {
        "origin": mask.origin,
        "revision": mask.revision,
        "confidence": mask.confidence,
        "area": mask.area,
        "changed": mask.changed // 10**9,
    }


def photo_values(project: Project, photos: Sequence[Photo]) -> list[dict[str, Any]]:
    """What the page knows of some photos."""
    masks = project.store.masks([photo.id for photo in photos])
    negatives = project.store.negatives_of([photo.id for photo in photos])
    return [
        {
            "id": photo.id,
            "name": photo.name,
            "width": photo.size[1],
            "height": photo.size[0],
            "state": photo.state,
            "example": photo.example,
            "problem": photo.problem,
            "negative": negatives[photo.id],
            "masks": {str(number): mask_values(mask) for number, mask in masks[photo.id].items()},
        }
        for photo in photos
    ]


def class_values(project: Project) -> list[dict[str, Any]]:
    """What the page knows of the classes."""
    counts = project.store.class_counts()
    none = {"examples": 0, "negatives": 0, "found": 0, "person": 0}
    return [
        {"id": one.id, "name": one.name, "color": one.color, **counts.get(number, none)}
        for number, one in sorted(project.classes.items())
    ]
