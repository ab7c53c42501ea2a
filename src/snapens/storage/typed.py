"""Decode JSON values, each to exactly the type of its field."""

import sys
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import ArgumentError


class UnknownFieldError(ArgumentError):
    """An object has an unknown field; a newer version may have written it."""


def decoded(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as `kind`; `where` names it in errors.

    Known kinds are dataclasses, `tuple[X, ...]`, `tuple[X, Y]`, `dict[str, X]`, `X | None`, `Literal`, `Any`, plain
    types, and classes with a method `of`, which decodes them. Missing fields have their default. Numbers are
    finite; a whole number is accepted for a float, and nothing else is converted.

    Examples:
        >>> decoded(dict[str, tuple[float, ...]], {"a": [1, 2.5]}, "shares")
        {'a': (1.0, 2.5)}
    """
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(kind, "of"):
        return kind.of(value)
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if origin in (UnionType, Union):
        return None if value is None else decoded(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        if len(kinds) == len(value):
            return tuple(decoded(one, item, where) for one, item in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: decoded(inner[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    if origin is Literal and any(type(value) is type(option) and value == option for option in inner):
        return value
    if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:  # 1e999 is JSON
        return float(value)
    if kind is Any or (kind is not float and type(value) is kind):
        return value
    expected = f"one of {', '.join(map(str, inner))}" if origin is Literal else getattr(kind, "__name__", kind)
    raise ArgumentError(f"{where} must be {expected}, got {str(value)[:80]!r}")


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    hints, required = _fields(kind)
    if not isinstance(value, dict):
        raise ArgumentError(f"{where} must be an object of {', '.join(hints)}, got {str(value)[:80]!r}")
    if unknown := sorted(value.keys() - hints.keys()):
        raise UnknownFieldError(
            f"{where} must be an object of {', '.join(hints)}, got the unknown field {unknown[0]!r}, "
            "which a newer version may have written"
        )
    if missing := [name for name in required if name not in value]:
        raise ArgumentError(f"{where} must be an object of {', '.join(hints)}, but {missing[0]!r} is missing")
    return kind(**{name: decoded(hints[name], item, name) for name, item in value.items()})


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The type of each field, and the names of those without a default."""
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return get_type_hints(kind), required
