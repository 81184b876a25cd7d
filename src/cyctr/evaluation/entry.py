"""An evaluation in one call: what `cyctr evaluate` does, without its words and files."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyctr.datasets.dataset import Dataset
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device, episodes_together
from cyctr.evaluation.answering import NetworkMethod, check_method, half_of, input_size
from cyctr.evaluation.protocol import OnBatch
from cyctr.evaluation.results import Results
from cyctr.evaluation.run import environment, prepare
from cyctr.methods.base import Method
from cyctr.methods.table import name_of


def evaluate(
    data: Dataset | Path | str,
    method: Method[Any] | Path | str,
    *,
    protocol: str = "cyctr",
    split: str = "test",
    folds: Sequence[int] | None = None,
    shots: Sequence[int] = (1,),
    episodes: int | None = None,
    size: int | None = None,
    weights: str = "resnet50-keras",
    device: str = "auto",
    precision: str = "auto",
    flip: bool = False,
    edges: bool = False,
    on_batch: OnBatch | None = None,
) -> Results:
    """The results of a method on a dataset: `Results.summary` has mIoU and FB-IoU.

    Args:
        data: the folder of a dataset, "synthetic", or what `cyctr.datasets.opening.open_dataset` made of one.
        method: one that is built, the path of a checkpoint, or a name as of `cyctr evaluate --method`.
        protocol: how it is measured.
        split: "test", "validation" or "train".
        folds: which; by default all.
        shots: which numbers of labelled images.
        episodes: for each fold and seed; by default the protocol's.
        size: of what the method sees; by default what its checkpoint learned from, else the protocol's.
        weights: of the backbone of a method that is named and learns nothing.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "auto", "float32" or "bfloat16".
        flip: average the answers to each episode and to its mirror image.
        edges: let answers follow the edges of the query.
        on_batch: told after each batch.
    """
    if not isinstance(method, Method):
        check_method(str(method), weights, device, precision)
    opened = data if isinstance(data, Dataset) else open_dataset(Path(data))
    measure = opened.protocol(protocol)
    if size is None and not isinstance(method, Method) and measure.score == "original":
        size = input_size(str(method))
    if size is not None:
        measure = replace(measure, input=replace(measure.input, size=size))
    job = prepare(opened, measure, split, folds, shots, episodes)
    if isinstance(method, Method):
        place = choose_device(device)
        job.device, half = place, half_of(place, precision)
        about = {"name": name_of(type(method)), "precision": "bfloat16" if half else "float32"}
        answer = NetworkMethod(method, place, half, flip, edges)
        results = Results({"method": about, **job.evaluation.conditions()}, sessions=[environment(place)])
        job.run(answer, results, episodes_together(place, max(shots)), os.cpu_count() or 2, on_batch)
    else:
        opened_method, results = job.open(str(method), weights, device, precision, flip, edges)
        job.run(opened_method, results, episodes_together(job.device, max(shots)), os.cpu_count() or 2, on_batch)
    return results
