"""Fitted: the combination in a run folder, and how good its predictions are."""

import logging
from dataclasses import dataclass

from ..combination import Combination
from ..errors import ArgumentError, DamagedError
from ..lab.records.run import Run
from ..outputs import Outputs
from ..prediction import Prediction
from ..quality import Difference, Score

log = logging.getLogger("snapens")


@dataclass(frozen=True)
class Fitted:
    """A fitted combination, measured on the examples of a report."""

    combination: Combination
    """Its members are listed explicitly, without those of weight 0."""
    snapshots: tuple[int, ...]
    """The number of each member, counted from 1 in the order in which the run's snapshots were taken."""
    score: Score
    used: float
    """The mean number of members that are evaluated."""
    expected: float | None
    """The same on the held-out examples, if there are any."""
    exit_point: tuple[float, float] | None
    """The mean number of members evaluated and the error, on the held-out examples if there are any.

    None if all members are always evaluated.
    """
    over_mean: Difference
    """Its error minus that of the mean of all members."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The weight of each member, with the sum 1."""
        weights = self.combination.shares
        return tuple(weight / sum(weights) for weight in weights)

    @classmethod
    def of(cls, run: Run, outputs: Outputs, held_out: Outputs | None) -> "Fitted | None":
        """From a run folder; None without a combination, or with a warning if it does not belong to these members."""
        try:
            if (combination := Combination.find(run.path)) is None:
                return None
            combination = combination.among(outputs.members)
        except (ArgumentError, DamagedError) as error:
            log.warning("%s; the report leaves %s out", error, run.path / "combination.json")
            return None
        found = Prediction.of(outputs, combination)
        expected = None if held_out is None else Prediction.of(held_out, combination)
        exits = expected or found
        return cls(
            combination,
            tuple(1 + outputs.members.index(member) for member in combination.members),
            found.score,
            float(found.used.mean()),
            None if expected is None else float(expected.used.mean()),
            None if combination.exit_threshold is None else (float(exits.used.mean()), exits.score.error),
            Difference.of(found.wrong, outputs.quality.last.wrong[-1]),
        )
