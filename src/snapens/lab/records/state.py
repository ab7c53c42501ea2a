"""The state of a run, which a training process needs to continue it."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import ArgumentError, DamagedError
from ...storage import durable, sealed, tensorfile
from ...storage.generations import Generations
from ...storage.manifest import FileRecord
from ...storage.tensorfile import About
from ...storage.typed import decoded

log = logging.getLogger("snapens")


@dataclass(frozen=True)
class State:
    """The tensors that a step changes, the number of completed steps, and other values that are needed to continue."""

    completed: int
    tensors: Mapping[str, Tensor]
    notes: dict[str, Any]


@dataclass(frozen=True)
class _Record(FileRecord):
    """The content of `state.json`."""

    completed: int
    notes: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file.startswith(f"step-{self.completed:09d}-"):
            raise ArgumentError(f"file must be one of step {self.completed}, got {self.file}")


class States:
    """`state/` in a run folder: the last two states."""

    def __init__(self, folder: Path) -> None:
        self._files = Generations(folder / "state.json", folder, r"step-\d{9,}")

    def save(self, run: str, state: State) -> None:
        """Save a state."""
        path = self._files.file(f"step-{state.completed:09d}")
        tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in state.tensors.items()}
        with durable.writing(path):
            durable.make_subfolder(path.parent)
            digest = tensorfile.save(path, tensors, About(run, "state", state.completed))
            content = asdict(_Record(path.name, digest, state.completed, state.notes))
            self._files.commit(sealed.encode("state", run, content), [path.name])

    def load(self, run: str | None, snapshots: Mapping[int, str]) -> State | None:
        """The last state, or the previous one if the last cannot be used; None before the first state.

        `snapshots` are those that exist, step -> name: a state that needs another one cannot be used.
        """
        found = [path for path in (self._files.path, self._files.previous) if path and durable.exists(path)]
        for path in found:
            try:
                return self._read(path, run, snapshots)
            except DamagedError as error:
                if path == found[-1]:
                    raise
                log.warning("%s; continuing from the previous state", error)
        return None

    def _read(self, path: Path, run: str | None, snapshots: Mapping[int, str]) -> State:
        found = sealed.decode(path, durable.contents(path), "state", _Record, run=run, format_1=_format_1)
        record, file = found.value, path.parent / found.value.file
        needed = record.notes.get("ensembler", {}).get("store", {}).get("snapshots", {})
        if lost := [step for step, name in needed.items() if snapshots.get(int(step)) != name]:
            raise DamagedError(
                f"{path} must belong to the snapshots in manifest.json, which lacks those of the steps "
                f"{', '.join(lost)}: restore manifest.json, or train the run again in another folder"
            )
        durable.check(file, record.digest, path.name)
        entries = tensorfile.header(file, About(str(run or found.run), "state", record.completed))[0]
        self._files.rest_on(found.content, [record.file])
        return State(record.completed, {name: entry.read() for name, entry in entries.items()}, record.notes)


def _format_1(content: dict[str, Any]) -> _Record:
    digest = {"sha256": content.pop("sha256"), "bytes": content.pop("bytes")}
    record: _Record = decoded(_Record, {**content, "digest": digest}, "state")
    return record
