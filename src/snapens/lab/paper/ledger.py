"""The ledger: the measurements of finished runs, one JSON file per run, and one per set of runs that a cell averages.

Every recipe has its own entry name; the cells of the paper are the recipes that have a published value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ArgumentError, DamagedError, MismatchError, StoreError
from ...storage import durable, jsonfile
from ...storage.typed import decoded
from ..records import source
from . import cells as paper
from .entry import Entry, Joint, Origin, joint_name

if TYPE_CHECKING:  # reading the ledger does not import torch
    from ..records.run import Run

Entries = Mapping[str, Entry | Joint]

DIFFERENCES = "differences.json"
"""The one file of a ledger that is no entry."""

_FORMAT = 2  # 1 had flat recipes
_KINDS: dict[str, type[Entry] | type[Joint]] = {"run": Entry, "runs together": Joint}


def record(run: "Run", folder: Path, commit: str, *, overwrite: bool = False) -> Path:
    """Store the measurements of a finished run of any recipe; `commit` is the commit of the code that trained it.

    An entry that exists is not changed, except that the lines between snapshots may be added later. A different
    result, or another commit, under the same name is rejected unless `overwrite`. A new result removes the joint
    numbers of several runs that used the old one, because they are no longer valid; if that was interrupted,
    recording the run again completes it.
    """
    entry = Entry.of_run(run, commit)
    if is_of_commit(run, commit) is False:
        raise MismatchError(
            f"commit must be that of the code that trained {run.path}, got {commit}, which has different code: "
            "give the right commit, or commit that code first"
        )
    path = folder / f"{entry.name}.json"
    before = _read(path)
    adds_lines = (
        isinstance(before, Entry) and before.between is None and replace(before, between=entry.between) == entry
    )
    kept = _keep(entry, folder, overwrite or adds_lines)
    _remove_outdated(entry, folder, every=before is None or (overwrite and not adds_lines))
    return kept


def record_together(runs: Sequence["Run"], folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Store the number of every cell of several seeds whose runs are all given and all in the ledger."""
    there, known = {paper.run_name(run.recipe): run for run in runs}, entries(folder)
    kept = []
    for cell in (cell for cell in paper.cells() if cell.seeds > 1):
        for repetition in sorted({run.recipe.seed // cell.seeds for run in runs}):
            names = paper.run_names(cell, repetition)
            found = [entry for name in names if isinstance(entry := known.get(name), Entry)]
            if len(found) == cell.seeds and all(name in there for name in names):
                joint = Joint.of_entries(cell, repetition, found, [there[name] for name in names])
                kept.append(_keep(joint, folder, overwrite))
    return kept


def is_of_commit(run: "Run", commit: str) -> bool | None:
    """Whether a run was trained only by the code of a commit; None if its log or git cannot tell."""
    from ..records.trace import Trace

    trained_by = set((Trace.of(run).sources or "").split())
    there = source.digest_at(commit) if trained_by else None
    return None if there is None else trained_by == {there}


def entries(folder: Path) -> dict[str, Entry | Joint]:
    """All entries of a ledger by name; none if the folder does not exist."""
    found = {path.stem: entry for path in _files(folder) if (entry := _read(path))}
    stale = [f"{name}.json" for name, entry in found.items() if isinstance(entry, Joint) and not _is_of(entry, found)]
    if stale:
        raise DamagedError(
            f"{folder} must hold all runs of each joint number, but the runs of "
            f"{', '.join(stale)} are missing or have changed: remove these files, and record their runs together again"
        )
    return found


def runs_of(cell: paper.Cell, entries: Entries) -> list[Entry]:
    """The runs of a cell's recipe with any seed, ordered by seed."""
    runs = [entry for entry in entries.values() if isinstance(entry, Entry)]
    return sorted((run for run in runs if run.seedless == cell.recipe), key=lambda run: run.recipe.seed)


def measured(cell: paper.Cell, entries: Entries) -> list[float]:
    """Our errors for a cell in percent, one per repetition."""
    if cell.seeds == 1:
        return [entry.percent(cell) for entry in runs_of(cell, entries)]
    return [joint.error_percent for joint in _joints_of(cell, entries)]


def origins(cell: paper.Cell, entries: Entries) -> list[Origin]:
    """The origins of a cell's numbers, one per run."""
    if cell.seeds == 1:
        return [entry.origin for entry in runs_of(cell, entries)]
    return [origin for joint in _joints_of(cell, entries) for origin in joint.origins]


def _joints_of(cell: paper.Cell, entries: Entries) -> list[Joint]:
    found = [entry for entry in entries.values() if isinstance(entry, Joint) and entry.cell == cell.name]
    return sorted(found, key=lambda joint: joint.repetition)


def _is_of(joint: Joint, entries: Entries) -> bool:
    """Whether it was computed from the current entries of its runs."""
    runs = [entry for name in joint.runs if isinstance(entry := entries.get(name), Entry)]
    seconds = round(sum(run.seconds for run in runs), 3)
    return (tuple(run.origin for run in runs), seconds) == (joint.origins, joint.seconds)


def _remove_outdated(entry: Entry, folder: Path, every: bool) -> None:
    """Remove the numbers of several runs that a run is part of: every one, or those of other runs than the ledger's."""
    for cell in paper.cells():
        if cell.seeds == 1 or cell.recipe != entry.seedless:
            continue
        path = folder / f"{joint_name(cell, entry.recipe.seed // cell.seeds)}.json"
        joint = None if every else _read(path)
        if isinstance(joint, Joint):
            runs = {name: run for name in joint.runs if (run := _read(folder / f"{name}.json"))}
            if _is_of(joint, runs):
                continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{path} could not be removed ({error}): remove it, and record its runs again") from error


def _keep(entry: Entry | Joint, folder: Path, overwrite: bool) -> Path:
    path = folder / f"{entry.name}.json"
    if not overwrite and (before := _read(path)):
        old, new = asdict(before), asdict(entry)
        if differing := sorted(name for name in {**old, **new} if old.get(name) != new.get(name)):
            raise StoreError(
                f"{path} must not change, but {entry.name} now differs in {', '.join(differing)}: "
                "remove the file, or overwrite it (--overwrite)"
            )
        return path
    kind = next(kind for kind, form in _KINDS.items() if isinstance(entry, form))
    content = {"format": _FORMAT, "kind": kind, **asdict(entry)}
    if isinstance(entry, Entry):
        content["recipe"] = entry.recipe.written()
    return durable.write(path, jsonfile.dumps(content))


def _files(folder: Path) -> list[Path]:
    return [path for path in durable.listed(folder) if path.suffix == ".json" and path.name != DIFFERENCES]


def _read(path: Path) -> Entry | Joint | None:
    """The entry in a file; None if there is no file."""
    try:
        content = jsonfile.read(path)
        version = content.pop("format", None) if isinstance(content, dict) else None
        if type(version) is int and version > _FORMAT:
            raise ArgumentError(f"format {version}, but this snapens reads up to {_FORMAT}: install a newer snapens")
        if type(version) is not int or version < 1:
            raise ArgumentError(f"format {version!r} instead of {_FORMAT}")
        kind = content.pop("kind", None)
        if kind not in tuple(_KINDS):  # any JSON value is possible
            raise ArgumentError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
        entry: Entry | Joint = decoded(_KINDS[kind], content, "entry")
        if entry.name != path.stem:
            raise ArgumentError(f"the file's name must be that of its content, {entry.name}")
        return entry
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamagedError(f"{path} must be an entry of the ledger, got {error}: restore or remove it") from error
