"""Photographs to try the page with: those that installed packages bring along, cut as the gallery has them."""

from pathlib import Path

from cyctr.datasets.gallery import scenes
from cyctr.errors import DataError
from cyctr.images.imaging import write_image


def sample_photos(folder: Path) -> None:
    """Puts photographs in a folder, which is made; one that holds something is left as it is."""
    try:
        if folder.is_dir() and any(folder.iterdir()):
            return
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); choose another folder") from error
    for scene in scenes():
        for place, shot in enumerate((*scene.supports, *scene.queries), 1):
            write_image(folder / f"{scene.name}-{place}.jpg", shot.image)
