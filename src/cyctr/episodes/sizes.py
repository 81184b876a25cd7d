"""How long the lists of a benchmark are: the first thing to compare when numbers differ between repositories."""

from dataclasses import dataclass

from cyctr.config import ProtocolConfig
from cyctr.datasets.dataset import Dataset, OnProgress, Split
from cyctr.episodes.sampler import eligible

_SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class ListSize:
    """One side of one fold: its classes, its images, its (image, class) pairs, and the class with the fewest images."""

    fold: int
    split: Split
    classes: int
    images: int
    pairs: int
    rarest: str
    fewest: int


def list_sizes(dataset: Dataset, protocol: ProtocolConfig, progress: OnProgress | None = None) -> list[ListSize]:
    """The sizes of every fold's lists, as the protocol filters them."""
    rows = []
    for split in _SPLITS:
        sides = [(number, classes) for number, fold in enumerate(dataset.folds) if (classes := fold.classes(split))]
        if not sides or (split == "train" and split not in dataset.pools):
            continue
        index = dataset.pool(split).index(progress)
        for number, classes in sides:
            images, numbers = eligible(dataset, index, number, split, protocol.smallest, protocol.drop_novel)
            held = {c: int((numbers == c).sum()) for c in classes}
            rarest = min(classes, key=lambda c: held[c])
            count = len(set(images.tolist()))
            rows.append(ListSize(number, split, len(classes), count, len(images), dataset.classes[rarest], held[rarest]))
    return sorted(rows, key=lambda row: (_SPLITS.index(row.split), row.fold))
