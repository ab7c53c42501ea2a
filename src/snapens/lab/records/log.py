"""The log of a run: one event per line, each with a checksum."""

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import DamagedError, StoreError
from ...storage import durable, jsonfile
from ...storage.sealed import FORMAT


class Log:
    """`log.jsonl`: a first line with the format and the run, then one line per event."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ready = False  # whether a line can be appended to the file as it is

    def append(self, run: str, values: dict[str, Any]) -> None:
        """Add an event; the first time, rewrite a file that was truncated or has format 1."""
        line = _encoded(values)
        with durable.writing(self.path):
            if not self._ready:
                self.keep(run, lambda _: True)
            self._ready = False  # a write that fails may leave half a line
            with open(self.path, "ab", opener=durable.own_file) as file:
                file.write(line)
            self._ready = True

    def sync(self) -> None:
        """Make sure that all lines so far survive a power failure."""
        with durable.writing(self.path):
            if durable.exists(self.path):
                with open(self.path, "r+b", opener=durable.own_file) as file:
                    os.fsync(file.fileno())

    def keep(self, run: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Rewrite the file with the wanted events only."""
        head = _encoded({"format": FORMAT, "kind": "log", "run": run})
        lines = [_encoded(line) for line in self.lines(run) if wanted(line)]
        with durable.writing(self.path):
            durable.publish(self.path, [head, *lines])
        self._ready = True

    def lines(self, run: str | None) -> Iterator[dict[str, Any]]:
        """The events. A truncated last line is ignored; any other damaged line is an error."""
        try:
            content = durable.contents(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        *whole, cut = content.split(b"\n")
        if content[:1] in (b"", b"{") and not content.startswith(b'{"format"') and b'"crc32"' not in content:
            yield from _format_1([*whole, cut])
            return
        for complete in (cut, cut[:-1]):  # a truncated line is neither; the end of a complete line may be altered
            with suppress(ValueError):
                _decoded(complete)
                whole.append(cut)
        if content.strip() and not whole:  # the head is never cut off, because the file appears with it
            raise DamagedError(f"{self.path} must begin with the head of a log, got none: restore the file")
        for number, line in enumerate(whole, 1):
            try:
                values = _decoded(line)
                if number == 1:
                    self._check_head(values, run)
                else:
                    yield values
            except ValueError as error:
                raise DamagedError(
                    f"{self.path} must be unaltered, got {error} in line {number}: restore the file, or remove the line"
                ) from error

    def _check_head(self, head: dict[str, Any], run: str | None) -> None:
        found = head.get("format")
        if type(found) is int and found > FORMAT:
            raise StoreError(f"{self.path} must have format {FORMAT} or older, got {found}: install a newer snapens")
        if found != FORMAT or head.get("kind") != "log":
            raise ValueError("no header of a log")
        if run is not None and head.get("run") != run:
            raise DamagedError(f"{self.path} must belong to run {run}, got run {head.get('run')}: restore the file")


def _encoded(values: dict[str, Any]) -> bytes:
    checksum = f"{zlib.crc32(jsonfile.compact(values).encode()):08x}"
    return jsonfile.compact({**values, "crc32": checksum}).encode() + b"\n"


def _decoded(line: bytes) -> dict[str, Any]:
    values = jsonfile.loads(line)
    if not isinstance(values, dict) or values.pop("crc32", None) is None or _encoded(values) != line + b"\n":
        raise ValueError("checksum mismatch")
    return values


def _format_1(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Lines without a checksum; truncated lines are ignored."""
    for line in lines:
        with suppress(ValueError, TypeError):
            yield dict(jsonfile.loads(line))
