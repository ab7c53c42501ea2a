"""Strict JSON: limited size and depth, no NaN, no duplicate keys."""

import json
from pathlib import Path
from typing import Any

from . import durable


def read(path: Path) -> Any:
    """The content of a file; ValueError if it is not strict JSON."""
    return loads(durable.contents(path))


def loads(text: str | bytes) -> Any:
    """The content of a text; ValueError if it is not strict JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def dumps(content: Any) -> bytes:
    """As strict JSON, indented."""
    return json.dumps(content, indent=1, allow_nan=False).encode()


class Encoded(str):
    """A value that is already encoded as JSON."""


def lines(content: dict[str, Any]) -> bytes:
    """As strict JSON, one line per field: the encoding of a sealed file. Each content has exactly one encoding."""
    fields = (f"{compact(name)}: {compact(value)}" for name, value in content.items())
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def compact(content: Any) -> str:
    """As strict JSON in one line."""
    try:
        return content if isinstance(content, Encoded) else json.dumps(content, allow_nan=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("duplicate key")
    return content


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
