"""What was measured: counts of every episode, how they were made, and the tables they give."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cyctr import json_files
from cyctr.errors import DataError
from cyctr.evaluation.metrics import Counts, Result, interval, replicate_miou, summarise
from cyctr.storage import write_atomically

_FORMAT = "cyctr-results-1"
_COLUMNS = ["episode", "class", "query", "supports", "true_positive", "false_positive", "false_negative", "true_negative"]


class RunKey(NamedTuple):
    """Which episodes: they are numbered within this."""

    fold: int
    shots: int
    seed: int


@dataclass(frozen=True)
class Row:
    """One episode and how it went."""

    category: int
    query: str
    supports: tuple[str, ...]
    counts: Counts


@dataclass
class Run:
    """The episodes of one fold, number of shots and seed.

    Attributes:
        wanted: how many there shall be.
        images: images of the list that queries come from.
        pairs: (image, class) pairs of it.
        rows: those that are done, by episode number.
        classes: how many classes episodes are drawn from.
    """

    wanted: int
    images: int
    pairs: int
    rows: dict[int, Row] = field(default_factory=dict)
    classes: int = 0

    @property
    def finished(self) -> bool:
        """Whether every episode is done."""
        return len(self.rows) >= self.wanted

    def result(self, seed: int = 0) -> Result:
        """The numbers of the episodes that are done, the seed that of the interval's chance."""
        categories, counts, queries = self._arrays()
        return summarise(categories, counts, queries=queries, seed=seed)

    def replicates(self, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The mIoU of queries drawn again, many times."""
        categories, counts, queries = self._arrays()
        return replicate_miou(np.asarray(categories), counts, seed=seed, queries=queries)

    def _arrays(self) -> tuple[list[int], np.ndarray[Any, np.dtype[np.int64]], list[str]]:
        rows = [self.rows[number] for number in sorted(self.rows)]
        counts = [_numbers(row.counts) for row in rows]
        return [row.category for row in rows], np.array(counts, np.int64).reshape(-1, 4), [row.query for row in rows]


@dataclass
class Results:
    """All runs of one method on one dataset under one protocol.

    Attributes:
        conditions: everything that decides the numbers; two results with equal conditions can be merged or resumed.
        runs: by fold, shots and seed.
        sessions: of each process that added to them, what does not decide the numbers: versions, machine, seconds.
    """

    conditions: dict[str, Any]
    runs: dict[RunKey, Run] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conditions = json.loads(json.dumps(self.conditions))  # as a file gives them back: lists, no tuples

    def save(self, path: Path) -> None:
        """Writes `results.json` in one step."""
        runs = [
            {
                **run_key._asdict(),
                **_described(run, self.classes, run_key.fold),
                "columns": _COLUMNS,
                "episodes": _stand_in(place),
            }
            for place, (run_key, run) in enumerate(sorted(self.runs.items()))
        ]
        content = {
            "format": _FORMAT,
            "settings": self.conditions,
            "sessions": self.sessions,
            "summary": self.summary(),
            "runs": runs,
        }
        text = re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", _on_one_line, json.dumps(content, indent=1))
        for place, (_, run) in enumerate(sorted(self.runs.items())):  # one episode a line, for people and for diffs
            lines = ",\n".join(f"   {json.dumps(row)}" for row in _listed(run))
            text = text.replace(json.dumps(_stand_in(place)), f"[\n{lines}\n  ]")
        write_text(path, f"{text}\n")

    @classmethod
    def load(cls, path: Path) -> "Results":
        """What `save` wrote."""
        try:
            content = json_files.read(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not JSON"
            raise DataError(f"{path}: cannot be read ({reason}); expected a results.json of `cyctr evaluate`") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(f"{path}: is no {_FORMAT!r}; expected a results.json of `cyctr evaluate`")
        try:
            results = cls(_modern(content["settings"]), sessions=[dict(session) for session in content["sessions"]])
            for item in content["runs"]:
                wanted, images, pairs, held = _whole(item["wanted"], item["images"], item["pairs"], item["class_count"])
                run = Run(wanted, images, pairs, classes=held)
                for number, category, query, supports, *counts in item["episodes"]:
                    results.classes[category]  # there is one of that number
                    texts = _texts(query, *supports)
                    run.rows[_whole(number)[0]] = Row(_whole(category)[0], texts[0], texts[1:], Counts(*_whole(*counts)))
                results.runs[RunKey(*_whole(item["fold"], item["shots"], item["seed"]))] = run
            _texts(*results.classes, description(results))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: is not as `cyctr evaluate` wrote it ({error!r}); restore it, or measure again") from error
        return results

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return list(self.conditions["dataset"]["classes"])

    def summary(self) -> list[dict[str, Any]]:
        """For each number of shots: mIoU and FB-IoU of every fold and their means, averaged over seeds, in percent."""
        rows = []
        for shots in sorted({run_key.shots for run_key in self.runs}):
            chosen = {s: run for s, run in self.runs.items() if s.shots == shots and run.rows}
            if not chosen:
                continue
            folds = sorted({s.fold for s in chosen})
            whole = [seed for seed in {s.seed for s in chosen} if all(RunKey(fold, shots, seed) in chosen for fold in folds)]
            if whole:  # a seed that lacks a fold would bend the means
                chosen = {s: run for s, run in chosen.items() if s.seed in whole}
            found = {s: run.result(s.fold) for s, run in sorted(chosen.items())}
            seeds = sorted({s.seed for s in chosen})
            # runs of one fold meet the same images, which are drawn together; those of other folds are other images
            drawn = np.mean([run.replicates(seed=s.fold) for s, run in chosen.items()], axis=0)
            per_seed = [[result for s, result in found.items() if s.seed == seed] for seed in seeds]
            tested = sum(max(run.classes for s, run in chosen.items() if s.fold == fold) for fold in folds)
            met = {(s.fold, c) for s, result in found.items() for c in result.classes}
            rows.append(
                {
                    "shots": shots,
                    "episodes": sum(len(run.rows) for run in chosen.values()),
                    "finished": all(run.finished for s, run in self.runs.items() if s.shots == shots),
                    "seeds": seeds,
                    "folds": {str(fold): _spread([r.miou for s, r in found.items() if s.fold == fold]) for fold in folds},
                    "mean": _spread([statistics.fmean(r.miou for r in results) for results in per_seed]),
                    "interval": [_percent(value) for value in interval(drawn)],
                    "fb_iou": _spread([statistics.fmean(r.fb_iou for r in results) for results in per_seed]),
                    "classes_met": len(met),
                    "classes_tested": max(tested, len(met)),
                    "classes": {self.classes[c]: _percent(v) for c, v in _by_class(found.values()).items()},
                }
            )
        return rows


def _modern(conditions: dict[str, Any]) -> dict[str, Any]:
    """Conditions as this version writes them: earlier ones had a second order, which was that of COCO."""
    protocol = {**conditions["protocol"]}
    coco = protocol.pop("order_coco", None)
    if coco is not None and conditions["dataset"]["name"].startswith("coco-"):
        protocol["order"] = coco
    return {**conditions, "protocol": protocol}


def _whole(*values: Any) -> tuple[int, ...]:
    """The values, which are whole numbers from 0 up to what an array can hold."""
    for value in values:
        if type(value) is not int or not 0 <= value < 2**53:
            raise ValueError(f"{value!r:.40} is not a whole number from 0 to 2^53")
    return values


def _texts(*values: Any) -> tuple[str, ...]:
    """The values, which are texts."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{value!r:.40} is not a text")
    return values


