"""Training in one call: what `cyctr train` does, without its words."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cyctr.config import Recipe
from cyctr.datasets.dataset import Dataset
from cyctr.datasets.joined import ALL
from cyctr.datasets.opening import open_dataset
from cyctr.devices import choose_device
from cyctr.errors import ConfigError
from cyctr.methods.backbone_choice import with_weights
from cyctr.methods.base import Method
from cyctr.methods.recipes import recipes_of
from cyctr.methods.table import USUAL, method_name
from cyctr.storage import alone
from cyctr.training.loop import OnRecord, Trainer
from cyctr.training.options import Options
from cyctr.training.plan import plan_run
from cyctr.training.run import prepare
from cyctr.training.run_folder import LAST, RunFolder


def train(
    data: Dataset | Path | str,
    output: Path | str,
    *,
    fold: int | str | None = None,
    test_classes: Sequence[str] | None = None,
    method: str | type[Method[Any]] | None = None,
    config: Recipe | None = None,
    weights: str | None = None,
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
    on_record: OnRecord | None = None,
    **options: Any,
) -> Path:
    """Trains a network, and gives the path of its checkpoint.

    Args:
        data: the folder of a dataset, or what `cyctr.datasets.opening.open_dataset` made of one.
        output: the run's folder.
        fold: a number, or "all"; by default that of the run that is resumed; else 0 where the dataset has test
            classes, and "all" where it has none.
        test_classes: of a folder of your own, those to leave for the test.
        method: what is trained: a name, "package.module:Class", or a class of your own; by default CyCTR, or that of the run
            that is resumed.
        config: of that method; by default its usual preset, or that of the run that is resumed.
        weights: of another backbone than the config's: a name of `cyctr weights list`, or "tiny".
        device: "auto", "cpu", "cuda" or "cuda:N".
        resume: go on with the run in the folder, on the same data and fold.
        force: replace the run in the folder.
        on_record: told of each line of the metrics.
        **options: fields of `training.options.Options`; `half` is true on a GPU unless it is given, and a run that is resumed
            keeps what changes its bits, or how it is validated.

    Where it is interrupted, what was last saved stays, and `resume=True` goes on from there.
    """
    known = [field.name for field in fields(Options)]
    if unknown := sorted(options.keys() - set(known)):
        raise ConfigError(f"{unknown[0]} is no option of a training run; expected one of {', '.join(known)}")
    if isinstance(test_classes, str):
        raise ConfigError(f"test_classes is {test_classes!r}; expected several names: [{test_classes!r}]")
    if fold == ALL and test_classes is not None:
        raise ConfigError("fold is 'all', which learns from every class, but test_classes keeps some; leave one of them out")
    folder, place = RunFolder(Path(output)), choose_device(device)
    given = None if method is None else method_name(method)
    name = folder.method(given) if resume else given or USUAL
    if config is None:
        config = folder.settings() if resume else recipes_of(name).preset()
    elif not isinstance(config, recipes_of(name).kind):
        raise ConfigError(
            f"config is {type(config).__qualname__}; expected {recipes_of(name).kind.__qualname__}, that of {name}"
        )
    if weights is not None:
        config = with_weights(config, weights)
    if isinstance(data, Dataset):
        if test_classes is not None:
            raise ConfigError("test_classes is given, but the dataset is open already; give them to open_dataset")
    else:
        data = open_dataset(Path(data), test_classes=test_classes)
    keeps = test_classes is not None
    plan = plan_run(config, data, folder, place, options, fold=fold, keeps=keeps, resume=resume, force=force, method=name)
    with alone(folder.path / ".run.lock", folder.path):
        trainer = Trainer(prepare(plan))
        trainer.begin()
        trainer.run(on_record)
    return folder.path / LAST
