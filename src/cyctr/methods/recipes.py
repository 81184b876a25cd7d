"""The configs of a method by its name: those of the package's own are found without importing torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cyctr.config import Recipe
from cyctr.errors import ConfigError
from cyctr.methods.table import METHODS, USUAL, find_method


class Recipes(NamedTuple):
    """What a method can be told.

    Attributes:
        kind: the class of its configs.
        presets: configs by name.
        usual: the preset that is trained unless another is named.
        for_dataset: the config of a preset for a dataset, where it differs there.
    """

    kind: type[Recipe]
    presets: Mapping[str, Any]
    usual: str
    for_dataset: Callable[[str, str | None], Any]

    def preset(self, name: str | None = None, dataset: str | None = None) -> Any:
        """The config of a preset, by default the usual one, for a dataset."""
        name = self.usual if name is None else name
        if name not in self.presets:
            raise ConfigError(f"preset is {name!r}; expected one of {', '.join(self.presets)}")
        return self.for_dataset(name, dataset)


def recipes_of(method: str = USUAL) -> Recipes:
    """The configs of a method: a name of the table, or "package.module:Class" of one's own.

    A module of configs in the table has `Config`, `PRESETS` and `USUAL`, and may have `preset(name, dataset)`.

    Raises:
        ConfigError: there is no such method.
    """
    if method in METHODS:
        own = importlib.import_module(METHODS[method].config)
        plain: Callable[[str, str | None], Any] = lambda name, dataset: own.PRESETS[name]  # noqa: E731
        return Recipes(own.Config, own.PRESETS, own.USUAL, getattr(own, "preset", plain))
    kind = find_method(method)
    presets = kind.presets or {"usual": kind.Config()}
    return Recipes(kind.Config, presets, next(iter(presets)), lambda name, dataset: presets[name])
