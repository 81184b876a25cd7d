"""All that is wrong with a dataset, at once, before a training stumbles over it after an hour."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyctr.datasets.dataset import Dataset, OnProgress, Pool
from cyctr.datasets.index import Index
from cyctr.datasets.opening import open_dataset, resolve
from cyctr.datasets.parallel import in_threads
from cyctr.errors import DataError
from cyctr.words import counted, listed

_WHOLE = "all"
_SHOTS = 5


@dataclass(frozen=True)
class CheckReport:
    """What a dataset holds.

    Attributes:
        kind: which it is; the one asked for where that could not be found out.
        images: how many there are in each split; under "all" where the splits share them.
        classes: in each split, how many images count for each class.
        problems: what has to be mended, a line each.
        notes: what may be as intended, but limits the use.
    """

    kind: str
    images: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> list[str]:
        """The counts and the notes, a line each."""
        lines = []
        for split, counts in self.classes.items():
            title = f"{self.kind}{'' if split == _WHOLE else f', {split}'}"
            lines.append(f"{title}: {counted(self.images[split], 'image')}, {counted(len(counts), 'class')}")
            if counts:
                few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
                equal = f" with {counted(counts[few], 'image')}{' each' * (len(counts) > 1)}"
                spread = f" with {counts[few]:,} ({few}) to {counted(counts[many], 'image')} ({many})"
                lines[-1] += equal if counts[few] == counts[many] else spread
        return lines + self.notes


def check(root: Path, kind: str = "auto", progress: OnProgress | None = None, **options: Any) -> CheckReport:
    """Reads every image and every mask of a dataset, and changes none.

    Args:
        root: the folder.
        kind: one of `opening.KINDS`, or "auto".
        progress: told how many are done of the masks of a split, then of its images, then of the next split's.
        options: others of `open_dataset`.

    Raises:
        ConfigError: an option is wrong, as opposed to the data.
    """
    problems: dict[str, None] = {}  # in order, each once

    def collect(problem: str) -> None:
        problems.setdefault(problem)

    found = kind
    images: dict[str, int] = {}
    classes: dict[str, dict[str, int]] = {}
    notes: list[str] = []
    try:
        found = resolve(root, kind)
        dataset = open_dataset(root, found, complain=collect, **options)
        for split, pool in _pools(dataset).items():
            index = pool.index(progress, collect)
            images[split] = len(pool.keys)
            _decode(pool, index, progress, problems)
            counts = Counter(index.pairs(range(len(dataset.classes)), dataset.smallest)[1].tolist())
            classes[split] = {name: counts[number] for number, name in enumerate(dataset.classes)}
            if images[split]:
                _judge(root, split, classes[split], dataset.smallest, problems, notes)
    except (DataError, OSError) as error:
        collect(str(error))
    return CheckReport(found, images, classes, list(problems), notes)


def _pools(dataset: Dataset) -> dict[str, Pool]:
    """The images of each split, or all of them where the splits share them."""
    if len({id(pool) for pool in dataset.pools.values()}) == 1:
        return {_WHOLE: next(iter(dataset.pools.values()))}
    return {str(split): pool for split, pool in dataset.pools.items()}


def _decode(pool: Pool, index: Index, progress: OnProgress | None, problems: dict[str, None]) -> None:
    """Decodes every image to its end."""
    sizes = index.sizes.tolist()

    def attempt(i: int) -> str | None:
        try:
            height, width = pool.image(i).shape[:2]
        except DataError as error:
            return str(error)
        if any(sizes[i]) and [height, width] != sizes[i]:
            return (
                f"{pool.keys[i]}: image decodes to {height} x {width}, its mask is {sizes[i][0]} x {sizes[i][1]} "
                "(height x width); save the image again"
            )
        return None

    for problem in in_threads(attempt, len(pool.keys), progress):
        if problem is not None:
            problems.setdefault(problem)


def _judge(root: Path, split: str, counts: dict[str, int], smallest: int, problems: dict[str, None], notes: list[str]) -> None:
    """Says which classes have too few images to form an episode."""
    where = f"{root}" if split == _WHOLE else f"{root} ({split})"
    pixels = "pixels of it" if smallest == 1 else f"{smallest} pixels of it or more"
    for name, count in counts.items():
        if count < 2:
            problems.setdefault(
                f"{where}: class {name} has {counted(count, 'image')} with {pixels}; an episode needs 2: "
                "add images, or remove the class"
            )
    rare = [f"{name} ({count})" for name, count in counts.items() if 2 <= count <= _SHOTS]
    if rare:
        few = counted(len(rare), "class")
        notes.append(f"{where}: {few} of fewer than the {_SHOTS + 1} images that a {_SHOTS}-shot episode needs: {listed(rare)}")