def merge(parts: Sequence[Results]) -> Results:
    """The results of several processes as one: equal to those of a single process that did all episodes."""
    whole = Results(parts[0].conditions, sessions=[session for part in parts for session in part.sessions])
    for part in parts:
        differing = differences(whole.conditions, part.conditions)
        if differing:
            raise DataError(f"these results were made with other settings ({'; '.join(differing)}); merge equal ones only")
        for run_key, run in part.runs.items():
            own = whole.runs.setdefault(run_key, Run(run.wanted, run.images, run.pairs, classes=run.classes))
            own.wanted = max(own.wanted, run.wanted)
            for number, row in run.rows.items():
                if own.rows.setdefault(number, row) != row:
                    raise DataError(f"episode {number} of {run_key} differs between the results; they cannot be merged")
    return whole


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> list[str]:
    """Each setting that differs, as text."""
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{path}{name}.")
        elif one != other:
            found.append(f"{path}{name} {_brief(one)} / {_brief(other)}")
    return found


def description(results: Results) -> str:
    """A line: which method, on which data, and how it was measured."""
    method, protocol = results.conditions["method"], results.conditions["protocol"]
    name = method["name"]
    if "checkpoint" in method:
        place = next((session["checkpoint"] for session in reversed(results.sessions) if "checkpoint" in session), name)
        name = f"{place} (sha256 {method['checkpoint']['sha256'][:12]})"
    where = f"{results.conditions['dataset']['name']}, {results.conditions['split']} split"
    flip = ("with flip" if method.get("flip") else "without flip") + (", with edges" if method.get("edges") else "")
    how = f"input {protocol['input']['size']} px, {flip}, {method['precision']}, scored at the {protocol['score']} size"
    return f"{name} on {where}: {how}."


def write_text(path: Path, text: str) -> None:
    """Writes a file of the output folder in one step."""
    try:
        write_atomically(path, text.encode(errors="backslashreplace"))  # a file's name may be no text
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another place", "output") from error


def _by_class(results: Iterable[Result]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for result in results:
        for category, iou in result.classes.items():
            values.setdefault(category, []).append(iou)
    return {category: statistics.fmean(values[category]) for category in sorted(values)}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    std = _percent(statistics.stdev(values)) if len(values) > 1 else None
    return {"mean": _percent(statistics.fmean(values)), "std": std}


def _percent(value: float) -> float:
    return round(100 * value, 3)


def _numbers(counts: Counts) -> list[int]:
    return [counts.true_positive, counts.false_positive, counts.false_negative, counts.true_negative]


def _described(run: Run, classes: Sequence[str], seed: int) -> dict[str, Any]:
    about: dict[str, Any] = {"wanted": run.wanted, "finished": len(run.rows), "images": run.images, "pairs": run.pairs}
    about["class_count"] = run.classes
    if run.rows:
        result = run.result(seed)
        about["miou"], about["fb_iou"] = _percent(result.miou), _percent(result.fb_iou)
        about["interval"] = [_percent(value) for value in result.interval]
        about["classes"] = {classes[c]: _percent(iou) for c, iou in result.classes.items()}
    return about


def _listed(run: Run) -> list[list[Any]]:
    return [
        [number, row.category, row.query, list(row.supports), *_numbers(row.counts)] for number, row in sorted(run.rows.items())
    ]


def _stand_in(place: int) -> str:
    """Where the episodes of a run will be; no name of a file or class can be the same."""
    return f"\0{place}"


def _on_one_line(plain_list: re.Match[str]) -> str:
    return f"[{' '.join(line.strip() for line in plain_list[1].splitlines())}]"


def _brief(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
