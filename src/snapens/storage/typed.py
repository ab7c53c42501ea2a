"""Dataclasses from JSON, each value of exactly the type that its field has."""

import math
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import ArgumentError


def decoded(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as `kind`: a dataclass, a tuple of one kind, one kind or None, or a plain type."""
    if hasattr(kind, "of"):  # it knows how it is written
        return kind.of(value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ArgumentError(f"{where} must be an object of {', '.join(hints)}")
        return kind(**{name: decoded(hint, value[name], name) for name, hint in hints.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(decoded(get_args(kind)[0], item, where) for item in value)
    if get_origin(kind) is UnionType:
        return None if value is None else decoded(get_args(kind)[0], value, where)
    if kind is float and type(value) in (int, float) and math.isfinite(value):  # 1e999 is JSON
        return float(value)
    if kind is not float and type(value) is kind:
        return value
    raise ArgumentError(f"{where} must be {getattr(kind, '__name__', kind)}, got {str(value)[:80]!r}")
