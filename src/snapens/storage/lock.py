"""WriterLock: it allows one writer per folder."""

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from weakref import finalize

from ..errors import DamagedError, LockedError
from . import durable

try:
    import fcntl
except ImportError:  # Windows has no POSIX locks: there, nothing prevents a second writer
    fcntl = None  # type: ignore[assignment]

_OWNER = re.compile(rb"[0-9]{0,20}")


class WriterLock:
    """The exclusive right to write in a folder, until `release()` or the end of the process.

    POSIX record locks belong to a process: a forked worker does not inherit them (as it would with
    `flock`), so they end with the writer. For the same reason they do not exclude a second writer in the
    same process, so `_held` does this. Closing any other descriptor of the file releases them, so a writer
    acquires its lock again before each commit.
    """

    _held: ClassVar[dict[tuple[int, Path], object]] = {}

    def __init__(self, path: Path) -> None:
        self._path, held, mark = path, (os.getpid(), path.parent.resolve() / path.name), object()
        if self._held.setdefault(held, mark) is not mark:  # one operation: two threads cannot both succeed
            raise LockedError(
                f"{self._rule} this process: close the earlier writer with ensembler.close(), or with "
                "callback.ensembler.close() for a SnapshotCallback"
            )
        try:
            self._descriptor = self._open()
        except BaseException:
            del self._held[held]
            raise
        self.release = finalize(self, _release, self._descriptor, held, self._held)
        try:
            self.ensure()
            if not _OWNER.fullmatch(self._content(21)):  # a hard link can be any file
                raise DamagedError(f"{path} must hold the number of a process, got another content: remove the file")
            os.truncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, str(os.getpid()).encode())
        except BaseException:
            self.release()
            raise

    def ensure(self) -> None:
        """Acquire the lock, again if necessary, on the file that has the lock's name now."""
        if not self._has_its_name():
            descriptor = self._open()
            os.dup2(descriptor, self._descriptor, inheritable=False)
            os.close(descriptor)  # before the lock is acquired, because closing a descriptor releases it
        try:
            if fcntl is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            owner = self._content(20).decode("ascii", "replace")
            raise LockedError(
                f"{self._rule} process {owner}: wait until it ends or choose another folder; "
                "under DDP pass the wrapped model, or process_group=torch.distributed.group.WORLD"
            ) from error

    def _content(self, most: int) -> bytes:
        os.lseek(self._descriptor, 0, os.SEEK_SET)  # Windows has no pread
        return os.read(self._descriptor, most)

    def _open(self) -> int:
        return durable.own_file(str(self._path), os.O_RDWR | os.O_CREAT)

    def _has_its_name(self) -> bool:
        """Whether the locked file is still there: a file that replaced it can be locked by another writer."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except FileNotFoundError:
            return False

    @property
    def _rule(self) -> str:
        return f"store must have one writer, but {self._path.parent} is being written by"


def _release(descriptor: int, held: tuple[int, Path], every: dict[tuple[int, Path], object]) -> None:
    every.pop(held, None)
    with suppress(OSError):  # closing releases the lock even if the system reports an error
        os.close(descriptor)
