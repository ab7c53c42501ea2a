"""Downloads that continue where they stopped; a file gets its name only after its MD5 was checked."""

import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ...errors import DataError
from ...storage.durable import own_file
from .sources import SOURCES, confirm

Progress = Callable[[int, int], object]
"""Called with the number of bytes received and the size of the file, 0 if the server does not report it."""

_TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 18


def fetch(name: str, folder: Path, progress: Progress | None = None) -> Path:
    """Download the source of this name into `folder`; after a broken connection, continue as long as bytes arrive."""
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
                f"{name} must be downloaded from {url}, got {reason}: try again, which continues after the "
                f"{_size(part)} bytes received so far, or copy the file to {path}"
            )
    try:
        confirm(part, name)
    except DataError:
        part.unlink()
        raise
    os.replace(part, path)
    return path


def _transfer(url: str, part: Path, progress: Progress) -> bool:
    """Append the missing bytes, or start again if the server sends no ranges; return whether the file is complete."""
    start = _size(part)
    request = Request(url, headers={"User-Agent": "snapens"} | ({"Range": f"bytes={start}-"} if start else {}))
    try:
        response = urlopen(request, timeout=_TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # there are no bytes after `start`: the file is complete
            return True
        raise
    mode = "ab" if response.status == 206 else "wb"
    with response, open(part, mode, opener=own_file) as file:  # the folder may be shared: no link is followed
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
