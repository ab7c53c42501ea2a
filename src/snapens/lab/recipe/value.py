"""Value: a frozen part of a recipe, which is checked when it is created; its JSON omits defaults."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from ...errors import ArgumentError
from ...storage.typed import UnknownFieldError, decoded


class Value:
    """Base class of frozen dataclasses whose fields are plain values, other values, or tuples of these.

    If there are several kinds of a value, its base class has a table, `kinds`, from names to classes, and the name is
    part of its JSON. Defaults never change, so that JSON without a field keeps its meaning.
    """

    kinds: ClassVar[Mapping[str, type]] = {}
    """The table of a base class; empty if there is only one kind."""

    def __post_init__(self) -> None:
        if self.kinds:
            known = self.kind is not None
            require(known, type(self).__name__, f"be in the table of {', '.join(self.kinds)}: add it there", self)
        for name, hint in _hints(type(self)).items():
            value = _coerced(getattr(self, name), hint)
            object.__setattr__(self, name, value)
            require(_fits(value, hint), name, f"be {_in_words(hint)}", value)
        self.check()

    def check(self) -> None:
        """Reject invalid settings; types are checked before."""

    @property
    def kind(self) -> str | None:
        """The name in the table of kinds; None if there is only one kind."""
        return next((name for name, kind in self.kinds.items() if kind is type(self)), None)

    def written(self) -> dict[str, Any]:
        """As JSON: its kind, and the fields that differ from their default."""
        content = {name: _written(getattr(self, name)) for name in _hints(type(self)) if not self._is_default(name)}
        return {"kind": self.kind, **content} if self.kinds else content

    @classmethod
    def of(cls, content: Any) -> Self:
        """From JSON, with fields of the declared types; missing fields have their default."""
        noun = cls.__name__.lower()
        if not isinstance(content, dict):
            raise ArgumentError(f"{noun} must be an object of fields, got {type(content).__name__}")
        content, kind = dict(content), cls
        if cls.kinds:
            if (name := content.pop("kind", None)) not in tuple(cls.kinds):
                raise unknown(noun, name, cls.kinds)
            kind = cls.kinds[name]
        hints = _hints(kind)
        for name in content:
            if name not in hints:
                raise UnknownFieldError(f"unknown field {name!r} of {noun}")
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name not in content and field.default is field.default_factory is MISSING:
                raise ArgumentError(f"{noun} must have the field {field.name!r}, but it is missing")
        return kind(**{name: decoded(hints[name], value, name) for name, value in content.items()})

    def flat(self, prefix: str = "") -> dict[str, Any]:
        """Every setting by its dotted name: `optimizer.lr`."""
        found: dict[str, Any] = {f"{prefix}kind": self.kind} if self.kinds else {}
        for name in _hints(type(self)):
            value = getattr(self, name)
            found |= value.flat(f"{prefix}{name}.") if isinstance(value, Value) else {f"{prefix}{name}": value}
        return found

    def _is_default(self, name: str) -> bool:
        field = next(field for field in fields(self) if field.name == name)  # type: ignore[arg-type]
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        return bool(getattr(self, name) == default)


def require(rule: bool, argument: str, must: str, value: Any) -> None:
    """Raise an ArgumentError if an argument breaks a rule."""
    if not rule:
        raise ArgumentError(f"{argument} must {must}, got {value!r}")


def require_at_least(least: float, **arguments: float) -> None:
    """Raise an ArgumentError if an argument is too small or not finite."""
    for name, value in arguments.items():
        rule = "be at least" if isinstance(value, int) else "be finite and at least"
        require(least <= value < math.inf, name, f"{rule} {least}", value)


def unknown(what: str, name: object, known: Collection[str]) -> ArgumentError:
    """The error for an unknown name; it suggests the nearest known names, or lists them.

    Examples:
        >>> str(unknown("network", "resnet11", ["resnet110", "wrn32"]))
        "unknown network 'resnet11': did you mean resnet110?"
    """
    near = difflib.get_close_matches(str(name).lower(), known, n=3, cutoff=0.6)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        some = sorted(known)[:12]
        hint = f"choose from {', '.join(some)}{', …' if len(known) > len(some) else ''}"
    return ArgumentError(f"unknown {what} {name!r}: {hint}")


def _hints(kind: type) -> dict[str, Any]:
    """The type of each field."""
    every = get_type_hints(kind)
    return {field.name: every[field.name] for field in fields(kind)}


def _written(value: Any) -> Any:
    if isinstance(value, Value):
        return value.written()
    return [_written(item) for item in value] if isinstance(value, tuple) else value


def _coerced(value: Any, hint: Any) -> Any:
    """Convert a list to a tuple and an int to a float if the type requires it, so that equal values have equal JSON."""
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds):
        return tuple(value)
    if type(value) is int and float in kinds:
        return float(value) if abs(value) < 1 << 1000 else math.inf  # every float setting rejects infinity
    return value


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is UnionType:
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _in_words(hint: Any) -> str:
    if get_origin(hint) is UnionType:
        return " or ".join(_in_words(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a tuple of items {_in_words(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if hint is type(None):
        return "None"
    return f"of type {hint.__name__}"
