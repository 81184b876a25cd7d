"""Labelled files of a class -> its encoded support."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cyctr.errors import DataError
from cyctr.inference.inputs import ImageLike, to_image, to_label
from cyctr.inference.supports.encoded import EncodedSupport
from cyctr.inference.supports.labelled import Labelled
from cyctr.words import counted

if TYPE_CHECKING:
    from cyctr.inference.segmenter import Segmenter

_KEPT = 2**26  # bytes of a labelled image that is kept until all are read


def encode_labelled(
    segmenter: "Segmenter",
    name: str,
    shots: Sequence[Labelled],
    tile: int | None,
    complain: Callable[[str], None],
    negatives: Sequence[ImageLike] = (),
) -> EncodedSupport:
    """The support of a class from labelled files; those that cannot be read are left out, and complained of."""
    images: list[ImageLike] = []
    labels = []
    for shot in shots:
        try:
            image = to_image(shot.image)
            labels.append(to_label(shot.mask, (image.shape[0], image.shape[1]), shot.class_id, str(shot.image)))
            images.append(image if image.size < _KEPT else shot.image)  # a large one is read again when its turn comes
            del image
        except DataError as error:
            complain(str(error))
    if not images:
        raise DataError(f"class {name!r}: none of its {counted(len(shots), 'labelled image')} can be read; mend them")
    return segmenter.encode_support(images, labels, name=name, class_id=1, tile=tile, negatives=negatives)
