"""The differences of the ledger: the test error of one predictor minus that of another, with a paired standard error.

A standard error needs the outputs of both runs, which are not in the ledger. So it is recorded while they exist. A
predictor is the name of a run and the members that it uses: `wrn32-cifar100-single-seed0 last`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...errors import ArgumentError, DamagedError
from ...quality import Difference
from ...storage import durable, jsonfile
from ...storage.typed import decoded
from . import cells as paper
from .entry import Entry
from .ledger import DIFFERENCES, Entries, entries

if TYPE_CHECKING:  # reading the ledger does not import torch
    from ..records.run import Run

_FORMAT = 1
_MINUS = " minus "
_MEMBERS = {"last": 0, "ensemble": -1}  # the last snapshot alone, all snapshots: indices of Entry.last_percent


@dataclass(frozen=True)
class Paired:
    """A difference of two test errors in percentage points, and its paired standard error over the test images."""

    points: float
    standard_error: float
    source: Literal["outputs", "entered by hand"] = "outputs"
    """Computed by `record`, or copied with two decimals from a report: the outputs no longer exist."""

    def __neg__(self) -> "Paired":
        return replace(self, points=-self.points)


Differences = Mapping[str, Paired]
"""By `predictor minus predictor`, each pair once."""


def record(runs: Sequence["Run"], folder: Path, *, overwrite: bool = False) -> Path:
    """Store the differences of all predictors of some runs of the ledger that were tested on the same images.

    Stored differences stay if they match the ledger; with `overwrite` those of these runs are replaced.
    """
    path, known = folder / DIFFERENCES, entries(folder)
    names = {paper.run_name(run.recipe) for run in runs}
    kept = {
        pair: found
        for pair, found in _read(path).items()
        if _matches(pair, found, known) and not (overwrite and names & {one.split()[0] for one in pair.split(_MINUS)})
    }
    kept |= dict(_computed(runs))
    content = {pair: asdict(found) for pair, found in sorted(kept.items())}
    return durable.write(path, jsonfile.lines({"format": _FORMAT, **content}))


def read(folder: Path) -> Differences:
    """The differences of a ledger; each must match the errors of its two runs."""
    path, known = folder / DIFFERENCES, entries(folder)
    found = _read(path)
    if stale := [pair for pair, one in found.items() if not _matches(pair, one, known)]:
        raise DamagedError(
            f"{path} must match the entries of its runs, but {stale[0]} does not: "
            "record these two runs again in one call of `snapens paper record`"
        )
    return found


def between(predictor: str, other: str, differences: Differences) -> Paired | None:
    """The difference of two predictors, whichever of them comes first in the file; None if it was not recorded."""
    if found := differences.get(f"{predictor}{_MINUS}{other}"):
        return found
    reverse = differences.get(f"{other}{_MINUS}{predictor}")
    return None if reverse is None else -reverse


def _computed(runs: Sequence["Run"]) -> Iterator[tuple[str, Paired]]:
    from ..records.runs import same_data

    found = []
    for run in sorted(runs, key=lambda one: paper.run_name(one.recipe)):  # so that each pair has one name
        outputs = run.outputs()
        wrong = outputs.quality.last.wrong
        for name, k in _MEMBERS.items() if len(wrong) > 1 else [("last", 0)]:
            found.append((f"{paper.run_name(run.recipe)} {name}", run, outputs.labels, wrong[k].copy()))
    for (name, run, labels, wrong), (other, other_run, other_labels, other_wrong) in combinations(found, 2):
        if same_data(run, other_run) and np.array_equal(labels, other_labels):
            difference = Difference.of(wrong, other_wrong)
            points, error = (round(100 * value, 4) for value in (difference.value, difference.standard_error))
            yield f"{name}{_MINUS}{other}", Paired(points, error)


def _matches(pair: str, found: Paired, known: Entries) -> bool:
    """Whether a difference is that of the errors in the entries of its runs."""
    errors = []
    for predictor in pair.split(_MINUS):
        name, _, members = predictor.partition(" ")
        entry = known.get(name)
        if not isinstance(entry, Entry) or members not in _MEMBERS:
            return False
        errors.append(entry.last_percent[_MEMBERS[members]])
    return len(errors) == 2 and abs(errors[0] - errors[1] - found.points) < 1e-3


def _read(path: Path) -> dict[str, Paired]:
    """The differences in a file; none if there is no file."""
    try:
        content = jsonfile.read(path)
        version = content.pop("format", None) if isinstance(content, dict) else None
        if type(version) is not int or version != _FORMAT:
            raise ArgumentError(f"format {version!r} instead of {_FORMAT}")
        found: dict[str, Paired] = decoded(dict[str, Paired], content, "differences")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise DamagedError(f"{path} must hold differences of the ledger, got {error}: restore or remove it") from error
