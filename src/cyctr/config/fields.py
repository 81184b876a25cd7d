"""Fields of config dataclasses: their help and checks, from and to dictionaries, and from the texts of a command line."""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Literal, TypeVar

from cyctr.errors import ConfigError

T = TypeVar("T")


def setting(default: Any, help: str) -> Any:
    """A dataclass field whose help text the command line shows."""
    return field(default=default, metadata={"help": help})


def require(holds: bool, name: str, value: object, expected: str) -> None:
    """Raises ConfigError with what was expected unless something holds."""
    if not holds:
        raise ConfigError(f"{name} is {value!r}; expected {expected}")


def require_choice(name: str, value: object, choices: object) -> None:
    """Raises ConfigError unless the value is one of those of a Literal."""
    require(value in typing.get_args(choices), name, value, _described(choices))


def _described(kind: Any) -> str:
    """What a setting of this kind may be, in words."""
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(kind)))}"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def require_fraction(name: str, value: float) -> None:
    """Raises ConfigError unless the value is from 0 up to 1."""
    require(0 <= value < 1, name, value, "a number from 0 up to, but not including, 1")


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: dict[str, Any], path: str = "") -> T:
    """A config from what `to_dict` gave, checked; a field that is missing takes its default.

    A config class says what became of fields of earlier versions: `RETIRED` holds the only value that this version still
    stands for, `BEFORE` what was done before a field came, where that is not its default, and `IGNORED` the names of those
    that say nothing any more.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{path or 'config'} is {values!r}; expected the fields of {kind.__name__}")
    hints, prefix = typing.get_type_hints(kind), f"{path}." if path else ""
    known = {item.name: hints[item.name] for item in fields(kind)}  # type: ignore[arg-type]
    retired, ignored = getattr(kind, "RETIRED", {}), getattr(kind, "IGNORED", ())
    values = {name: value for name, value in {**getattr(kind, "BEFORE", {}), **values}.items() if name not in ignored}
    for name in values:
        if name in retired and values[name] != retired[name]:
            raise ConfigError(
                f"{prefix}{name} is {values[name]!r}, which this version no longer has; use the version that wrote it"
            )
    if foreign := [f"{prefix}{name}" for name in values if name not in known and name not in retired]:
        verb = "is not a setting" if len(foreign) == 1 else "are not settings"
        raise ConfigError(f"{', '.join(foreign)} {verb} of this version; expected one of {', '.join(known)}")
    kept = {name: value for name, value in values.items() if name not in retired}
    return kind(**{name: _typed(known[name], value, f"{prefix}{name}") for name, value in kept.items()})


def _typed(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, path)
    options = typing.get_args(kind) if typing.get_origin(kind) is types.UnionType else (kind,)
    for option in options:
        origin, inner = typing.get_origin(option), typing.get_args(option)
        if origin is tuple and isinstance(value, list | tuple) and inner[1:] == (...,):
            return tuple(_typed(inner[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        if origin is tuple and isinstance(value, list | tuple) and len(value) == len(inner):
            return tuple(_typed(part, item, f"{path}[{i}]") for i, (part, item) in enumerate(zip(inner, value, strict=True)))
        if origin is Literal and value in inner:
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(option, type) and isinstance(value, option) and not (option is int and isinstance(value, bool)):
            return value
    raise ConfigError(f"{path} is {value!r}; expected {_described(kind)}")


def settings(kind: type[Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Every leaf of a config class as (dotted name, default, help)."""
    rows: list[tuple[str, Any, str]] = []
    for item in fields(kind):
        if dataclasses.is_dataclass(item.default):
            rows += settings(type(item.default), f"{prefix}{item.name}.")
        else:
            rows.append((prefix + item.name, item.default, item.metadata.get("help", "")))
    return rows


def changed(config: Any) -> dict[str, Any]:
    """The settings that are not the default, by dotted name: a field that comes or goes does not change what this gives."""
    found = {name: value_at(config, name) for name, _, _ in settings(type(config))}
    return {
        name: found[name]
        for name, default, _ in sorted(settings(type(config)), key=lambda row: row[0])
        if found[name] != default
    }


def value_at(config: Any, name: str) -> Any:
    """The value of a setting by its dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def choices(kind: type[Any], name: str) -> tuple[str, ...]:
    """The texts that a setting of a config class may be, or its parts; nothing where it may be any."""
    found = _kind_of(kind, name)
    if typing.get_origin(found) is tuple:
        found = typing.get_args(found)[0]
    if found is bool:
        return ("true", "false")
    return typing.get_args(found) if typing.get_origin(found) is Literal else ()


def _kind_of(kind: type[Any], name: str) -> Any:
    """The type of a setting by its dotted name."""
    return functools.reduce(lambda owner, part: typing.get_type_hints(owner)[part], name.split("."), kind)


def parse(kind: type[T], base: T, given: Mapping[str, str]) -> T:
    """A config with some of its settings given as text.

    Args:
        kind: of config.
        base: what is not given.
        given: by dotted name, such as {"optimizer.clip": "1.0"}; tuples as "0.9,1.1", nothing as "none".
    """
    values, known = to_dict(base), [name for name, _, _ in settings(kind)]
    for name, text in given.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, cutoff=0)
            raise ConfigError(f"{name} is not a setting; the nearest one is {nearest[0]}")
        *path, last = name.split(".")
        target = functools.reduce(dict.__getitem__, path, values)
        target[last] = _parsed(_kind_of(kind, name), text, name)
    return from_dict(kind, values)


def _parsed(kind: Any, text: str, name: str) -> Any:
    """The value that a text stands for, as far as the kind of the setting tells."""
    options = typing.get_args(kind) if typing.get_origin(kind) is types.UnionType else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in (option for option in options if option is not type(None)):
        origin, inner = typing.get_origin(option), typing.get_args(option)
        if origin is tuple:
            any_number = inner[1:] == (...,)
            nothing = any_number and text.lower() == "none"
            parts = [] if nothing else [part.strip() for part in text.split(",") if part.strip()]
            kinds = inner[:1] * len(parts) if any_number else inner
            if len(kinds) != len(parts):
                raise ConfigError(f"{name} is {text!r}; expected {len(kinds)} values with commas between them")
            return [_parsed(part_kind, part, name) for part_kind, part in zip(kinds, parts, strict=True)]
        if option is bool:
            if text.lower() not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
                raise ConfigError(f"{name} is {text!r}; expected true or false")
            return text.lower() in ("true", "yes", "on", "1")
        if option in (int, float):
            return _number(option, text, name)
    return text


def _number(kind: type[int] | type[float], text: str, name: str) -> float:
    plain = text.replace("_", "")
    try:
        if kind is int and plain.removeprefix("-").isdecimal():
            return int(plain)  # as it is: large ones would lose digits on the way through a float
        number = float(plain)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; expected a number") from error
    if kind is int and not number.is_integer():  # 2e4 is one
        raise ConfigError(f"{name} is {text!r}; expected a whole number")
    return int(number) if kind is int else number


def shown(value: Any) -> str:
    """A setting's value as `parse` reads it."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
