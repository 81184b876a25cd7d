"""The methods that come with the package, and how any method is found by its name. A further one is a line here."""

import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from cyctr.config import Recipe
from cyctr.errors import ConfigError

if TYPE_CHECKING:
    from cyctr.methods.base import Method


class Place(NamedTuple):
    """Where a method is, as text: nothing is imported before it is asked for.

    Attributes:
        kind: "module:Class".
        config: the module of its `Config`, `PRESETS`, `USUAL` and `preset`, which imports no torch.
    """

    kind: str
    config: str


METHODS = {
    "cyctr": Place("cyctr.methods.cyctr.network:CyCTR", "cyctr.methods.cyctr.config"),
    "panet": Place("cyctr.methods.panet.network:PANet", "cyctr.methods.panet.config"),
}
USUAL = "cyctr"
"""The method of a checkpoint that names none, and of a command that is told of none."""


def find_method(name: str) -> "type[Method[Any]]":
    """The class of a method: a name of the table, or "package.module:Class" of one's own.

    Raises:
        ConfigError: there is none of that name, or it lacks a part of the contract.
    """
    place = METHODS[name].kind if name in METHODS else name
    module, colon, kind = place.partition(":")
    if not (module and colon and kind):
        raise ConfigError(f"method is {name!r}; expected one of {', '.join(METHODS)}, or package.module:Class of your own")
    if module.partition(".")[0] in sys.stdlib_module_names:  # some of these do things when they are imported
        raise ConfigError(f"method is {name!r}, and {module} is a module of Python itself; expected one of your own")
    try:
        found = getattr(importlib.import_module(module), kind, None)
    except ImportError as error:
        raise ConfigError(
            f"method is {name!r}, and {module} cannot be imported ({error}); install it, or check the name"
        ) from error
    except (Exception, SystemExit) as error:  # the module's own: it runs code of the user
        raise ConfigError(
            f"method is {name!r}, and {module} ends with {type(error).__name__} when it is imported ({error}); "
            f'run python -c "import {module}" to see where'
        ) from error
    if found is None:
        raise ConfigError(f"method is {name!r}, and {module} has no class {kind}; check the name")
    return check_method(found)


def check_method(kind: object) -> "type[Method[Any]]":
    """The class, refused unless it fulfils the contract.

    Raises:
        ConfigError: says which part is missing.
    """
    from cyctr.methods.base import Method  # imports torch

    name = getattr(kind, "__qualname__", repr(kind))
    if not (inspect.isclass(kind) and issubclass(kind, Method)):
        raise ConfigError(f"{name} is no method; expected a class that derives from cyctr.methods.base.Method")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    missing += [part for part in ("name",) if not hasattr(kind, part)]
    if missing:
        raise ConfigError(
            f"{name} does not fulfil the contract of a method: it lacks {', '.join(missing)}; add what is missing"
        )
    if not (inspect.isclass(kind.Config) and issubclass(kind.Config, Recipe)):
        raise ConfigError(f"{name}.Config is no recipe; expected a dataclass that derives from cyctr.config.Recipe")
    return kind


def name_of(kind: "type[Method[Any]]") -> str:
    """The name by which `find_method` finds a class again."""
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in METHODS.items() if known.kind == place), place)


def method_name(method: "str | type[Method[Any]]") -> str:
    """The name of a method that is given by name, or as a class that fulfils the contract."""
    name = method if isinstance(method, str) else name_of(check_method(method))
    if find_method(name) is not method and not isinstance(method, str):
        raise ConfigError(f"method is {name}, which is not found by that name again; define the class at the top of a module")
    return name
