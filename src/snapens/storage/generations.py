"""Generations: a sealed JSON file and the files that it lists, replaced so that a crash leaves a complete set."""

import logging
import re
from collections.abc import Collection
from pathlib import Path

from ..errors import StoreError
from . import durable
from .lock import WriterLock

log = logging.getLogger("snapens")


class Generations:
    """`NAME.json`, the files that it lists, and (with `previous`) `NAME.previous.json` with the files that it lists.

    New files are written first, under new names. Then `commit` publishes the JSON file, and then removes the files that
    no generation lists. If it is interrupted, `NAME.json` is complete and every file that it lists exists.
    """

    def __init__(self, path: Path, files: Path, name: str, *, previous: bool = True) -> None:
        self.path, self.files = path, files
        self.previous = path.with_suffix(".previous.json") if previous else None
        self._name = re.compile(name + r"-[0-9a-f]{12}\.safetensors")
        self._json = re.compile("|".join(re.escape(one.name) for one in (path, self.previous) if one))
        self._base: tuple[bytes, frozenset[str]] | None = None
        self._lock: WriterLock | None = None
        self._on_disk: dict[bytes, frozenset[str]] = {}  # what this writer read in, or may have put into, the JSON file

    def file(self, name: str) -> Path:
        """A path for a new file."""
        return self.files / f"{name}-{durable.unique()}.safetensors"

    def owns(self, name: str) -> bool:
        """Whether the name of a file is one that `file` returns."""
        return self._name.fullmatch(name) is not None

    def rest_on(self, content: bytes, files: Collection[str]) -> None:
        """Use an intact generation that was read as the previous generation of the next commit."""
        self._base = content, frozenset(files)

    def guard(self, lock: WriterLock, content: bytes, files: Collection[str] = ()) -> None:
        """Require from now on that this writer holds the lock and that the JSON file does not change otherwise.

        `content` is what was read from the file while the lock was held.
        """
        self._lock, self._on_disk = lock, {content: frozenset(files)}

    def listed(self) -> frozenset[str]:
        """The files that the JSON file lists; the lock and the file must still be those of this writer."""
        if b"" not in self._on_disk and not durable.exists(self.path):  # first: the lock would create its file
            raise StoreError(
                f"store must remain where it is during a run, but {self.path} is missing: move the folder back and try "
                "again, or begin a new run in another folder"
            )
        if self._lock is not None:
            self._lock.ensure()  # the process may have dropped it
        found = durable.find(self.path) or b""
        if found not in self._on_disk:
            raise StoreError(
                f"store must have one writer, but another process changed {self.path}: "
                "stop the other process, then resume from the last checkpoint, or save again"
            )
        return self._on_disk[found]

    def may_list(self, name: str) -> bool:
        """Whether the JSON file may list a file: a commit that failed may have published it."""
        return any(name in files for files in self._on_disk.values())

    def commit(self, content: bytes, files: Collection[str]) -> None:
        """Publish a generation whose files are already written."""
        kept = frozenset(files)
        if self._lock is not None:
            self.listed()  # still ours, although writing the files took time
            self._on_disk[content] = kept  # whether or not the commit returns
        if self.previous is not None and self._base is not None:
            durable.publish(self.previous, [self._base[0]])
            kept |= self._base[1]
        durable.publish(self.path, [content])
        self.rest_on(content, files)
        self._on_disk = {content: frozenset(files)}
        self.sweep(kept)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove files that no generation lists, and temporary files of writers that were killed."""
        try:
            durable.sweep(self.files, self._name, keep)
            durable.sweep(self.path.parent, self._json, [one.name for one in (self.path, self.previous) if one])
        except OSError as error:  # the commit is complete; leftover files only use disk space until the next one
            log.warning("files in %s that are no longer needed could not be removed: %s", self.files, error)
