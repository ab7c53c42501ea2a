"""The content of the ledger: an Entry has all measurements of one run, a Joint the error of several runs together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, DamagedError, StoreError
from ...quality import THRESHOLDS, Quality
from ..recipe.recipe import Recipe
from ..records.curves import Between, Series
from . import cells as paper

if TYPE_CHECKING:  # reading the ledger does not import torch
    from ..records.run import Run
    from ..records.trace import Trace

_MOST_POINTS = 300  # of a loss curve
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Origin:
    """The code, hardware and software that a number was measured with."""

    commit: str
    device: str
    torch: str
    snapens: str

    def __post_init__(self) -> None:
        for name, text in vars(self).items():
            if not (text.isascii() and text.isprintable() and 0 < len(text) <= _MOST_CHARACTERS):
                rule = f"be one line of at most {_MOST_CHARACTERS} printable ASCII characters"
                raise ArgumentError(f"{name} must {rule}, got {text[:_MOST_CHARACTERS]!r}")


@dataclass(frozen=True)
class Losses:
    """The training loss: the mean since the previous logged step, and the learning rate at each point."""

    epoch: Series
    lr: Series
    loss: Series

    @classmethod
    def from_trace(cls, trace: "Trace") -> "Losses":
        """At most 300 points, evenly spaced, with five digits."""
        count = len(trace.steps)
        chosen = np.linspace(0, count - 1, min(count, _MOST_POINTS)).round().astype(int)
        columns = (trace.epochs, trace.rates, trace.losses)
        return cls(*(tuple(float(f"{column[k]:.5g}") for k in chosen) for column in columns))


@dataclass(frozen=True)
class Exit:
    """Members are evaluated newest first, until their mean gives some class a probability of `threshold` or more."""

    threshold: float
    error_percent: float
    mean_members: float


@dataclass(frozen=True)
class Entry:
    """All measurements of one finished run; errors are in percent of the test images, snapshots oldest first."""

    recipe: Recipe
    origin: Origin
    seconds: float
    images_per_second: float
    pack: int | None
    """The number of runs that shared the device, including this one; seconds and images per second are per run."""
    test_images: int
    snapshot_epochs: Series
    snapshot_percent: Series
    """Each snapshot alone."""
    last_percent: Series
    """The last m together, m = 1 … M."""
    first_percent: Series
    """The first m together, as in the supplement."""
    last_nll: Series
    last_ece: Series
    correlation: tuple[Series, ...]
    disagreement: tuple[Series, ...]
    early_exit: tuple[Exit, ...]
    losses: Losses
    between: Between | None

    def __post_init__(self) -> None:
        m = self.recipe.method.cycles
        curves = (self.snapshot_epochs, self.snapshot_percent, self.last_percent, self.first_percent)
        matrices = (self.correlation, self.disagreement)
        series = (*curves, self.last_nll, self.last_ece, *matrices, *(row for matrix in matrices for row in matrix))
        if any(len(values) != m for values in series):
            raise ArgumentError(f"each series of an entry must have {m} numbers, one per snapshot")
        if len({len(values) for values in vars(self.losses).values()}) != 1:
            raise ArgumentError("losses must have equally many epochs, learning rates and losses")
        if self.between and any(line.snapshot >= m for line in self.between.lines):
            raise ArgumentError(f"a line must start at a snapshot before the last one, which is {m}")
        _, known = paper.IMAGES.get(self.recipe.dataset.name, (0, self.test_images))
        if self.test_images != known:
            raise ArgumentError(f"test_images must be {known:,} for {self.recipe.dataset.name}, got {self.test_images}")
        percentages = (*curves[1:], [found.error_percent for found in self.early_exit])
        if not all(0 <= value <= 100 for values in percentages for value in values):
            raise ArgumentError("errors must be between 0 and 100 percent")
        alone = self.snapshot_percent
        if (self.first_percent[0], self.last_percent[0]) != (alone[0], alone[-1]):
            raise ArgumentError("an ensemble of one snapshot must have the error of that snapshot")
        shares = (*self.last_ece, *(abs(r) for row in self.correlation for r in row), *sum(self.disagreement, ()))
        least = (*self.last_nll, self.seconds, 0 if self.pack is None else self.pack - 1)
        if not all(0 <= share <= 1 for share in shares) or min(least) < 0:
            raise ArgumentError("ECE, correlation, disagreement, NLL, seconds and pack must be within their ranges")

    @property
    def name(self) -> str:
        """The name of the run and of the file."""
        return paper.run_name(self.recipe)

    @cached_property
    def seedless(self) -> Recipe:
        """The recipe with seed 0, as in the cells of the paper."""
        return replace(self.recipe, seed=0)

    def percent(self, cell: paper.Cell) -> float:
        """The error for a cell of one run."""
        return self.last_percent[0 if cell.reads == "last" else -1]

    @classmethod
    def of_run(cls, run: "Run", commit: str) -> "Entry":
        """The measurements of a finished run."""
        from ..records.trace import Trace

        recipe = run.recipe
        if not run.finished:
            raise StoreError(f"run must be finished to be recorded, got {run.path}: resume it first")
        trace, steps = Trace.of(run), run.snapshots.steps
        _require_whole(run, trace, steps)
        outputs = run.outputs()
        seconds = trace.seconds
        if seconds is None or trace.device is None or trace.torch is None or trace.snapens is None:
            raise DamagedError(
                f"{run.path}/log.jsonl must state seconds, device, torch and snapens where the run finished, "
                "got at least one of them missing: restore the file"
            )
        return cls(
            recipe=recipe,
            origin=Origin(commit, trace.device, trace.torch, trace.snapens),
            seconds=seconds,
            images_per_second=round(steps[-1] * recipe.budget.batch / max(seconds, 1e-3), 1),
            pack=trace.pack,
            test_images=len(outputs.labels),
            snapshot_epochs=tuple(round(step * recipe.budget.batch / trace.images, 4) for step in steps),
            losses=Losses.from_trace(trace),
            between=run.curves(),
            **_measurements(outputs.quality),
        )


@dataclass(frozen=True)
class Joint:
    """The error of several runs together: a true ensemble, or K × M."""

    cell: str
    repetition: int
    runs: tuple[str, ...]
    origins: tuple[Origin, ...]
    """One per run."""
    seconds: float
    """The sum over all runs."""
    test_images: int
    error_percent: float

    def __post_init__(self) -> None:
        cell = paper.find(self.cell)
        if self.repetition < 0 or list(self.runs) != paper.run_names(cell, self.repetition):
            raise ArgumentError(f"runs must be those of repetition {self.repetition} of {cell.name}, got {self.runs}")
        if len(self.origins) != cell.seeds:
            raise ArgumentError(f"origins must have one entry per run, {cell.seeds}, got {len(self.origins)}")

    @property
    def name(self) -> str:
        """The cell and its seeds; also the name of the file."""
        return joint_name(paper.find(self.cell), self.repetition)

    @classmethod
    def of_entries(cls, cell: paper.Cell, repetition: int, entries: Sequence[Entry], runs: Sequence["Run"]) -> "Joint":
        """The number of a cell from the folders of its runs; each run has an entry."""
        from ..records.runs import require_same_test

        labels = [run.outputs().labels for run in runs]
        for run, own in zip(runs, labels, strict=True):
            require_same_test(runs[0], labels[0], run, own)
        return cls(
            cell=cell.name,
            repetition=repetition,
            runs=tuple(entry.name for entry in entries),
            origins=tuple(entry.origin for entry in entries),
            seconds=round(sum(entry.seconds for entry in entries), 3),
            test_images=len(labels[0]),
            error_percent=_percent(cell_error(cell, runs)),
        )


def cell_error(cell: paper.Cell, runs: Sequence["Run"]) -> float:
    """The error of a cell, a fraction, from one run per seed."""
    return joint_error(runs, last_only=cell.reads == "last")


def joint_error(runs: Sequence["Run"], *, last_only: bool = False, part: str = "test") -> float:
    """The error, a fraction, of the mean softmax of all members of some runs, or of their last members only."""
    found = [run.outputs(part) for run in runs]
    members = [outputs.log_probabilities[-1 if last_only else 0 :] for outputs in found]
    return Quality.of(np.concatenate(members), found[0].labels).last.scores[-1].error


def joint_name(cell: paper.Cell, repetition: int) -> str:
    """The name of a joint number of several runs.

    Examples:
        >>> joint_name(paper.find("densenet40-cifar100-single-x3"), repetition=1)
        'densenet40-cifar100-single-x3-seeds3-5'
    """
    first = repetition * cell.seeds
    return f"{cell.name}-seeds{first}-{first + cell.seeds - 1}"


def _require_whole(run: "Run", trace: "Trace", steps: Sequence[int]) -> None:
    """Check that a run was trained on its whole data set and has all its snapshots."""
    recipe = run.recipe
    if recipe.dataset.name in paper.IMAGES and trace.images != (known := paper.images(recipe)):
        raise ArgumentError(
            f"run must be trained on the {known:,} images of {recipe.dataset.name}, "
            f"got {run.path} with {trace.images:,}"
        )
    total, cycles = recipe.schedule(trace.images).total_steps, recipe.method.cycles
    if len(steps) != cycles or steps[-1] != total:  # the steps of the other snapshots are not checked
        raise DamagedError(
            f"{run.path} must hold {cycles} snapshots, the last at step {total}, got {steps}: train it again"
        )


def _measurements(quality: Quality) -> dict[str, Any]:
    """The fields of an entry that follow from the members' outputs for the test images."""
    exits = zip(THRESHOLDS, quality.exits.error[-1], quality.exits.used[-1], strict=True)
    alone, last, first = (answers.scores for answers in (quality.alone, quality.last, quality.first))
    return {
        "snapshot_percent": tuple(_percent(score.error) for score in alone),
        "last_percent": tuple(_percent(score.error) for score in last),
        "first_percent": tuple(_percent(score.error) for score in first),
        "last_nll": _rounded(score.nll for score in last),
        "last_ece": _rounded(score.ece for score in last),
        "correlation": tuple(map(_rounded, quality.correlation)),
        "disagreement": tuple(map(_rounded, quality.disagreement)),
        # a threshold of 1 is last_percent[-1] again
        "early_exit": tuple(Exit(t, _percent(error), round(float(used), 4)) for t, error, used in exits if t < 1),
    }


def _percent(fraction: float) -> float:
    return round(100 * float(fraction), 4)


def _rounded(values: Iterable[float]) -> Series:
    return tuple(round(float(value), 5) for value in values)
