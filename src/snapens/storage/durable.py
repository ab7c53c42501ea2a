"""Files that appear whole or not at all, and the lock that gives a folder one writer."""

import errno
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, NamedTuple
from weakref import finalize

from ..errors import LockedError, StoreError

try:
    import fcntl
except ImportError:  # Windows has no POSIX locks: there, nothing keeps a second writer out
    fcntl = None  # type: ignore[assignment]


class Digest(NamedTuple):
    """What a file must be: its SHA-256 in hexadecimal, and its size in bytes."""

    sha256: str
    bytes: int


def publish(path: Path, chunks: Iterable[bytes | memoryview]) -> Digest:
    """Write a file under a temporary name, sync it, rename it, sync its folder."""
    temporary = path.with_name(path.name + ".part")
    sha256, size = hashlib.sha256(), 0
    try:
        # hashing and writing both release the GIL, so the hash costs next to nothing beside the disk
        with ThreadPoolExecutor(1) as hasher, open(temporary, "wb") as file:
            for chunk in chunks:
                hasher.submit(sha256.update, chunk)
                size += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Digest(sha256.hexdigest(), size)


def write(path: Path, content: bytes) -> Path:
    """Publish a file that somebody asked for; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, [content])
    except OSError as error:
        raise StoreError(f"{path} could not be written ({error}): make room, or choose another place") from error
    return path


def digest(path: Path) -> Digest:
    """The digest of a file as it is now."""
    with open(path, "rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class WriterLock:
    """The exclusive right to write in a folder, until `release()` or the end of the process.

    POSIX record locks belong to a process: a forked worker does not inherit them (as it would with
    `flock`), so they die with the writer. For the same reason they do not keep out a second writer
    inside the process, which `_held` does; and closing any other descriptor of the file drops them,
    so a writer makes sure of its lock before each commit.
    """

    _held: ClassVar[set[tuple[int, Path]]] = set()

    def __init__(self, path: Path) -> None:
        self._path, held = path, (os.getpid(), path.resolve())
        if held in self._held:
            raise LockedError(f"{self._rule} this process: close() that writer first")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.release = finalize(self, _release, self._descriptor, held, self._held)
        try:
            self.ensure()
            os.truncate(self._descriptor, 0)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BaseException:
            self.release()
            raise
        self._held.add(held)

    def ensure(self) -> None:
        """Take the lock, again if need be."""
        try:
            if fcntl is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            owner = os.pread(self._descriptor, 20, 0).decode("ascii", "replace")
            remedy = "wait for its end or choose another folder; under DDP pass the wrapped model"
            raise LockedError(f"{self._rule} process {owner}: {remedy}") from error

    @property
    def _rule(self) -> str:
        return f"store must have one writer, but {self._path.parent} is being written by"


def _release(descriptor: int, held: tuple[int, Path], every: set[tuple[int, Path]]) -> None:
    os.close(descriptor)
    every.discard(held)
