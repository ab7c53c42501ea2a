"""Several runs: found in a folder, and compared by their data."""

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import MismatchError
from ...storage import durable, parts
from .run import Run, runs_below

log = logging.getLogger("snapens")


def runs_in(path: Path) -> list[Run]:
    """The run in a folder; if there is none, the runs in its sub-folders that have outputs, by name."""
    run = Run(path)
    if run.exists or run.is_own_loop or path.is_file():
        return [run]
    below = runs_below(path)
    names = ("outputs", parts.FORMAT_1)
    with_outputs = [found for found in below if any(durable.exists(found.path / name) for name in names)]
    for without in set(below) - set(with_outputs) if with_outputs else ():
        log.warning("%s is skipped: it has no outputs of snapshots yet", without.path)
    return with_outputs or below or [run]


def same_data(run: Run, other: Run) -> bool:
    """Whether two runs have the same classes and the same test images, as far as both describe them."""
    data, other_data = ({} if one.is_own_loop else one.data for one in (run, other))
    described = [(one.get("classes"), one.get("images", {}).get("test")) for one in (data, other_data)]
    return all(mine == theirs for mine, theirs in zip(*described, strict=True) if mine and theirs)


def require_same_test(run: Run, labels: NDArray[np.int64], other: Run, other_labels: NDArray[np.int64]) -> None:
    """Check that two runs, given with their test labels, were tested on the same images in the same order."""
    # equal labels do not imply equal images: folders sorted by class often have equal labels
    if not same_data(run, other) or not np.array_equal(labels, other_labels):
        raise MismatchError(
            f"runs must have been tested on the same images in the same order, but those of {run.path} and "
            f"{other.path} differ: choose runs of one data set"
        )
