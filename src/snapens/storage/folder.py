"""Snapshots in a folder: one file per snapshot, and a manifest that lists the committed ones."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ..errors import DamagedError, StoreError
from . import durable, manifest, tensorfile
from .generations import Generations
from .lock import WriterLock
from .manifest import Manifest, Record
from .sealed import Sealed
from .store import Entry
from .tensorfile import About, Place, Spec, Stored


class Folder:
    """`manifest.json` and `snapshots/` in a run folder; reading creates no files.

    A commit writes the snapshot's file, then the manifest, and then removes the files that no manifest lists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = path / "snapshots"
        self._generations = Generations(path / "manifest.json", self._files, r"step-\d{9,}")
        self._lock: WriterLock | None = None
        self._written: Sealed[Manifest] | None = None  # only for a writer; readers read the disk each time
        self._reserved = -1, self._files  # the step and the path of the next file
        self._known: dict[str, tuple[dict[str, Stored], dict[str, Place]]] = {}  # files that were checked or written

    def open_to_write(self, resume: bool) -> None:
        """Become the folder's only writer; a folder that holds snapshots is accepted only with `resume`."""
        closed = self._lock is None
        try:
            if closed:
                self._open()
            if self.steps and not resume:
                raise StoreError(
                    f"store must be a folder without snapshots, got {self.path}, which holds those of steps "
                    f"{', '.join(map(str, self.steps))}: choose another, or pass resume=True to continue that run"
                )
        except BaseException:
            if closed:
                self.close()
            raise

    def close(self) -> None:
        """Release the folder to other writers; reading remains possible."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._written = None

    @property
    def run(self) -> str:
        """The identity of the run that the folder belongs to."""
        return str(self._manifest.run)

    @property
    def steps(self) -> dict[int, str]:
        """The committed snapshots, ascending: step -> a name that is unique in the run."""
        return {record.step: record.file for record in self._manifest.value.snapshots}

    def entries(self, step: int) -> dict[str, Stored]:
        """The stored tensors of a snapshot by name; the digest of a file is checked when it is first read."""
        records = {record.file: record for record in self._manifest.value.snapshots if record.step <= step}
        record = {record.step: record for record in records.values()}[step]
        own, elsewhere = self._file(record)
        found = dict(own)
        for name, (file, key) in (elsewhere | record.elsewhere).items():
            held = self._file(records[file])[0] if file in records else {}
            if key not in held:
                raise DamagedError(
                    f"{self.path}: step {step} needs {key!r} of {file}, which is missing: restore the folder"
                )
            found[name] = held[key]
        return found

    def reserve(self, step: int) -> str:
        """The name of the file that the next commit will write if it has this step."""
        if self._reserved[0] != step or self._generations.may_list(self._reserved[1].name):
            self._reserved = step, self._generations.file(f"step-{step:09d}")
        return self._reserved[1].name

    def append(
        self,
        step: int,
        specs: Mapping[str, Spec],
        tensors: Iterable[tuple[str, Tensor | Entry]],
        tied: Mapping[str, str],
        partial: bool,
    ) -> None:
        """Commit a snapshot; see `Store`."""
        base = self._writable()
        run, file = str(base.run), self.reserve(step)
        before = self.entries(base.value.snapshots[-1].step) if base.value.snapshots else {}
        places = {name: (stored.path.name, stored.name) for name, stored in before.items() if name in specs}
        possible = [*places.items()]
        for name, first in tied.items():
            possible += [(name, (file, first)), (name, places.get(first, (file, first)))]
        items = _items(file, places, tensors, tied)
        with durable.writing(f"the snapshot of step {step} in {self.path}"):
            listed = self._generations.listed()  # first: a run folder that was moved must not be created again
            durable.make_subfolder(self._files)  # rejects a link that has replaced the folder
            self._generations.sweep(listed)  # files of a failed commit may fill the disk
            digest = tensorfile.stream(self._files / file, specs, items, About(run, "snapshot", step), possible)
            self._known[file] = tensorfile.header(self._files / file)
            committed = Manifest((*base.value.snapshots, Record(file, digest, step, partial)))
            content = committed.encode(run)
            self._generations.commit(content, _names(committed))
        self._written = Sealed(committed, run, content)

    def rewind(self, step: int) -> None:
        """Discard the snapshots after `step`; the next commit removes their files. The others are checked."""
        before = self._writable()
        if (kept := before.value.upto(step)) != before.value:
            self._written = Sealed(kept, before.run, kept.encode(str(before.run)))
            self._generations.rest_on(self._written.content, _names(kept))
        for one in self.steps:
            self.entries(one)

    def _open(self) -> None:
        path = self.path / "manifest.json"
        with durable.writing(f"store {self.path}"):
            durable.make_folder(self.path)
            durable.make_subfolder(self._files)
            self._lock = WriterLock(self.path / "writer.lock")
            if not durable.exists(path):
                self._require_untouched()
                durable.publish(path, [Manifest().encode(uuid.uuid4().hex)])
        self._written = found = manifest.read(self.path)
        self._generations.guard(self._lock, found.content, _names(found.value))
        self._generations.rest_on(found.content, _names(found.value))

    def _require_untouched(self) -> None:
        """Reject a folder whose manifest was lost: with an empty one, the next commit would remove its snapshots."""
        previous = self._generations.previous
        named = previous is not None and durable.exists(previous)
        if named or any(self._generations.owns(path.name) for path in durable.listed(self._files)):
            remedy = "copy manifest.previous.json to manifest.json" if named else "restore it"
            raise DamagedError(
                f"{self.path} contains snapshots, but manifest.json is missing: {remedy}, or choose another folder"
            )

    @property
    def _manifest(self) -> Sealed[Manifest]:
        return self._written or manifest.read(self.path)

    def _writable(self) -> Sealed[Manifest]:
        if self._written is None:
            raise StoreError(
                f"{self.path} is open for reading only: let a SnapshotEnsembler write to it, or call open_to_write()"
            )
        return self._written

    def _file(self, record: Record) -> tuple[dict[str, Stored], dict[str, Place]]:
        if record.file not in self._known:
            path = self._files / record.file
            durable.check(path, record.digest, "the manifest")
            self._known[record.file] = tensorfile.header(path, About(self.run, "snapshot", record.step))
        return self._known[record.file]


def _names(found: Manifest) -> set[str]:
    return {record.file for record in found.snapshots}


def _items(
    file: str, places: Mapping[str, Place], tensors: Iterable[tuple[str, Tensor | Entry]], tied: Mapping[str, str]
) -> Iterator[tuple[str, Tensor | Place]]:
    """The tensors that a snapshot's file contains, and the places of the others."""
    stored = {}
    for name, item in tensors:
        if isinstance(item, Tensor):
            stored[name] = file, name
            yield name, item
            del item  # it is not kept in memory while the next tensor is prepared
        else:
            stored[name] = places[name]
            yield name, places[name]
    for name, first in tied.items():
        yield name, stored[first]
