"""A disk under observation: every file operation below a folder is recorded, and one of them may go wrong.

`Disk` replaces the functions of `os`, `fcntl` and `open` while it is active. The process carries on as usual, but each
call that concerns the folder is an `Operation` with a number. `test_system_calls.py` compares the list with what
strace sees. `fsync` is recorded and not carried out: `powercut.py` works out what would have survived.
"""

import builtins
import errno
import fcntl
import io
import os
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from snapens.storage import durable

BY_PATH = ("open", "stat", "lstat", "mkdir", "rmdir", "unlink", "remove", "replace", "rename", "scandir", "listdir")
BY_PATH += ("truncate", "link", "symlink")
BY_DESCRIPTOR = ("close", "read", "write", "pread", "pwrite", "fsync", "fdatasync", "ftruncate", "fstat")
WRITING = {"create", "write", "pwrite", "fsync", "replace", "rename", "mkdir", "truncate", "ftruncate"}


class Killed(BaseException):
    """The process was killed. What it does from then on never reaches the disk."""


@dataclass(frozen=True)
class Operation:
    """One operation: its name, the path relative to the disk, and what a replay needs."""

    name: str
    path: str
    opened: int = 0
    """Which opening of a file this belongs to, counted from 1."""
    offset: int = 0
    data: bytes = b""
    to: str = ""


class Disk:
    """Records the operations below `root`; the one with the number `at`, counted from 0, happens as `fault` says."""

    def __init__(self, root, fault=None, at=-1):
        self.root, self.fault, self.at = str(root), fault, at
        self.operations, self.acknowledged = [], []
        self.dead = False
        self._opened, self._count, self._patches = {}, 0, []

    def acknowledge(self, value):
        """Note that from here on the writer relies on something."""
        self.acknowledged.append((len(self.operations), value))

    def __enter__(self):
        replaced = {name: self._by_path(name) for name in BY_PATH}
        replaced |= {name: self._by_descriptor(name) for name in BY_DESCRIPTOR}
        self._patches = [patch.multiple(os, **replaced), patch.object(fcntl, "lockf", self._by_descriptor("lockf"))]
        self._patches += [patch.object(module, "open", self._open_file) for module in (builtins, io)]
        self._patches.append(patch.object(durable, "ThreadPoolExecutor", InLine))  # one order of operations
        self._real = {name: getattr(os, name) for name in replaced} | {"lockf": fcntl.lockf, "file": builtins.open}
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_):
        for one in self._patches:
            one.stop()

    def close(self, descriptor):
        self._real["close"](descriptor)

    def _below(self, path):
        """The path relative to the disk; None elsewhere."""
        if isinstance(path, int):
            return self._opened.get(path, (None, 0))[0]
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100, since resolve() would follow links
        return os.path.relpath(absolute, self.root) if f"{absolute}/".startswith(f"{self.root}/") else None

    def _by_path(self, name):
        def operation(path=".", *args, **kwargs):
            place = path if kwargs.get("dir_fd") is None else self._in_folder(kwargs["dir_fd"], path)
            if (below := self._below(place)) is None:
                return self._real[name](path, *args, **kwargs)
            if name == "truncate" and isinstance(path, int):
                return os.ftruncate(path, *args)
            if name == "open":
                return self._open(path, below, place, *args, **kwargs)
            to = self._below(args[0]) if name in ("replace", "rename", "link") else ""
            return self._perform(Operation(name, below, to=to), self._real[name], path, *args, **kwargs)

        return operation

    def _in_folder(self, descriptor, path):
        folder = self._opened.get(descriptor)
        return Path(self.root, folder[0], path) if folder else Path("/")

    def _by_descriptor(self, name):
        def operation(descriptor, *args, **kwargs):
            if descriptor not in self._opened:
                return self._real[name](descriptor, *args, **kwargs)
            path, opened = self._opened[descriptor]
            offset = self._offset(descriptor) if name == "write" else args[-1] if name in ("pwrite", "ftruncate") else 0
            data = bytes(args[0]) if name in ("write", "pwrite") else b""
            if name == "close":
                del self._opened[descriptor]
            real = os.fstat if name in ("fsync", "fdatasync") else self._real[name]
            return self._perform(Operation(name, path, opened, offset, data), real, descriptor, *args, **kwargs)

        return operation

    def _offset(self, descriptor):
        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        return os.lseek(descriptor, 0, os.SEEK_END if appends else os.SEEK_CUR)

    def _open(self, path, below, place, flags, *args, **kwargs):
        creates = flags & os.O_CREAT and not self._is_there(place)
        operation = Operation("create" if creates else "open", below, self._count + 1)
        descriptor = self._perform(operation, self._real["open"], path, flags, *args, **kwargs)
        self._count += 1
        self._opened[descriptor] = below, self._count
        if flags & os.O_TRUNC and not creates:
            self.operations.append(Operation("ftruncate", below, self._count))
        return descriptor

    def _is_there(self, path):
        try:
            return bool(self._real["lstat"](path))
        except OSError:
            return False

    def _perform(self, operation, real, *args, **kwargs):
        if self.dead:
            if operation.name == "close":
                return real(*args)
            raise Killed
        number = len(self.operations)
        self.operations.append(operation)
        if number == self.at:
            return self.fault(self, operation, real, *args, **kwargs)
        try:
            return real(*args, **kwargs)
        except OSError:  # as when a file does not exist
            self.operations[number] = replace(operation, name=f"{operation.name} in vain")
            raise

    def _open_file(self, file, mode="r", buffering=-1, *args, opener=None, **kwargs):
        if isinstance(file, int) or self._below(file) is None:
            return self._real["file"](file, mode, buffering, *args, opener=opener, **kwargs)
        kind, both = mode.strip("bt+"), "+" in mode
        flags = os.O_RDWR if both else os.O_RDONLY if kind == "r" else os.O_WRONLY
        flags |= {"r": 0, "w": os.O_TRUNC, "x": os.O_EXCL, "a": os.O_APPEND}[kind] | (os.O_CREAT if kind != "r" else 0)
        raw = Raw((opener or os.open)(os.fspath(file), flags | os.O_CLOEXEC))
        if buffering == 0:
            return raw
        found = io.BufferedRandom(raw) if both else io.BufferedReader(raw) if kind == "r" else io.BufferedWriter(raw)
        return found if "b" in mode else io.TextIOWrapper(found, *args, **kwargs)


