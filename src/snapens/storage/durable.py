"""Files that are written completely or not at all."""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..errors import DamagedError, StoreError

Content = Iterable[bytes | memoryview] | Callable[[BinaryIO], object]
"""The content of a file: its chunks, or a function that writes into the open file."""

SIZE_LIMIT = 1 << 28
"""The largest size in bytes of a file that is read as a whole, such as a JSON file or a log."""

_REMEDIES = {
    "check the permissions, or choose another folder, then try again": (errno.EACCES, errno.EPERM, errno.EROFS),
    "a file is where a folder must be; choose another path": (errno.EEXIST, errno.ENOTDIR),
    "a folder is where the file must be; choose another path": (errno.EISDIR,),
    "this file system may have no locks; choose a folder on a local disk": (
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOLCK,
    ),
}
_TEMPORARY = re.compile(r"(\.[0-9a-f]{12})?\.part$")  # names of format 1 have no digits
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither flag
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class Digest:
    """The SHA-256 of a file in hexadecimal, and its size in bytes."""

    sha256: str
    bytes: int


def publish(path: Path, content: Content) -> Digest:
    """Write a file under a unique temporary name, sync it, rename it, and sync its folder.

    The digest is computed from the file's bytes, which are read back during the sync: it is correct even if the source
    of the content changes meanwhile.
    """
    temporary = path.with_name(f"{path.name}.{unique()}.part")
    try:
        with open(temporary, "x+b") as file:  # exclusive creation follows no link
            if callable(content):
                content(file)
            else:
                file.writelines(content)
            file.flush()
            found = _synced(file)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return found


def _synced(file: BinaryIO) -> Digest:
    """Sync a file and compute its digest at the same time."""
    with ThreadPoolExecutor(1) as hasher:
        try:
            digest = hasher.submit(_digest, file).result
        except RuntimeError:  # no thread can be started while the interpreter shuts down
            digest = partial(_digest, file)
        os.fsync(file.fileno())
        return digest()


def write(path: Path, content: bytes | Content) -> Path:
    """Publish a file that a user requested; create its folder if necessary."""
    with writing(path):
        make_folder(path.parent)
        publish(path, [content] if isinstance(content, bytes) else content)
    return path


@contextmanager
def writing(what: str | Path) -> Iterator[None]:
    """Write something; an OSError becomes a StoreError that names it."""
    try:
        yield
    except OSError as error:
        remedies = [remedy for remedy, numbers in _REMEDIES.items() if error.errno in numbers]
        remedy = remedies[0] if remedies else "free disk space, or choose another folder, then try again"
        raise StoreError(f"{what} could not be written ({error}); earlier files are intact: {remedy}") from error


def make_folder(path: Path) -> None:
    """Create a folder, and its parents where necessary; sync the folder in which each of them was created."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def make_subfolder(path: Path) -> None:
    """Create a folder inside a run folder. A symbolic link is rejected, because it can lead out of the run folder."""
    if path.is_symlink():
        raise StoreError(f"{path} must be a folder, got a symbolic link: replace it by the folder itself")
    make_folder(path)


def unique() -> str:
    """Twelve random hexadecimal digits for a new file name."""
    return secrets.token_hex(6)


def sweep(folder: Path, name: re.Pattern[str], keep: Iterable[str] = ()) -> None:
    """Remove the files whose name matches, and their leftover temporary files, except those to keep."""
    kept = set(keep)
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            if entry.name not in kept and name.fullmatch(_TEMPORARY.sub("", entry.name)):
                Path(entry.path).unlink(missing_ok=True)


def exists(path: Path) -> bool:
    """Whether there is a file or folder; an I/O error does not mean that there is none."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def described(path: Path) -> str:
    """A path for a message, which says so if it does not exist."""
    return str(path) if exists(path) else f"{path}, which does not exist"


def listed(folder: Path) -> list[Path]:
    """The content of a folder, by name; nothing if there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read it; a missing file raises FileNotFoundError, another I/O error StoreError."""
    try:
        with open(path, "rb", opener=_regular) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise _unreadable(path, error) from error


def contents(path: Path, limit: int = SIZE_LIMIT) -> bytes:
    """The bytes of a regular file of limited size."""
    with reading(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise DamagedError(f"{path} must have at most {limit} bytes, got {size}: restore the file")
        return file.read(size)


def find(path: Path) -> bytes | None:
    """The `contents` of a file, or None if there is no such file."""
    try:
        return contents(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def own_file(path: str, flags: int) -> int:
    """For `open`: a regular file of a run folder, to be changed in place. A symbolic link is not followed."""
    try:
        return _regular(path, flags | _NO_FOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedError(f"{path} must be a regular file, got a symbolic link: remove the link") from error


def digest(path: Path) -> Digest:
    """The current digest of a file."""
    with reading(path) as file:
        return _digest(file)


def check(path: Path, expected: Digest, named_by: str) -> None:
    """Check that a file is unchanged since it was committed."""
    try:
        with reading(path) as file:
            size = os.fstat(file.fileno()).st_size
            found = _digest(file) if size == expected.bytes else None  # a sparse file of any size costs nothing
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(f"{path} is listed in {named_by}, but it is missing: restore the file") from error
    if found != expected:
        what = "altered" if size == expected.bytes else "truncated or altered"
        raise DamagedError(f"{path} must have the SHA-256 in {named_by}, but it was {what}: restore the file")


def _digest(file: BinaryIO) -> Digest:
    file.seek(0)
    return Digest(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)  # type: ignore[arg-type]


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _NO_WAIT, 0o666)  # opening a FIFO must not wait for its other end
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{path} must be a regular file: restore it")
    return descriptor


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} could not be read ({error}): check its permissions and the disk")


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
