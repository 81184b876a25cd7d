"""The examples of a project: copies of their photos beside their masks, and what the network makes of them."""

import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from cyctr.errors import CyctrError
from cyctr.inference.segmenter import Segmenter
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.studio.listing import looked_at, path_of
from cyctr.studio.masks import Masks
from cyctr.studio.project import IMAGES, NEGATIVES, Project
from cyctr.studio.records import Mask, Photo
from cyctr.studio.refusals import FullError, RefusedError
from cyctr.words import one_line

_MOST_NEGATIVES = 12
_Key = tuple[tuple[str, int], ...]


class Examples:
    """Which photos show a class. Threads may change it; one thread encodes."""

    def __init__(self, project: Project, masks: Masks) -> None:
        self._project, self._masks = project, masks
        self._lock = threading.RLock()
        self._encoded: dict[int, tuple[_Key, EncodedSupport]] = {}

    def set_example(self, photo: Photo, on: bool) -> None:
        """Makes the masks of a photo examples, or takes that back."""
        with self._lock:
            if on:
                if not any(one.origin == "person" and one.area for one in self._of(photo).values()):
                    self._adopt(photo)
                self._copy(photo, self._project.folder / IMAGES)
            self._project.store.update(photo.id, example=int(on))
            self._masks.place(self._project.store.photo(photo.id))
            if not on:
                self._removed(photo, self._project.folder / IMAGES)

    def set_negative(self, photo: Photo, class_id: int, on: bool) -> None:
        """Notes that a class is not in a photo, or takes that back."""
        with self._lock:
            folder = self._project.folder / NEGATIVES / self._project.class_of(class_id).folder
            if on:
                self._copy(photo, folder)
            self._project.store.set_negative(photo.id, class_id, on)
            if not on:
                self._removed(photo, folder)

    def heal(self) -> None:
        """Copies the photos of examples that a process which was killed had no time to copy."""
        for class_id in self._project.classes:
            for photo, _ in self._project.store.examples(class_id):
                if path_of(self._project, photo).is_file():
                    self._copy(photo, self._project.folder / IMAGES)

    def supports(self, segmenter: Segmenter, complain: Callable[[str], None]) -> dict[int, EncodedSupport]:
        """What the network knows of each class that has examples; only those that have changed are encoded.

        Args:
            segmenter: which network.
            complain: told of what is odd about an example, or why a class cannot be used.
        """
        found = {}
        for class_id, one in list(self._project.classes.items()):
            shots = self._project.store.examples(class_id)
            if not shots:
                self._encoded.pop(class_id, None)
                continue
            without = self._negatives(class_id, shots)
            key = (*((photo.id, mask.revision) for photo, mask in shots), *((photo.id, 0) for photo in without), (one.name, 0))
            before = self._encoded.get(class_id)
            if before is None or before[0] != key:
                try:
                    before = (key, self._encode(segmenter, class_id, shots, without, complain))
                except CyctrError as error:
                    complain(one_line(error))
                    continue
                self._encoded[class_id] = before
            found[class_id] = before[1]
        return found

    def encode(self, segmenter: Segmenter, class_id: int, most: int, complain: Callable[[str], None]) -> EncodedSupport:
        """The support of the first few examples of a class, for pictures that have room for no more."""
        shots = self._project.store.examples(class_id)[:most]
        if not shots:
            raise RefusedError(f"class {self._project.class_of(class_id).name!r} has no example; paint one first")
        return self._encode(segmenter, class_id, shots, self._negatives(class_id, shots), complain)

    def _negatives(self, class_id: int, shots: list[tuple[Photo, Mask]]) -> list[Photo]:
        """The photos without a class that teach most, as each costs as much as an example."""
        shown = {photo.id for photo, _ in shots}
        found = self._project.store.negative_photos(class_id)
        return [photo for photo in found if photo.id not in shown][:_MOST_NEGATIVES]

    def _encode(
        self,
        segmenter: Segmenter,
        class_id: int,
        shots: list[tuple[Photo, Mask]],
        without: list[Photo],
        complain: Callable[[str], None],
    ) -> EncodedSupport:
        images, labels = [], []
        for photo, _ in shots:
            photo = looked_at(self._project, photo)
            read = self._masks.read(photo, class_id)
            if read is not None and read[0].any():
                images.append(path_of(self._project, photo))
                labels.append(read[0])
        name = self._project.class_of(class_id).name
        with warnings.catch_warnings(record=True) as odd:
            warnings.simplefilter("always")
            negatives = [path_of(self._project, photo) for photo in without if looked_at(self._project, photo).problem is None]
            support = segmenter.encode_support(images, labels, name=name, negatives=negatives)
        for warning in odd:
            complain(one_line(warning.message))
        return support

    def _adopt(self, photo: Photo) -> None:
        """Makes masks that the network found a person's, who says that they are right."""
        for class_id, known in self._of(photo).items():
            read = self._masks.read(photo, class_id)
            if read is not None and known.area:
                self._masks.put(photo, class_id, read[0], "person")
        if not any(one.area for one in self._of(photo).values()):
            raise RefusedError(f"{photo.name}: marks nothing; paint what it is an example of")

    def _of(self, photo: Photo) -> dict[int, Mask]:
        return self._project.store.masks([photo.id])[photo.id]

    def _copy(self, photo: Photo, folder: Path) -> None:
        """A link to the file of a photo, or a copy of it, in a folder of the project."""
        source, target = path_of(self._project, photo), self._target(photo, folder)
        if target.exists():
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # on another disk, or one without links
                draft = target.with_name(f".{os.getpid()}.{target.name}")
                shutil.copyfile(source, draft)
                os.replace(draft, target)
        except OSError as error:
            raise FullError(
                f"{target}: cannot be written ({error.strerror}); make room on the disk, it is tried again"
            ) from error

    def _removed(self, photo: Photo, folder: Path) -> None:
        self._target(photo, folder).unlink(missing_ok=True)

    def _target(self, photo: Photo, folder: Path) -> Path:
        return folder / f"{photo.file}{Path(os.fsdecode(photo.path)).suffix}"
