"""The outputs of one part of the data in a run folder: one file per member, one for the labels, and `PART.json`."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ArgumentError, DamagedError, LockedError, MismatchError, StoreError
from . import durable, manifest, sealed, tensorfile
from .generations import Generations
from .lock import WriterLock
from .manifest import FileRecord
from .tensorfile import About, Spec, Stored

Member = tuple[str, NDArray[np.float16]]
"""The name of a snapshot, and log-probabilities (examples, classes)."""

FORMAT_1 = "outputs.safetensors"
_LOCK_SECONDS = 60.0  # it is held for a moment
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class MemberRecord(FileRecord):
    """One member: its step, its snapshot, and the file with its log-probabilities."""

    step: int
    snapshot: str


@dataclass(frozen=True)
class Index:
    """The content of `PART.json`."""

    examples: int
    classes: int
    labels: FileRecord
    members: tuple[MemberRecord, ...] = ()


class PartFolder:
    """The outputs of one part in a run folder, at one moment: create a new object for each operation."""

    def __init__(self, folder: Path, part: str) -> None:
        if not _NAME.fullmatch(part):
            raise ArgumentError(f"part must be a plain name such as 'test' or 'held_out', got {part!r}")
        self.folder, self.part, self.path = folder, part, folder / "outputs" / f"{part}.json"
        self._manifest = manifest.read(folder)
        self.run = str(self._manifest.run)
        self.snapshots = {record.step: record.file for record in self._manifest.value.snapshots}
        """The members: step -> name of the snapshot."""

    @property
    def exists(self) -> bool:
        """Whether anything was saved for this part."""
        return self._index is not None or self.is_format_1

    @property
    def is_format_1(self) -> bool:
        """Whether the outputs are those in the file of format 1."""
        return self._index is None and f"{self.part}_labels" in self._format_1

    @property
    def version(self) -> tuple[bytes, bytes]:
        """What was read from the JSON files; another version on disk means that a writer replaced files."""
        return self._manifest.content, self._content or b""

    def labels(self) -> Stored:
        """The stored labels."""
        if (index := self._index) is None:
            return self._format_1[f"{self.part}_labels"]
        return self._checked(index.labels, None, "labels", Spec(torch.int64, (index.examples,)))

    def member(self, step: int) -> Stored:
        """The stored log-probabilities (examples, classes) of a member; their file is checked."""
        index, snapshot = self._index, self.snapshots.get(step)
        record = next((one for one in index.members if one.snapshot == snapshot), None) if index else None
        if index and record:
            spec = Spec(torch.float16, (index.examples, index.classes))
            return self._checked(record, record.step, "log_probabilities", spec)
        if self.is_format_1 and step in self._steps_1 and (rows := self._format_1.get(self.part)):
            if rows.dtype != torch.float16 or rows.shape[:-2] != (len(self._steps_1),) or 0 in rows.shape:
                raise DamagedError(
                    f"{rows.path} must hold float16 (members, examples, classes) of {self.part!r}: restore it"
                )
            spec = Spec(rows.dtype, rows.shape[1:])
            return Stored(rows.path, rows.name, rows.offset + self._steps_1.index(step) * spec.nbytes, *spec)
        raise DamagedError(
            f"{self.path.parent} must hold the outputs of every member for the part {self.part!r}, but those of step "
            f"{step} are missing: save the outputs of all members again, or resume the run"
        )

    def put(self, members: Mapping[int, Member], labels: NDArray[np.int64], lock: WriterLock, *, replace: bool) -> None:
        """Write members, and drop all others if `replace`, or else those whose snapshot no longer exists."""
        files = Generations(self.path, self.path.parent, rf"{self.part}-(labels|step-\d{{9,}})", previous=False)
        files.guard(lock, self.version[1])
        index = None if replace else self._index
        alive = set(self.snapshots.values()) - {snapshot for snapshot, _ in members.values()}
        records = [record for record in (index.members if index else ()) if record.snapshot in alive]
        classes = next(iter(members.values()))[1].shape[-1]
        if index and records and (classes != index.classes or not np.array_equal(labels, self.labels().read())):
            raise MismatchError(
                f"labels and classes must be those of the outputs of {self.part!r} in {self.folder}, got others: "
                "choose another part, or save all members again"
            )
        held = index.labels if index and records else self._written(files, "labels", labels, None)
        for step, (snapshot, rows) in members.items():
            file = self._written(files, f"step-{step:09d}", rows, step)
            records.append(MemberRecord(file.file, file.digest, step, snapshot))
        records.sort(key=lambda record: record.step)
        content = asdict(Index(len(labels), classes, held, tuple(records)))
        files.commit(sealed.encode("outputs", self.run, content), {held.file, *(record.file for record in records)})

    @cached_property
    def _content(self) -> bytes | None:
        return durable.find(self.path)

    @cached_property
    def _index(self) -> Index | None:
        if self._content is None:
            return None
        return sealed.decode(self.path, self._content, "outputs", Index, run=self._manifest.run).value

    @cached_property
    def _format_1(self) -> dict[str, Stored]:
        path = self.folder / FORMAT_1
        return tensorfile.header(path)[0] if durable.exists(path) else {}

    @cached_property
    def _steps_1(self) -> list[int]:
        steps: list[int] = self._format_1["steps"].read().tolist() if "steps" in self._format_1 else []
        return steps

    def _written(self, files: Generations, name: str, array: NDArray[np.generic], step: int | None) -> FileRecord:
        path = files.file(f"{self.part}-{name}")
        kind = "labels" if step is None else "log_probabilities"
        tensors = {kind: torch.from_numpy(np.ascontiguousarray(array))}
        return FileRecord(path.name, tensorfile.save(path, tensors, About(self.run, kind, step)))

    def _checked(self, record: FileRecord, step: int | None, kind: str, spec: Spec) -> Stored:
        path = self.path.parent / record.file
        durable.check(path, record.digest, self.path.name)
        found = tensorfile.header(path, About(self.run, kind, step))[0].get(kind)
        if found is None or Spec(found.dtype, found.shape) != spec:
            raise DamagedError(f"{path} must hold {kind} of shape {spec.shape}: restore the file")
        return found


def names(folder: Path) -> list[str]:
    """The parts with outputs in a run folder."""
    found = {path.stem for path in durable.listed(folder / "outputs") if path.suffix == ".json"}
    if durable.exists(folder / FORMAT_1):
        of_format_1 = tensorfile.header(folder / FORMAT_1)[0]
        found |= {name.removesuffix("_labels") for name in of_format_1 if name.endswith("_labels")}
    return sorted(found)


def load(folder: Path, part: str) -> tuple[tuple[tuple[str, int], ...], NDArray[np.float16], NDArray[np.int64]]:
    """The (run, step) of all members, their log-probabilities (members, examples, classes), and the labels."""
    while True:
        files = PartFolder(folder, part)
        try:
            if not files.exists:
                # a combination must not be fitted on test examples
                choices = [name for name in names(folder) if (part, name) != ("held_out", "test")]
                raise no_outputs(folder, part, choices)
            if not files.snapshots:
                raise StoreError(f"{folder} contains no snapshot yet: wait for the first minimum")
            rows = [files.member(step) for step in files.snapshots]
            found = np.empty((len(rows), *rows[0].shape), np.float16)
            for row, stored in zip(found, rows, strict=True):
                stored.read_into(row.data.cast("B"))
            return tuple((files.run, step) for step in files.snapshots), found, files.labels().read().numpy()
        except DamagedError:
            if PartFolder(folder, part).version == files.version:
                raise  # otherwise a writer replaced the files in the meantime: read them again


def no_outputs(folder: Path, part: str, choices: Sequence[str], remedy: str | None = None) -> StoreError:
    """The error for a part without outputs. `choices` are parts to use instead, and `remedy` replaces saving them."""
    found = names(folder)
    others = f", only of {', '.join(found)}" if found else ""
    choose = f"choose {' or '.join(choices)}" if choices else None
    remedies = ", or ".join(filter(None, (choose, remedy or how_to_save(folder, part))))
    return StoreError(f"{folder} contains no outputs of the part {part!r}{others}: {remedies}")


def how_to_save(folder: Path, part: str) -> str:
    """The remedy for missing outputs, with a line of Python to copy."""
    path = str(folder)
    return f"save them with Ensemble.load({path!r}, model).outputs(loader).save({path!r}, part={part!r})"


def save(folder: Path, part: str, members: Mapping[int, Member], labels: NDArray[np.int64], *, replace: bool) -> None:
    """Write members of a part; only one writer at a time does so, and others wait for it."""
    with durable.writing(f"the outputs of the part {part!r} in {folder}"):
        durable.make_subfolder(folder / "outputs")
        lock = _lock(folder / "outputs" / "writer.lock")
        try:
            PartFolder(folder, part).put(members, labels, lock, replace=replace)
        finally:
            lock.release()


def _lock(path: Path) -> WriterLock:
    begun = time.monotonic()
    while True:
        try:
            return WriterLock(path)
        except LockedError:
            if time.monotonic() - begun > _LOCK_SECONDS:
                raise
            time.sleep(0.01)
