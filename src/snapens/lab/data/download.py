"""Downloads that go on where they stopped, and appear only once their MD5 is right."""

import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ...errors import DataError
from .sources import SOURCES, confirm

Progress = Callable[[int, int], object]
"""Called with the bytes that are here and those there are, 0 where the server does not say."""

_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 18


def fetch(name: str, folder: Path, progress: Progress | None = None) -> Path:
    """Download the source of this name into `folder`, and go on after each break that came after some progress."""
    url, path, part = SOURCES[name].url, folder / name, folder / f"{name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    complete = False
    while not complete:
        before, reason = _size(part), "the connection ended early"
        try:
            complete = _transfer(url, part, progress or (lambda done, total: None))
        except (OSError, HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
        if not complete and _size(part) <= before:
            raise DataError(
                f"{name} must come from {url}, got {reason}: try again, which goes on from the {_size(part)} bytes "
                f"that are here, or get it elsewhere and put it at {path}"
            )
    try:
        confirm(part, name)
    except DataError:
        part.unlink()
        raise
    os.replace(part, path)
    return path


def _transfer(url: str, part: Path, progress: Progress) -> bool:
    """Append what is missing, or begin again with a server that cannot go on; whether all has come."""
    start = _size(part)
    request = Request(url, headers={"User-Agent": "snapens"} | ({"Range": f"bytes={start}-"} if start else {}))
    try:
        response = urlopen(request, timeout=_TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # nothing lies after `start`: all has come before
            return True
        raise
    with response, open(part, "ab" if response.status == 206 else "wb") as file:
        done = file.tell()
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else 0
        while chunk := response.read(_CHUNK_BYTES):
            done += file.write(chunk)
            progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return done >= total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
