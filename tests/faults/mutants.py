"""Deliberate defects of the storage, each switched on by its name; `test_mutants.py` shows that each one is found."""

import os
import stat
import sys
import zlib
from unittest.mock import Mock

import pytest

from snapens.storage import durable, jsonfile, sealed


class System:
    """The module `os` as `durable` sees it, with some functions replaced."""

    def __init__(self, **replaced):
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(os, name)


def is_folder(descriptor):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def without_sync_of(folders):
    """No fsync of folders, or none of files."""
    durable.os = System(fsync=lambda descriptor: None if is_folder(descriptor) == folders else os.fsync(descriptor))


def rename_before_sync():
    """A file is renamed first and synced afterwards."""

    def replace(source, target):
        os.replace(source, target)
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    without_sync_of(False)
    durable.os.replace = replace


def without_exclusive_creation():
    durable.open = lambda path, mode, **options: open(path, mode.replace("x", "w"), **options)  # noqa: SIM115


def without_seal():
    """The checksum of a JSON file is not compared."""
    sealed._is_sealed = lambda content: True
    sealed.jsonfile = Mock(wraps=jsonfile, lines=lambda content, real=jsonfile.lines: Same(real(content)))


class Same(bytes):
    """Bytes that equal all others."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


MUTANTS = {
    "no sync of files": lambda: without_sync_of(False),
    "no sync of folders": lambda: without_sync_of(True),
    "rename before the sync": rename_before_sync,
    "no checksum of tensor files": lambda: setattr(durable, "check", lambda *_: None),
    "no checksum of JSON files": without_seal,
    "no checksum of log lines": lambda: setattr(zlib, "crc32", lambda content: 0),
    "no exclusive creation": without_exclusive_creation,
    "an I/O error is absence": lambda: setattr(durable, "exists", lambda path: path.exists()),
    "files are written in place": lambda: setattr(durable, "publish", in_place),
}


def in_place(path, content):
    """Without a temporary name."""
    with open(path, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    durable._sync_folder(path.parent)
    return durable.digest(path)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    MUTANTS[name]()
    sys.exit(pytest.main(arguments))
