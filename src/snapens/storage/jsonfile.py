"""Strict JSON files: bounded in size, no NaN, no key twice."""

import json
from pathlib import Path
from typing import Any

_SIZE_LIMIT = 1 << 28


def read(path: Path) -> Any:
    """The content of a file; ValueError, or RecursionError, where it is no strict JSON."""
    if path.stat().st_size > _SIZE_LIMIT:
        raise ValueError(f"larger than {_SIZE_LIMIT} bytes")
    return loads(path.read_bytes())


def loads(text: str | bytes) -> Any:
    """The content of a text, as `read` reads it."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)


def dumps(content: Any) -> bytes:
    """As strict JSON."""
    return json.dumps(content, indent=1, allow_nan=False).encode()


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key that stands twice cannot be right")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