class Raw(io.RawIOBase):
    """An open file whose every system call goes through `os`."""

    def __init__(self, descriptor):
        self._descriptor = descriptor

    def fileno(self):
        return self._descriptor

    def readable(self):
        return True

    def writable(self):
        return True

    def seekable(self):
        return True

    def readinto(self, buffer):
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data):
        return os.write(self._descriptor, data)

    def seek(self, offset, whence=os.SEEK_SET):
        return os.lseek(self._descriptor, offset, whence)

    def truncate(self, size=None):
        os.ftruncate(self._descriptor, self.tell() if size is None else size)

    def close(self):
        if not self.closed:
            super().close()
            os.close(self._descriptor)


class InLine:
    """An executor that carries out each task at once."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *args):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


# what may go wrong: (disk, operation, real function, its arguments) -> its result


def fails(code):
    def fault(disk, operation, real, *args, **kwargs):
        if operation.name == "close":  # the descriptor is gone even if the system reports an error
            real(*args)
        raise OSError(code, os.strerror(code), operation.path)

    return fault


def is_short(disk, operation, real, *args, **kwargs):
    """A signal, or a disk that is almost full: half of the bytes are read or written."""
    descriptor, what, *more = args
    half = what // 2 if isinstance(what, int) else bytes(what)[: len(what) // 2]
    return real(descriptor, half or what, *more)


def is_interrupted(disk, operation, real, *args, **kwargs):
    raise KeyboardInterrupt


def kills_before(disk, operation, real, *args, **kwargs):
    disk.dead = True
    raise Killed


def kills_after(disk, operation, real, *args, **kwargs):
    result = real(*args, **kwargs)
    disk.dead = True
    if operation.name in ("create", "open"):  # a process that ends closes its files
        disk.close(result)
    elif operation.name == "scandir":
        result.close()
    raise Killed


FAULTS = {
    "EIO": (fails(errno.EIO), None),
    "ENOSPC": (fails(errno.ENOSPC), WRITING),
    "a short transfer": (is_short, {"read", "write", "pread", "pwrite"}),
    "an interrupt": (is_interrupted, None),
    "a kill before": (kills_before, None),
    "a kill after": (kills_after, None),
}
"""Each fault, and the operations at which it can happen; None: all of them."""
