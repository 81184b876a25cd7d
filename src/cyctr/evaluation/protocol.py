"""Episodes and a method -> counts. The method is any callable from an Episode to a Prediction."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cyctr.config import ProtocolConfig, to_dict
from cyctr.datasets.dataset import Dataset, OnProgress, Split
from cyctr.datasets.index import Index
from cyctr.episodes.loading import Batch, Memo, TestEpisodes
from cyctr.episodes.sampler import Sampler
from cyctr.errors import ConfigError
from cyctr.evaluation.metrics import Counts, count_pixels
from cyctr.evaluation.remembering import FeatureMethod, Remembering
from cyctr.evaluation.results import Results, Row, Run, RunKey
from cyctr.images.geometry import restore_all
from cyctr.transfer import Fetching
from cyctr.types import IGNORE, Episode, Prediction

Predict = Callable[[Episode], Prediction]
Reply = Callable[[Batch], Prediction]
OnBatch = Callable[[RunKey, Run, int], None]
"""Told after each batch: which run, its state, and how many episodes were added."""


class Evaluation:
    """One split of a dataset under one protocol: what `run` and pictures need, opened once."""

    def __init__(
        self, dataset: Dataset, protocol: ProtocolConfig, split: Split = "test", progress: OnProgress | None = None
    ) -> None:
        """Opens the index of the split, or builds it.

        Args:
            dataset: images, classes and folds.
            protocol: how to measure.
            split: "test", or "validation" and "train" to choose something without looking at the test.
            progress: told while an index is built.
        """
        self.dataset, self.protocol, self.split = dataset, protocol, split
        self.pool = dataset.pool(split)
        self.index: Index = self.pool.index(progress)
        self._memo = Memo()

    def conditions(self) -> dict[str, Any]:
        """What of this decides the numbers."""
        return {
            "dataset": {
                "name": self.dataset.name,
                "classes": list(self.dataset.classes),
                "folds": [list(fold.classes(self.split)) for fold in self.dataset.folds],
                "images": len(self.pool.keys),
                "list_sha256": hashlib.sha256("\n".join(self.pool.keys).encode(errors="surrogateescape")).hexdigest(),
                "index_sha256": self.index.digest,
            },
            "split": self.split,
            "protocol": {name: value for name, value in to_dict(self.protocol).items() if name not in ("episodes", "seeds")},
        }

    def sampler(self, run_key: RunKey) -> Sampler:
        """Which episodes there are."""
        return Sampler(
            self.dataset,
            self.index,
            run_key.fold,
            self.split,
            run_key.shots,
            run_key.seed,
            self.protocol.order,
            self.protocol.smallest,
            self.protocol.drop_novel,
        )

    def source(self, run_key: RunKey, device: torch.device | None = None) -> TestEpisodes:
        """The episodes themselves, on a device; all sources of an evaluation share what they have read."""
        return TestEpisodes(self.pool, self.sampler(run_key), self.protocol.input, self._memo, device)

    def run(
        self,
        method: Predict,
        results: Results,
        run_keys: Sequence[RunKey],
        episodes: int,
        device: torch.device,
        batch: int = 8,
        workers: int = 2,
        part: tuple[int, int] = (0, 1),
        on_batch: OnBatch | None = None,
        remember: int = 0,
    ) -> None:
        """Adds to the results every episode that they lack.

        Args:
            method: answers episodes on the device.
            results: may hold some episodes already, those of an interrupted run.
            run_keys: the runs.
            episodes: of each run.
            device: where the method computes.
            batch: episodes at a time; the counts do not depend on it.
            workers: threads that read images.
            part: (p, n): only the episodes p, p + n, p + 2n, ..., for n processes that share the work.
            on_batch: told after each batch.
            remember: bytes of features to keep, where the method has any; an image whose features are kept is encoded once.
        """
        place, parts = part
        if not 0 <= place < parts:
            raise ConfigError(f"part is {place + 1}/{parts}; expected 1/{parts} to {parts}/{parts}")
        sources = {run_key: self.source(run_key, device) for run_key in run_keys}  # first: they check that all is feasible
        for run_key, source in sources.items():  # all of them: what is interrupted before a run began is unfinished too
            sampler = source.sampler
            run = results.runs.setdefault(
                run_key, Run(episodes, len(sampler.images), len(sampler.pairs), classes=len(sampler.classes))
            )
            run.wanted = max(run.wanted, episodes)
        reply = in_one_step(method)
        if remember and isinstance(method, FeatureMethod) and method.encodes:
            reply = Remembering(method, remember)
        for run_key, source in sources.items():
            run = results.runs[run_key]
            missing = [number for number in range(place, run.wanted, parts) if number not in run.rows]
            for rows in self._rows(reply, source, missing, batch, workers):
                run.rows.update(rows)
                if on_batch is not None:
                    on_batch(run_key, run, len(rows))

    def _rows(
        self, reply: Reply, source: TestEpisodes, numbers: list[int], batch: int, workers: int
    ) -> Iterator[dict[int, Row]]:
        keys = self.pool.keys
        waiting: tuple[Batch, Fetching] | None = None  # counts of the batch before: read while the device works on this one
        for piece in source.batches(numbers, batch, workers):
            counts = Fetching(score(reply, piece, self.protocol))
            if waiting is not None:
                yield _to_rows(*waiting, keys)
            waiting = (piece, counts)
        if waiting is not None:
            yield _to_rows(*waiting, keys)


def _to_rows(batch: Batch, counts: Fetching, keys: Sequence[str]) -> dict[int, Row]:
    return {
        draw.number: Row(draw.category, keys[draw.query], tuple(keys[i] for i in draw.supports), Counts(*numbers))
        for draw, numbers in zip(batch.draws, counts.get().tolist(), strict=True)
    }


def in_one_step(method: Predict) -> Reply:
    """A method of episodes as one of batches."""
    return lambda batch: method(batch.episode)


@torch.inference_mode()
def masks(reply: Reply, batch: Batch, protocol: ProtocolConfig) -> Tensor:
    """(B, H, W) bool: the mask of each query where it is scored, in the top left, as large as the largest."""
    logits = reply(batch).logits
    if protocol.score == "original":
        sizes = [(truth.shape[-2], truth.shape[-1]) for truth in batch.truths]
        logits = restore_all(logits, sizes, protocol.input)
    return logits[:, 1] > logits[:, 0]


@torch.inference_mode()
def score(reply: Reply, batch: Batch, protocol: ProtocolConfig) -> Tensor:
    """(B, 4) the fields of `Counts` of each episode of a batch, on its device."""
    found = masks(reply, batch, protocol)
    labels = batch.episode.query_labels
    assert labels is not None
    if protocol.score == "original":
        labels = labels.new_full(found.shape, IGNORE)
        for label, truth in zip(labels, batch.truths, strict=True):
            label[: truth.shape[0], : truth.shape[1]] = truth
    return count_pixels(found, labels)
