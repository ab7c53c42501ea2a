"""Sealed JSON files: each file contains its format, its kind, the run that it belongs to, and a checksum.

A reader accepts a file only if its bytes are the encoding of the parsed content, so that every altered bit is detected.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import DamagedError, StoreError
from . import durable, jsonfile
from .typed import UnknownFieldError, decoded

FORMAT = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Sealed(Generic[T]):
    """The content of a file: the value, the run that it belongs to (format 1 may have none), and the file's bytes."""

    value: T
    run: str | None
    content: bytes


def encode(kind: str, run: str, content: Mapping[str, Any]) -> bytes:
    """The bytes of a sealed file."""
    body = jsonfile.lines({"format": FORMAT, "kind": kind, "run": run, **content})
    return body.removesuffix(b"\n}\n") + b',\n"sha256": "%s"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def decode(
    path: Path,
    raw: bytes,
    kind: str,
    form: type[T],
    *,
    run: str | None = None,
    format_1: Callable[[dict[str, Any]], T] | None = None,
) -> Sealed[T]:
    """Decode the bytes of a file as a `form`; `format_1` decodes those of a file of format 1.

    A damaged file, or a file of another run, raises DamagedError; a file of a newer version another StoreError.
    """
    intact = False
    try:
        content = jsonfile.loads(raw)
        if not isinstance(content, dict):
            raise ValueError(f"{type(content).__name__} instead of an object")
        if format_1 is not None and "kind" not in content and content.get("format", 1) == 1:
            return Sealed(format_1(content), content.get("run"), raw)
        owner = _unsealed(path, kind, run, raw, content)
        intact = True
        return Sealed(decoded(form, content, kind), owner, raw)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if intact or isinstance(error, UnknownFieldError):
            raise StoreError(
                f"{path} cannot be interpreted by this version of snapens ({error}): install a newer one"
            ) from error
        previous = path.with_suffix(".previous.json")
        remedy = f"copy the previous version, {previous.name}, over it"
        raise DamagedError(
            f"{path} must be unaltered, got {error}: {remedy if durable.exists(previous) else 'restore the file'}"
        ) from error


def _unsealed(path: Path, kind: str, run: str | None, raw: bytes, content: dict[str, Any]) -> str:
    """Check the seal, remove it from the content, and return the run."""
    found = content.get("format")
    if type(found) is int and found > FORMAT and not _is_sealed({**content, "format": FORMAT}):
        raise StoreError(
            f"{path} must have format {FORMAT} or older to be read here, got {found}: install a newer snapens"
        )
    if found != FORMAT or not _is_sealed(content) or raw != jsonfile.lines(content):
        raise ValueError("checksum mismatch")
    if content["kind"] != kind:
        raise ValueError(f"a file of kind {content['kind']}")
    if run is not None and content["run"] != run:
        raise DamagedError(
            f"{path} must belong to run {run}, as the manifest does, got run {content['run']}: restore the file"
        )
    for name in ("format", "kind", "sha256"):
        del content[name]
    return str(content.pop("run"))


def _is_sealed(content: dict[str, Any]) -> bool:
    body = {name: value for name, value in content.items() if name != "sha256"}
    found = hashlib.sha256(jsonfile.lines(body)).hexdigest()
    return {"format", "kind", "run"} <= body.keys() and content.get("sha256") == found
