"""Account: one run of a report as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedError
from ..lab.recipe.preprocessing import has_rows
from ..lab.recipe.recipe import Recipe
from ..lab.records.run import Run
from ..lab.records.trace import Trace
from ..quality import Quality, Score

_RATE_POINTS = 400


@dataclass(frozen=True)
class Account:
    """A run, how it was trained, and how good its members are on the test images, alone and together."""

    name: str
    recipe: Recipe
    data: Mapping[str, Any]
    """What recipe.json says about the data."""
    classes: tuple[str, ...]
    steps: tuple[int, ...]
    """At which snapshots were taken."""
    trace: Trace
    members: tuple[Score, ...]
    """Each member alone, oldest first."""
    first: tuple[Score, ...]
    """The first 1 … M members together."""
    last: tuple[Score, ...]
    """The last 1 … M members together."""
    wrong: NDArray[np.bool_]
    """(2, examples): where the last snapshot is wrong, and where all members together are wrong."""

    @classmethod
    def of(cls, run: Run, classes: int, quality: Quality) -> "Account":
        """From a run, the number of classes of its outputs, and their quality on the test images."""
        names = tuple(str(name) for name in run.data.get("classes", ()))
        if len(names) != classes:
            raise DamagedError(
                f"{run.path}/recipe.json must name the {classes} classes of the outputs, got {len(names)} names: "
                "restore the file"
            )
        return cls(
            run.path.resolve().name,
            run.recipe,
            run.data,
            names,
            run.snapshots.steps,
            Trace.of(run),
            quality.alone.scores,
            quality.first.scores,
            quality.last.scores,
            quality.last.wrong[[0, -1]],
        )

    @property
    def noun(self) -> str:
        """What the examples are called: images, or examples for the rows of a table."""
        return "examples" if has_rows(self.data) else "images"

    @property
    def complete(self) -> bool:
        """Whether all snapshots of the recipe exist."""
        return len(self.members) == self.recipe.method.cycles

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
        """The epochs at which snapshots were taken."""
        return tuple(step * self.recipe.budget.batch / self.trace.images for step in self.steps)

    def rates(self) -> tuple[list[float], list[float]]:
        """Epochs and learning rates of the schedule."""
        schedule = self.recipe.schedule(self.trace.images)
        steps = set(np.linspace(0, schedule.total_steps - 1, _RATE_POINTS).astype(int).tolist())
        for restart in schedule.restart_steps:  # both ends of a jump, so that it is drawn as a vertical line
            steps |= {restart - 1, restart}
        ordered = sorted(steps)
        rates = [self.recipe.optimizer.lr * schedule(step) for step in ordered]
        return [step * self.recipe.budget.batch / self.trace.images for step in ordered], rates
