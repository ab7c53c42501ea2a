"""The ledger: our measured values for the paper's cells, one small JSON file for each run or set of runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from ..errors import ArgumentError, DamagedError, StoreError
from ..storage import durable, jsonfile
from . import paper
from .entry import Entry, Joint, Origin, joint_name
from .recipe import Recipe

if TYPE_CHECKING:  # reading the ledger does not wait for torch
    from .runs import Run

Entries = Mapping[str, Entry | Joint]

_FORMAT = 1
_KINDS: dict[str, type[Entry] | type[Joint]] = {"run": Entry, "runs together": Joint}


def record(run: "Run", folder: Path, commit: str, *, overwrite: bool = False) -> Path:
    """Keep what a finished run of the paper's measured; `commit` is that of the code which trained it.

    A result that is there already stays as it is; another result of the same name is refused unless `overwrite`,
    which also removes the numbers that the run had a part in together with others: they are no longer true.
    """
    entry = Entry.of_run(run, commit)
    for cell in paper.cells():
        if overwrite and cell.seeds > 1 and cell.recipe == entry.seedless:
            name = joint_name(cell, entry.recipe.seed // cell.seeds)
            (folder / f"{name}.json").unlink(missing_ok=True)
    return _keep(entry, folder, overwrite)


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


def entries(folder: Path) -> dict[str, Entry | Joint]:
    """All that is in the ledger, by name; nothing where there is no such folder."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}


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


def _keep(entry: Entry | Joint, folder: Path, overwrite: bool) -> Path:
    path = folder / f"{entry.name}.json"
    if path.exists() and not overwrite:
        if differing := _differences(_read(path), entry):
            raise StoreError(
                f"{path} must not change, but {entry.name} now has other {', '.join(differing)}: "
                "remove the file, or say that it is to be overwritten"
            )
        return path
    kind = next(kind for kind, form in _KINDS.items() if isinstance(entry, form))
    content = jsonfile.dumps({"format": _FORMAT, "kind": kind, **asdict(entry)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        durable.publish(path, [content])
    except OSError as error:
        raise StoreError(f"{path} could not be written ({error}): make room, or check who may write there") from error
    return path


def _differences(before: Entry | Joint, after: Entry | Joint) -> list[str]:
    """The fields in which two results differ; the commit is the caller's word for the same result."""
    old, new = _without_commits(asdict(before)), _without_commits(asdict(after))
    return sorted(name for name in {**old, **new} if old.get(name) != new.get(name))


def _without_commits(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_commits(value) for name, value in content.items() if name != "commit"}
    return [_without_commits(value) for value in content] if isinstance(content, list | tuple) else content


def _read(path: Path) -> Entry | Joint:
    try:
        content = jsonfile.read(path)
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ArgumentError(f"format must be {_FORMAT}: a newer snapens may read the file")
        kind = content.pop("kind", None)
        if kind not in tuple(_KINDS):  # it may be anything
            raise ArgumentError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
        entry: Entry | Joint = _decoded(_KINDS[kind], content, "entry")
        if entry.name != path.stem:
            raise ArgumentError(f"the name must be that of its content, {entry.name}")
        return entry
    except OSError as error:
        raise StoreError(f"{path} could not be read ({error}): check who may read it") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path} must be an entry of the ledger, got {error}: restore or remove it") from error


def _decoded(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as what a dataclass has it for, each of exactly its own type."""
    if kind is Recipe:
        return Recipe.of(value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ArgumentError(f"{where} must be an object of {', '.join(hints)}")
        return kind(**{name: _decoded(hint, value[name], name) for name, hint in hints.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_decoded(get_args(kind)[0], item, where) for item in value)
    if get_origin(kind) is UnionType:
        return None if value is None else _decoded(get_args(kind)[0], value, where)
    if kind is float and type(value) in (int, float) and math.isfinite(value):  # 1e999 is JSON
        return float(value)
    if kind is not float and type(value) is kind:
        return value
    raise ArgumentError(f"{where} must be {getattr(kind, '__name__', kind)}, got {str(value)[:80]!r}")
