"""The ledger: our measured values for the paper's cells, one small JSON file for each run or set of runs."""

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

if TYPE_CHECKING:  # reading the ledger does not wait for torch
    from ..records.run import Run

Entries = Mapping[str, Entry | Joint]

_FORMAT = 1
_KINDS: dict[str, type[Entry] | type[Joint]] = {"run": Entry, "runs together": Joint}


def record(run: "Run", folder: Path, commit: str, *, overwrite: bool = False) -> Path:
    """Keep what a finished run of the paper's measured; `commit` is that of the code which trained it, all of it.

    A result that is there already stays as it is, but for the lines between its snapshots, which may come later;
    another result of the same name, or of another commit, is refused unless `overwrite`. A new result removes the
    numbers that an earlier one had a part in together with other runs: they are no longer true.
    """
    entry = Entry.of_run(run, commit)
    if is_of_commit(run, commit) is False:
        raise MismatchError(
            f"commit must be that of the code which trained {run.path}, but {commit} is of other code: "
            "give another one, or commit that code first"
        )
    path = folder / f"{entry.name}.json"
    before = _read(path)
    if isinstance(before, Entry) and before.between is None and replace(before, between=entry.between) == entry:
        return _keep(entry, folder, overwrite=True)
    kept = _keep(entry, folder, overwrite)
    if before is None or overwrite:
        for cell in paper.cells():
            if cell.seeds > 1 and cell.recipe == entry.seedless:
                name = joint_name(cell, entry.recipe.seed // cell.seeds)
                (folder / f"{name}.json").unlink(missing_ok=True)
    return kept


def record_together(runs: Sequence["Run"], folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Keep the number of every cell of several seeds whose runs are all among these, and in the ledger."""
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
    """Whether a run was trained by the code of a commit, and no other; None where its log or git does not tell."""
    trained_by = set(str((run.last_words or {}).get("sources", "")).split())
    there = source.digest_at(commit) if trained_by else None
    return None if there is None else trained_by == {there}


def entries(folder: Path) -> dict[str, Entry | Joint]:
    """All that is in the ledger, by name; nothing where there is no such folder."""
    found = {path.stem: entry for path in _files(folder) if (entry := _read(path))}
    stale = [f"{name}.json" for name, entry in found.items() if isinstance(entry, Joint) and not _is_of(entry, found)]
    if stale:
        raise DamagedError(
            f"{folder} must hold the runs of its numbers of several runs as they were, but not those of "
            f"{', '.join(stale)}: remove these, and record their runs again, together"
        )
    return found


def runs_of(cell: paper.Cell, entries: Entries) -> list[Entry]:
    """The runs of a cell's recipe, whatever their seed, by seed."""
    runs = [entry for entry in entries.values() if isinstance(entry, Entry)]
    return sorted((run for run in runs if run.seedless == cell.recipe), key=lambda run: run.recipe.seed)


def measured(cell: paper.Cell, entries: Entries) -> list[float]:
    """Our errors for a cell, in percent, one for each repetition."""
    if cell.seeds == 1:
        return [entry.percent(cell) for entry in runs_of(cell, entries)]
    return [joint.error_percent for joint in _joints_of(cell, entries)]


def origins(cell: paper.Cell, entries: Entries) -> list[Origin]:
    """What a cell's numbers were made with, one for each run."""
    if cell.seeds == 1:
        return [entry.origin for entry in runs_of(cell, entries)]
    return [origin for joint in _joints_of(cell, entries) for origin in joint.origins]


def _joints_of(cell: paper.Cell, entries: Entries) -> list[Joint]:
    found = [entry for entry in entries.values() if isinstance(entry, Joint) and entry.cell == cell.name]
    return sorted(found, key=lambda joint: joint.repetition)


def _is_of(joint: Joint, entries: Entries) -> bool:
    """Whether its runs are the ones that the entries are about."""
    runs = [entry for name in joint.runs if isinstance(entry := entries.get(name), Entry)]
    seconds = round(sum(run.seconds for run in runs), 3)
    return (tuple(run.origin for run in runs), seconds) == (joint.origins, joint.seconds)


def _keep(entry: Entry | Joint, folder: Path, overwrite: bool) -> Path:
    path = folder / f"{entry.name}.json"
    if not overwrite and (before := _read(path)):
        old, new = asdict(before), asdict(entry)
        if differing := sorted(name for name in {**old, **new} if old.get(name) != new.get(name)):
            raise StoreError(
                f"{path} must not change, but {entry.name} now has other {', '.join(differing)}: "
                "remove the file, or ask for it to be overwritten (--overwrite)"
            )
        return path
    kind = next(kind for kind, form in _KINDS.items() if isinstance(entry, form))
    return durable.write(path, jsonfile.dumps({"format": _FORMAT, "kind": kind, **asdict(entry)}))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{folder} could not be read ({error}): check who may read it") from error


def _read(path: Path) -> Entry | Joint | None:
    """What a file holds; None where there is none."""
    try:
        content = jsonfile.read(path)
        version = content.pop("format", None) if isinstance(content, dict) else None
        if type(version) is int and version > _FORMAT:
            raise ArgumentError(f"format {version}, of which this snapens knows only {_FORMAT}: take a newer one")
        if type(version) is not int or version != _FORMAT:
            raise ArgumentError(f"format {version!r} instead of {_FORMAT}")
        kind = content.pop("kind", None)
        if kind not in tuple(_KINDS):  # it may be anything
            raise ArgumentError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
        entry: Entry | Joint = decoded(_KINDS[kind], content, "entry")
        if entry.name != path.stem:
            raise ArgumentError(f"the name must be that of its content, {entry.name}")
        return entry
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path} could not be read ({error}): check who may read it") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path} must be an entry of the ledger, got {error}: restore or remove it") from error
