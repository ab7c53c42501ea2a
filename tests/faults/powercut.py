"""What a disk may hold after a power cut: a small model of files in which only `fsync` makes anything durable.

A file's bytes are durable once the file was synced, and a name, a rename or a removal once its folder was. Of all that
happened since, any part may have reached the disk: `Choice` says which. This is harsher than most file systems.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path, PurePath


@dataclass
class File:
    durable: bytes = b""
    pending: list = field(default_factory=list)
    """(offset, data) of writes, (size, None) of truncations."""

    def content(self, choice):
        content = bytearray(self.durable)
        for offset, data in self.pending:
            kept = choice.of_write(data) if data is not None else b""
            if data is None:
                content[offset:] = b""
            elif kept is not None:
                content.extend(bytes(max(0, offset - len(content))))  # a hole
                content[offset : offset + len(kept)] = kept
        return bytes(content)


@dataclass
class Folder:
    durable: dict = field(default_factory=dict)
    pending: list = field(default_factory=list)
    """Changes that happen as a whole: name -> file, folder, or None where it is removed."""

    def entries(self, choice):
        found = dict(self.durable)
        for change in self.pending:
            if choice.of_name():
                found |= change
        return {name: node for name, node in found.items() if node is not None}


class Choice:
    """Which unsynced changes survive. `torn` chooses each change at random, and may keep only the start of a write."""

    def __init__(self, kind, seed=0):
        self.kind, self._random = kind, random.Random(seed)

    def of_name(self):
        return self._random.random() < 0.5 if self.kind == "torn" else self.kind in ("all", "names only")

    def of_write(self, data):
        """The part of the data that survives; None: none."""
        if self.kind == "torn":
            return data[: self._random.randint(0, len(data))] if self._random.random() < 0.7 else None
        return data if self.kind in ("all", "data only") else None


KINDS = ("nothing", "names only", "data only", "all", "torn")
ALL = Choice("all")


class Model:
    """The disk, by replaying recorded operations."""

    def __init__(self):
        self.root, self._opened = Folder(), {}

    def replay(self, operation):
        act = getattr(self, f"_{operation.name}", None)
        if act is not None:
            act(operation)

    def write_image(self, folder, choice):
        _write(self.root, Path(folder), choice)

    def _find(self, path):
        node = self.root
        for name in PurePath(path).parts:
            node = node.entries(ALL)[name]
        return node

    def _change(self, path, node):
        path = PurePath(path)
        self._find(path.parent).pending.append({path.name: node})

    def _create(self, operation):
        self._change(operation.path, File())
        self._open(operation)

    def _open(self, operation):
        self._opened[operation.opened] = self._find(operation.path)

    def _mkdir(self, operation):
        self._change(operation.path, Folder())

    def _write(self, operation):
        self._opened[operation.opened].pending.append((operation.offset, operation.data))

    _pwrite = _write

    def _ftruncate(self, operation):
        self._opened[operation.opened].pending.append((operation.offset, None))

    def _fsync(self, operation):
        node = self._opened[operation.opened]
        node.durable = node.content(ALL) if isinstance(node, File) else node.entries(ALL)
        node.pending = []

    def _replace(self, operation):
        source, target = PurePath(operation.path), PurePath(operation.to)
        assert source.parent == target.parent
        self._find(source.parent).pending.append({source.name: None, target.name: self._find(source)})

    def _unlink(self, operation):
        self._change(operation.path, None)


def _write(folder, path, choice):
    path.mkdir()
    for name, node in folder.entries(choice).items():
        if isinstance(node, Folder):
            _write(node, path / name, choice)
        else:
            (path / name).write_bytes(node.content(choice))
