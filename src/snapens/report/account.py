"""Account: one run of a report as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedError
from ..lab.recipe.preprocessing import has_rows
from ..lab.recipe.recipe import Recipe
from ..lab.records.run import Run
from ..lab.records.trace import Trace
from ..outputs import Outputs
from ..quality import Score

Part = Literal["held_out", "test"]
"""The part of the data that numbers are from. Choices may be made on held-out examples, but not on test examples."""

_RATE_POINTS = 400


@dataclass(frozen=True)
class Account:
    """A run, how it was trained, and how good its members are on one part of the data, alone and together."""

    name: str
    recipe: Recipe | None
    """None for a loop of the user's own; its data and its trace are empty."""
    data: Mapping[str, Any]
    """The description of the data in recipe.json."""
    classes: tuple[str, ...]
    steps: tuple[int, ...]
    """The completed step of each snapshot."""
    trace: Trace
    part: Part
    members: tuple[Score, ...]
    """Each member alone, oldest first."""
    first: tuple[Score, ...]
    """The first 1 … M members together."""
    last: tuple[Score, ...]
    """The last 1 … M members together."""
    wrong: NDArray[np.bool_]
    """(2, examples): where the last snapshot is wrong, and where all members together are wrong."""

    @classmethod
    def of(cls, run: Run, outputs: Outputs) -> "Account":
        """From a run and its outputs for one part of the data."""
        own_loop, quality = run.is_own_loop, outputs.quality
        return cls(
            run.path.resolve().name,
            None if own_loop else run.recipe,
            {} if own_loop else run.data,
            _classes(run, outputs.log_probabilities.shape[-1]),
            outputs.steps,
            Trace() if own_loop else Trace.of(run),
            "held_out" if outputs.part == "held_out" else "test",
            quality.alone.scores,
            quality.first.scores,
            quality.last.scores,
            quality.last.wrong[[0, -1]],
        )

    @property
    def noun(self) -> str:
        """The noun for the examples: images, or examples for the rows of a table."""
        return "examples" if self.recipe is None or has_rows(self.data) else "images"

    @property
    def missing(self) -> int:
        """Snapshots of the recipe that do not exist yet; 0 without a recipe."""
        return 0 if self.recipe is None else max(self.recipe.method.cycles - len(self.members), 0)

    @property
    def single(self) -> Score:
        """The last snapshot alone."""
        return self.members[-1]

    @property
    def ensemble(self) -> Score:
        """All snapshots together."""
        return self.last[-1]

    @property
    def minima(self) -> tuple[float, ...]:
        """The epochs at which snapshots were taken; empty without a recipe."""
        return tuple(map(self._epoch, self.steps)) if self.recipe else ()

    def rates(self) -> tuple[list[float], list[float]]:
        """Epochs and learning rates of the schedule; empty without a recipe."""
        if self.recipe is None:
            return [], []
        schedule = self.recipe.schedule(self.trace.images)
        steps = set(np.linspace(0, schedule.total_steps - 1, _RATE_POINTS).astype(int).tolist())
        for restart in schedule.restart_steps:  # both ends of a jump, so that it is drawn as a vertical line
            steps |= {restart - 1, restart}
        rates = [self.recipe.optimizer.lr * schedule(step) for step in sorted(steps)]
        return [self._epoch(step) for step in sorted(steps)], rates

    def _epoch(self, step: int) -> float:
        assert self.recipe is not None  # the callers check it
        return step * self.recipe.budget.batch / self.trace.images


def _classes(run: Run, count: int) -> tuple[str, ...]:
    """The names of the classes of the outputs; numbers for a loop of the user's own."""
    if run.is_own_loop:
        return tuple(f"class {k}" for k in range(count))
    names = tuple(str(name) for name in run.data.get("classes", ()))
    if len(names) != count:
        raise DamagedError(
            f"{run.path}/recipe.json must name the {count} classes of the outputs, got {len(names)} names: "
            "restore the file"
        )
    return names
