"""What the ledger keeps: an Entry is all that one run measured, a Joint the one number of several runs together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import metrics
from ...errors import ArgumentError, DamagedError, SnapensError, StoreError
from ...outputs import running_means
from ..recipe.recipe import Recipe
from ..records.curves import Between, Series
from ..records.scores import Running, Score
from . import cells as paper

if TYPE_CHECKING:  # reading the ledger does not wait for torch
    from ...outputs import Outputs
    from ..records.run import Run

_MOST_POINTS = 300  # of a loss curve
_THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class Origin:
    """What a number was made with."""

    commit: str
    device: str
    torch: str
    snapens: str

    def __post_init__(self) -> None:
        for name, words in vars(self).items():
            if not (words.isascii() and words.isprintable() and 0 < len(words) <= _LONGEST_WORDS):
                rule = f"be one line of at most {_LONGEST_WORDS} printable ASCII characters"
                raise ArgumentError(f"{name} must {rule}, got {words[:_LONGEST_WORDS]!r}")


@dataclass(frozen=True)
class Losses:
    """The training loss on the way: means since the point before, and the rate at each point."""

    epoch: Series
    lr: Series
    loss: Series


@dataclass(frozen=True)
class Exit:
    """Members are asked from the last backwards, until their mean gives some class `threshold` or more."""

    threshold: float
    error_percent: float
    mean_members: float


@dataclass(frozen=True)
class Entry:
    """All that one finished run measured; errors in percent of the test images, snapshots oldest first."""

    recipe: Recipe
    origin: Origin
    seconds: float
    images_per_second: float
    pack: int | None
    """How many runs shared the device, this one included: seconds and speed are those of each."""
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
        m = self.recipe.cycles
        curves = (self.snapshot_epochs, self.snapshot_percent, self.last_percent, self.first_percent)
        matrices = (self.correlation, self.disagreement)
        series = (*curves, self.last_nll, self.last_ece, *matrices, *(row for matrix in matrices for row in matrix))
        if any(len(values) != m for values in series):
            raise ArgumentError(f"an entry must have {m} numbers, one for each snapshot, wherever it has a series")
        if len({len(values) for values in vars(self.losses).values()}) != 1:
            raise ArgumentError("losses must have as many epochs as rates and losses")
        if self.between and any(line.snapshot >= m for line in self.between.lines):
            raise ArgumentError(f"a line must be of an earlier snapshot than the last, which is {m}")
        if self.test_images != (counted := paper.TEST_IMAGES[self.recipe.dataset]):
            raise ArgumentError(f"test_images must be the {counted:,} of {self.recipe.dataset}, got {self.test_images}")
        percentages = (*curves[1:], [found.error_percent for found in self.early_exit])
        if not all(0 <= value <= 100 for values in percentages for value in values):
            raise ArgumentError("errors must be between 0 and 100 percent")
        alone = self.snapshot_percent
        if (self.first_percent[0], self.last_percent[0]) != (alone[0], alone[-1]):
            raise ArgumentError("an ensemble of one must have that snapshot's error")
        shares = (*self.last_ece, *(abs(r) for row in self.correlation for r in row), *sum(self.disagreement, ()))
        least = (*self.last_nll, self.seconds, 0 if self.pack is None else self.pack - 1)
        if not all(0 <= share <= 1 for share in shares) or min(least) < 0:
            raise ArgumentError("ECE, correlation, disagreement, NLL, seconds and pack must be in their ranges")

    @property
    def name(self) -> str:
        """That of the run, and of the file."""
        return paper.run_name(self.recipe)

    @cached_property
    def seedless(self) -> Recipe:
        """The recipe as the paper's cells have it."""
        return replace(self.recipe, seed=0)

    def percent(self, cell: paper.Cell) -> float:
        """What a cell reads of this run alone."""
        return self.last_percent[0 if cell.reads == "last" else -1]

    @classmethod
    def of_run(cls, run: "Run", commit: str) -> "Entry":
        """What a finished run of the paper's measured."""
        recipe, finished = _finished(run)
        steps, total = run.snapshots.steps, recipe.schedule(paper.images(recipe)).total_steps
        if len(steps) != recipe.cycles or steps[-1] != total:  # where cycles end between is as it was recorded
            raise DamagedError(
                f"{run.path} must hold {recipe.cycles} snapshots, the last at step {total}, got {steps}: train it again"
            )
        outputs = run.outputs()
        try:
            seconds = float(finished["seconds"])
            return cls(
                recipe=recipe,
                origin=Origin(commit, *(finished[name] for name in ("device", "torch", "snapens"))),
                seconds=seconds,
                images_per_second=round(steps[-1] * recipe.batch / max(seconds, 1e-3), 1),
                pack=None if finished.get("pack") is None else int(finished["pack"]),
                test_images=len(outputs.labels),
                snapshot_epochs=tuple(round(step * recipe.batch / paper.images(recipe), 4) for step in steps),
                losses=_thinned(line for line in run.log() if line.get("event") == "trained"),
                between=run.curves(),
                **_worth(outputs),
            )
        except SnapensError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                f"{run.path}/log.jsonl must be what snapens wrote, got {type(error).__name__}: {error}: restore it"
            ) from error


