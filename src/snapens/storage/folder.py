"""Snapshots in a folder: one file each, and a manifest that is the only word on which of them exist."""

import logging
import re
import secrets
import uuid
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..errors import DamagedError, StoreError
from . import durable, tensorfile
from .manifest import Manifest, Record
from .tensorfile import Stored

log = logging.getLogger("snapens")

_NAME = re.compile(r"step-\d{9,}-[0-9a-f]{12}\.safetensors")


class Folder:
    """`manifest.json` and `snapshots/` inside a run folder; opening one to read creates nothing.

    A commit writes the snapshot's file, sets the manifest aside, replaces it, and only then removes
    what no manifest names: whatever interrupts it, one manifest stands and all that it names is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = path / "snapshots"
        self._lock: durable.WriterLock | None = None
        self._written: Manifest | None = None  # a writer's own; readers look at the disk each time
        self._known: dict[str, dict[str, Stored]] = {}  # files whose digest was checked, or written here

    def open_to_write(self, resume: bool) -> None:
        """Become the folder's one writer; a folder that holds snapshots only on `resume`."""
        manifest, closed = self.path / "manifest.json", self._lock is None
        try:
            if closed:
                self._files.mkdir(parents=True, exist_ok=True)
                self._lock = durable.WriterLock(self.path / "writer.lock")
                if not manifest.exists():
                    self._require_untouched()
                    durable.publish(manifest, [Manifest(uuid.uuid4().hex).dumps()])
                self._written = Manifest.read(manifest)
            if self.steps and not resume:
                raise StoreError(
                    f"store must be a folder without snapshots, got {self.path}, which holds those of steps "
                    f"{', '.join(map(str, self.steps))}: choose another, or resume=True to go on with that run"
                )
        except BaseException as error:
            if closed:
                self.close()
            if isinstance(error, OSError):
                reason = f"store must be a folder that can be written, got {self.path} ({error}): choose another"
                raise StoreError(reason) from error
            raise

    def close(self) -> None:
        """Let another writer have the folder; reading goes on."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._written = None

    @property
    def run(self) -> str:
        """The identity of the run that the folder belongs to."""
        return self._manifest.run

    @property
    def steps(self) -> dict[int, str]:
        """The committed snapshots, ascending: step -> a name that no other snapshot of the run has had."""
        return {record.step: record.file for record in self._manifest.snapshots}

    def entries(self, step: int) -> dict[str, Stored]:
        """Where each tensor of a snapshot lies; the first look at a file checks its digest."""
        manifest = self._manifest
        record = {record.step: record for record in manifest.snapshots}[step]
        found = dict(self._file(manifest, record.file))
        for name, (file, key) in record.shared.items():
            held = self._file(manifest, file)
            if key not in held:
                raise DamagedError(
                    f"{self.path}: step {step} needs {key!r}, which {file} does not hold: restore the folder"
                )
            found[name] = held[key]
        return found

    def append(
        self, step: int, own: Mapping[str, Tensor], shared: Mapping[str, Stored], tied: Mapping[str, str]
    ) -> None:
        """Commit a snapshot: tensors of its own, tensors that lie in earlier files, names tied to other names."""
        base, lock = self._writable()
        file = f"step-{step:09d}-{secrets.token_hex(6)}.safetensors"  # never used before in this folder
        elsewhere = {name: (stored.path.name, stored.name) for name, stored in shared.items()}
        elsewhere |= {name: elsewhere.get(first, (file, first)) for name, first in tied.items()}
        try:
            lock.ensure()
            self._sweep(Manifest.read(self.path / "manifest.json"))  # what a failed commit left may fill the disk
            digest = durable.publish(self._files / file, tensorfile.encode(own))
            self._known[file] = tensorfile.entries(self._files / file)
            committed = base.adding(Record(step, file, elsewhere), digest)
            durable.publish(self.path / "manifest.previous.json", [base.dumps()])
            durable.publish(self.path / "manifest.json", [committed.dumps()])
        except OSError as error:
            raise StoreError(
                f"the snapshot of step {step} could not be written to {self.path} ({error}); "
                "the earlier ones are intact: make room or repair the folder, then call again"
            ) from error
        self._written = committed
        self._sweep(committed)

    def rewind(self, step: int) -> None:
        """Forget the snapshots after `step`; their files go with the next commit. Those that stay are checked."""
        self._written = self._writable()[0].upto(step)
        for kept in self.steps:
            self.entries(kept)

    def _require_untouched(self) -> None:
        """A manifest that was lost is not to be begun anew: the next commit would remove what it named."""
        previous = self.path / "manifest.previous.json"
        if previous.exists() or any(_NAME.fullmatch(path.name) for path in self._files.iterdir()):
            remedy = f"copy {previous.name}, the one before, to it" if previous.exists() else "restore it"
            raise DamagedError(
                f"{self.path} must hold manifest.json beside the snapshots that are there, got none: {remedy}, "
                "or choose another folder"
            )

    @property
    def _manifest(self) -> Manifest:
        return self._written or Manifest.read(self.path / "manifest.json")

    def _writable(self) -> tuple[Manifest, durable.WriterLock]:
        if self._written is None or self._lock is None:
            raise StoreError(
                f"{self.path} is open to read only: let a SnapshotEnsembler write to it, or call open_to_write()"
            )
        return self._written, self._lock

    def _file(self, manifest: Manifest, name: str) -> dict[str, Stored]:
        if name not in self._known:
            path = self._files / name
            try:
                found = durable.digest(path)
            except OSError as error:
                raise DamagedError(
                    f"{path} is in the manifest but cannot be read ({error}): restore the file"
                ) from error
            if found != manifest.files[name]:
                what = "truncated or altered" if found.bytes != manifest.files[name].bytes else "altered"
                raise DamagedError(f"{path} must have the SHA-256 in the manifest, but it was {what}: restore the file")
            self._known[name] = tensorfile.entries(path)
        return self._known[name]

    def _sweep(self, manifest: Manifest) -> None:
        try:
            for path in self._files.iterdir():
                if path.name not in manifest.files and _NAME.match(path.name):
                    path.unlink()
        except OSError as error:  # the commit stands; what is left over only takes room, until the next one
            log.warning("files in %s that are no longer needed could not be removed: %s", self._files, error)
