"""Class splits: which classes are learned from, and which are only met in the test."""

from collections.abc import Sequence

from cyctr.datasets.dataset import Fold
from cyctr.errors import DataError
from cyctr.seeding import Stream

_FOLDS = 4


def contiguous(classes: int) -> tuple[Fold, ...]:
    """Fold i of four tests the i-th block of classes: PASCAL-5^i, and PANet's COCO-20^i."""
    if classes % _FOLDS:
        raise DataError(f"{classes} classes do not divide into {_FOLDS} folds of equal size; use `seeded`")
    size = classes // _FOLDS
    return _folds(classes, [range(i * size, (i + 1) * size) for i in range(_FOLDS)])


def interleaved(classes: int) -> tuple[Fold, ...]:
    """Fold i of four tests classes i, i + 4, ...: COCO-20^i after FWB, the usual one."""
    return _folds(classes, [range(i, classes, _FOLDS) for i in range(_FOLDS)])


def seeded(classes: int, folds: int, seed: int) -> tuple[Fold, ...]:
    """Every class in the test of one fold, drawn from a seed."""
    if not 2 <= folds <= classes:
        raise DataError(f"folds is {folds} for {classes} classes; expected 2 to {classes}")
    order = Stream("folds", seed).choose(classes, classes)
    return _folds(classes, [sorted(order[i::folds]) for i in range(folds)])


def named(classes: Sequence[str], test: Sequence[str]) -> tuple[Fold, ...]:
    """One fold that tests the classes of these names."""
    unknown = [name for name in test if name not in classes]
    if unknown:
        raise DataError(f"class {unknown[0]!r} is not in the dataset; expected some of {', '.join(classes[:20])}")
    return _folds(len(classes), [[number for number, name in enumerate(classes) if name in test]])


def everything(classes: int) -> tuple[Fold, ...]:
    """One fold that tests every class, and leaves none to learn from."""
    return _folds(classes, [range(classes)])


def _folds(classes: int, tests: Sequence[Sequence[int]]) -> tuple[Fold, ...]:
    return tuple(Fold(tuple(n for n in range(classes) if n not in test), tuple(test)) for test in tests)


def hold_out(fold: Fold, count: int) -> Fold:
    """The fold with `count` of its training classes kept for validation: always the same ones."""
    most = len(fold.train) - 1
    if not 0 <= count <= most:
        raise DataError(f"training.hold_out is {count}; the fold has {len(fold.train)} training classes: expected 0 to {most}")
    order = Stream("hold out", *fold.train).choose(len(fold.train), count)
    kept = tuple(sorted(fold.train[place] for place in order))
    return Fold(tuple(number for number in fold.train if number not in kept), fold.test, kept)
