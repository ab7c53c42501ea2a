"""Archives of public data sets: checked, then unpacked completely or not at all."""

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO

from ...errors import DataError
from .sources import confirm, parsing


def unpack(archive: Path, folder: str) -> Path:
    """Unpack the single folder in an archive into the folder of the archive."""
    confirm(archive, archive.name)
    with TemporaryDirectory(prefix=f"{folder}.", dir=archive.parent) as temporary:
        with parsing(archive, "a complete archive", "download it again"):
            for name, content in _files(archive):
                path = Path(temporary, *_plain(name, folder, archive))
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, open(path, "wb") as file:
                    shutil.copyfileobj(content, file)
        _require(Path(temporary, folder).is_dir(), "no files", archive)
        os.replace(Path(temporary, folder), archive.parent / folder)
    return archive.parent / folder


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The name and the content of each file; everything except regular files and folders is rejected."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if not entry.is_dir():
                    _require(kind in (0, stat.S_IFREG), entry.filename, archive)
                    yield entry.filename, opened.open(entry)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            _require(content or member.isdir(), member.name, archive)
            if content:
                yield member.name, content


def _plain(name: str, folder: str, archive: Path) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    # on Windows, a backslash or a colon can point outside the folder
    _require(parts[0] == folder and ".." not in parts and not {"\\", ":"} & {*name}, name, archive)
    return parts


def _require(rule: object, name: str, archive: Path) -> None:
    if not rule:
        raise DataError(f"{archive} must hold regular files in one folder, got {name!r}: do not use this archive")
