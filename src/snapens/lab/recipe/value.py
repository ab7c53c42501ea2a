"""Value: a frozen part of a recipe, which is checked when it is created; its JSON omits defaults."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from ...errors import ArgumentError
from ...storage.typed import UnknownFieldError, decoded

T = TypeVar("T")


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
            object.__setattr__(self, name, _typed(hint, getattr(self, name), name))
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
        if isinstance(content, cls):
            return content
        if not isinstance(content, dict):
            rule = f"be of type {cls.__name__}, or an object of its fields"
            raise ArgumentError(f"{noun} must {rule}, got {str(content)[:80]!r}")
        content = dict(content)
        kind: type[Self] = look_up(noun, content.pop("kind", None), cls.kinds) if cls.kinds else cls
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


def look_up(what: str, name: object, table: Mapping[str, T]) -> T:
    """The entry of a table; an unknown name is an ArgumentError."""
    if name not in tuple(table):  # in JSON, the name may be a list
        raise unknown(what, name, table)
    return table[str(name)]


def unknown(what: str, name: object, known: Collection[str], others: str = "") -> ArgumentError:
    """The error for an unknown name; it suggests the nearest known names, or lists them, and names `others`.

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
    return ArgumentError(f"unknown {what} {name!r}: {hint}{f' (or {others})' if others else ''}")


def _hints(kind: type) -> dict[str, Any]:
    """The type of each field."""
    every = get_type_hints(kind)
    return {field.name: every[field.name] for field in fields(kind)}


def _written(value: Any) -> Any:
    if isinstance(value, Value):
        return value.written()
    return [_written(item) for item in value] if isinstance(value, tuple) else value


def _typed(hint: Any, value: Any, name: str) -> Any:
    """The value with exactly the type of its field, so that equal values have equal JSON."""
    if hint in (float, float | None) and isinstance(value, int | float) and not isinstance(value, bool):
        fits = isinstance(value, float) or abs(value) < 1 << 1000
        return float(value) if fits else math.inf  # `check` rejects what is not finite
    return decoded(hint, list(value) if isinstance(value, tuple) else value, name)
