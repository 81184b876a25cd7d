"""The network that a command segments with, and the labelled photos that it learns a class from."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cyctr.errors import ConfigError
from cyctr.methods.table import METHODS
from cyctr.pretrained import NAMES

if TYPE_CHECKING:
    from cyctr.datasets.dataset import OnProgress
    from cyctr.inference import EncodedSupport, Segmenter
    from cyctr.inference.supports.reading import LabelledClasses

_WEIGHTS = "efficientnet-lite0"  # those of the network that is usual
_SHOWN = 20  # notes on labelled images
_UNLABELLED = (": has no mask; ", ": holds labelled images itself, ")  # in the problems of `read_supports`

Model = Annotated[
    str | None,
    typer.Option("--model", help="lite0, resnet50, or the path of a checkpoint, of any method.", show_default="lite0"),
]
Untrained = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="In place of --model, a method that learns nothing: prior, prototype, or package.module:Class of your own.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Backbone of --method: a name of `cyctr weights list`, or tiny.",
        show_default=_WEIGHTS,
    ),
]


def open_segmenter(
    model: str | None,
    device: str,
    precision: str,
    progress: "OnProgress",
    method: str | None = None,
    weights: str | None = None,
) -> "Segmenter":
    """The network, or the method that learns nothing, that a command names, ready."""
    from cyctr.inference import Segmenter

    usual: dict[str, Any] = {"device": device, "precision": precision, "progress": progress}
    if method is None:
        if weights is not None:
            raise ConfigError(f"--weights is {weights} without --method; a checkpoint has a backbone of its own: leave it out")
        return Segmenter.from_pretrained(model, **usual)
    if model is not None:
        raise ConfigError(f"--model is {model} and --method is {method}; a checkpoint names its method: leave one of them out")
    if method in METHODS:
        raise ConfigError(
            f"--method is {method}, which needs trained weights; train it with `cyctr train --method {method}`, and give its "
            "checkpoint as --model"
        )
    if method in NAMES or Path(method).is_file():
        raise ConfigError(f"--method is {method}, which has trained weights; give it as --model")
    return Segmenter.from_method(method, weights=weights or _WEIGHTS, **usual)


def encode_supports(
    segmenter: "Segmenter",
    found: "LabelledClasses",
    tile: int | None = None,
    queries: Sequence[Path] = (),
    negatives: Sequence[Path] = (),
) -> "dict[str, EncodedSupport]":
    """The classes that were found, encoded. Each file that is passed over is named in a note.

    Args:
        segmenter: encodes them.
        found: what `cyctr.read_supports` gives.
        tile: side of the windows to cut around objects.
        queries: images that are to be segmented, and need no mask.
        negatives: folders of images that show none of the classes.
    """
    from cyctr.inference.supports.shots import find_negatives

    without = [path for folder in negatives for path in find_negatives(folder)]
    problems = list(found.problems)
    supports = segmenter.encode_supports(found, tile=tile, negatives=without, complain=problems.append)
    _tell_of(problems, queries)
    return supports


def _tell_of(problems: Sequence[str], queries: Sequence[Path]) -> None:
    """A note for each of the first problems; that a query is not labelled is none."""
    places = {str(place) for path in map(os.path.abspath, queries) for place in (path, *Path(path).parents)}
    real = [
        problem
        for problem in problems
        if not any(os.path.abspath(problem.partition(words)[0]) in places for words in _UNLABELLED)
    ]
    for problem in real[:_SHOWN]:
        warnings.warn(f"left out: {problem}", stacklevel=3)
    if len(real) > _SHOWN:
        warnings.warn(f"left out: {len(real) - _SHOWN:,} more", stacklevel=3)