@dataclass(frozen=True)
class Joint:
    """The error of several runs together, which their own errors do not tell: a true ensemble, or K × M."""

    cell: str
    repetition: int
    runs: tuple[str, ...]
    origins: tuple[Origin, ...]
    """One for each run."""
    seconds: float
    """Of all runs."""
    test_images: int
    error_percent: float

    def __post_init__(self) -> None:
        cell = paper.find(self.cell)
        if self.repetition < 0 or list(self.runs) != paper.run_names(cell, self.repetition):
            raise ArgumentError(f"runs must be those of repetition {self.repetition} of {cell.name}, got {self.runs}")
        if len(self.origins) != cell.seeds:
            raise ArgumentError(f"origins must be one for each of {cell.seeds} runs, got {len(self.origins)}")

    @property
    def name(self) -> str:
        """The cell and its seeds; that of the file."""
        return joint_name(paper.find(self.cell), self.repetition)

    @classmethod
    def of_entries(cls, cell: paper.Cell, repetition: int, entries: Sequence[Entry], runs: Sequence["Run"]) -> "Joint":
        """The number of a cell from the folders of its runs, each of which has an entry."""
        from ..records.run import require_same_test

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
    """The error that a cell of the paper is about, a fraction, from one run for each of its seeds."""
    found = [run.outputs() for run in runs]
    chosen = [outputs.probabilities[-1:] if cell.reads == "last" else outputs.probabilities for outputs in found]
    *_, together = running_means(np.concatenate(chosen)[::-1])  # added up as in a run's own outputs
    return float(metrics.error(together, found[0].labels))


def joint_name(cell: paper.Cell, repetition: int) -> str:
    """What the number of several runs is called.

    Examples:
        >>> joint_name(paper.find("densenet40-cifar100-single-x3"), repetition=1)
        'densenet40-cifar100-single-x3-seeds3-5'
    """
    first = repetition * cell.seeds
    return f"{cell.name}-seeds{first}-{first + cell.seeds - 1}"


def _finished(run: "Run") -> tuple[Recipe, dict[str, Any]]:
    """The recipe, which must be of the paper's, and the log's last word."""
    recipe = run.recipe
    if replace(recipe, seed=0) not in {cell.recipe for cell in paper.cells()}:
        raise ArgumentError(
            f"run must be of a recipe of the paper's, whatever the seed, got {run.path} ({paper.run_name(recipe)}): "
            "`snapens paper list` shows what can be recorded"
        )
    if (finished := run.last_words) is None:
        raise StoreError(f"run must be finished to be recorded, got {run.path}: resume it first")
    return recipe, finished


def _worth(outputs: "Outputs") -> dict[str, Any]:
    """The fields of an entry that follow from what the members say of the test images."""
    p, labels = outputs.probabilities, outputs.labels
    first, last, running = Score.of_growing(p, labels), Score.of_growing(p[::-1], labels), Running.of(p, labels)
    exits = []
    for threshold in _THRESHOLDS:
        asked = running.asked(threshold)
        error = _percent(running.wrong(asked, labels).mean())
        exits.append(Exit(threshold, error, round(float(asked.mean()), 4)))
    return {
        "snapshot_percent": tuple(map(_percent, metrics.error(p, labels))),
        "last_percent": tuple(_percent(score.error) for score in last),
        "first_percent": tuple(_percent(score.error) for score in first),
        "last_nll": _rounded(score.nll for score in last),
        "last_ece": _rounded(score.ece for score in last),
        "correlation": tuple(map(_rounded, metrics.correlation(p))),
        "disagreement": tuple(map(_rounded, metrics.disagreement(p))),
        "early_exit": tuple(exits),
    }


def _thinned(lines: Iterable[dict[str, Any]]) -> Losses:
    points = [(float(line["epoch"]), float(line["lr"]), float(line["loss"])) for line in lines]
    if len(points) > _MOST_POINTS:
        points = [points[k] for k in np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int)]
    return Losses(*(tuple(float(f"{point[k]:.5g}") for point in points) for k in range(3)))


def _percent(fraction: float) -> float:
    return round(100 * float(fraction), 4)


def _rounded(values: Iterable[float]) -> Series:
    return tuple(round(float(value), 5) for value in values)
