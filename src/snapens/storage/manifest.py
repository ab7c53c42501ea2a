"""The manifest of a folder: the run's identity and its committed snapshots."""

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, StoreError, shortened
from . import durable, jsonfile, sealed
from .durable import Digest
from .sealed import Sealed
from .typed import decoded

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileRecord:
    """A file of the folder and its expected digest."""

    file: str
    digest: Digest

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.file):
            raise ArgumentError(f"file must be a plain name, got {self.file!r}")
        if not _SHA256.fullmatch(self.digest.sha256) or self.digest.bytes < 0:
            raise ArgumentError(f"digest must be 64 hexadecimal digits and a size, got {self.digest}")


@dataclass(frozen=True)
class Record(FileRecord):
    """One snapshot: its completed step and its file.

    A partial snapshot holds only some of a model's tensors. The header of the file lists the tensors that are stored
    elsewhere; `elsewhere` lists them for files of format 1: name -> (file, name in that file).
    """

    step: int
    partial: bool = False
    elsewhere: dict[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> str:
        """As JSON, cached for the next commits; `elsewhere` is omitted if it is empty."""
        described = {"step": self.step, "file": self.file, "digest": vars(self.digest), "partial": self.partial}
        return jsonfile.compact({**described, "elsewhere": self.elsewhere} if self.elsewhere else described)


@dataclass(frozen=True)
class Manifest:
    """The snapshots in the order of their steps."""

    snapshots: tuple[Record, ...] = ()

    def __post_init__(self) -> None:
        before, files = 0, set()
        for record in self.snapshots:
            files.add(record.file)
            if record.step <= before or any(file not in files for file, _ in record.elsewhere.values()):
                raise ArgumentError(f"snapshots must have ascending steps and earlier files, got step {record.step}")
            before = record.step
        if len(files) != len(self.snapshots):
            raise ArgumentError("snapshots must have different files, got the same file twice")

    def upto(self, step: int) -> "Manifest":
        """Without the snapshots after `step`."""
        return Manifest(tuple(record for record in self.snapshots if record.step <= step))

    def encode(self, run: str) -> bytes:
        """As a sealed file."""
        records = jsonfile.Encoded(f"[{', '.join([record.encoded for record in self.snapshots])}]")
        return sealed.encode("manifest", run, {"snapshots": records})


def read(path: Path) -> Sealed[Manifest]:
    """The manifest of a folder."""
    try:
        return _parsed(path / "manifest.json", durable.contents(path / "manifest.json"))
    except (FileNotFoundError, NotADirectoryError) as error:
        found, remedy = durable.described(path), run_below(path) or "check the path"
        raise StoreError(f"store must be a folder that holds manifest.json, got {found}: {remedy}") from error


def run_below(path: Path) -> str:
    """The remedy for a folder that is not a run but contains some; empty if it contains none."""
    runs = [str(folder) for folder in durable.listed(path) if durable.exists(folder / "manifest.json")]
    return f"choose a run in it, such as {shortened(runs, limit=3)}" if runs else ""


@lru_cache(maxsize=8)  # readers read the disk each time
def _parsed(path: Path, raw: bytes) -> Sealed[Manifest]:
    return sealed.decode(path, raw, "manifest", Manifest, format_1=_format_1)


@dataclass(frozen=True)
class _Record1:
    step: int
    file: str
    shared: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class _Manifest1:
    format: int
    run: str
    files: dict[str, Digest]
    snapshots: tuple[_Record1, ...]


def _format_1(content: dict[str, Any]) -> Manifest:
    found: _Manifest1 = decoded(_Manifest1, content, "manifest")
    for name, digest in found.files.items():
        FileRecord(name, digest)
    return Manifest(
        tuple(Record(one.file, found.files[one.file], one.step, False, one.shared) for one in found.snapshots)
    )
