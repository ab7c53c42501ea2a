"""Evidence: the numbers that a verdict rests on, differences with their paired standard errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import DamagedError, StoreError
from ..lab.recipe import Recipe
from ..lab.runs import Outputs, Run
from .account import Account
from .exits import Running
from .lines import Line


@dataclass(frozen=True)
class Difference:
    """An error less another on the same examples, and the standard error of that: paired, as in McNemar's test."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, wrong: NDArray[np.bool_], other: NDArray[np.bool_]) -> "Difference":
        """How much more often the first errs than the other."""
        paired = wrong.astype(np.float64) - other
        return cls(float(paired.mean()), float(paired.std() / np.sqrt(len(paired))))

    def exceeds(self, standard_errors: float) -> bool:
        """Whether it is positive beyond so many standard errors."""
        return self.value > standard_errors * self.standard_error and self.value > 0


@dataclass(frozen=True)
class Evidence:
    """What a verdict is about. Errors are fractions; members are ordered oldest first, ensembles by m = 1 … M."""

    part: str
    """What it is from: held_out, or test where nothing was held out."""
    examples: int
    warm_cycles: bool
    """Whether cycles go on from the weights of the one before."""
    member_errors: tuple[float, ...]
    ensemble_errors: tuple[float, ...]
    gain: Difference
    """The last snapshot less all together."""
    progress: Difference | None
    """The last snapshot but one less the last; None with one member."""
    losses: tuple[float, ...]
    """The training loss just before each minimum; empty where the log does not have them all."""
    over_fewer: tuple[Difference, ...]
    """All together less the last m."""
    over_best: tuple[Difference, ...]
    """The last m less the best m."""
    correlations: tuple[float, ...]
    """Of each earlier member's softmax with the last one's."""
    bumps: Mapping[int, float]
    """Member (counted from 1) -> how far the test error rises above both ends on its way to the last, if measured."""
    test_noise: float
    """The standard error of the last member's test error."""

    @classmethod
    def of(cls, run: Run, account: Account, lines: Sequence[Line]) -> "Evidence":
        """From the images that were held out, else from the test images."""
        part, outputs = _chosen(run)
        p, labels = outputs.probabilities, outputs.labels
        alone = p.argmax(-1) != labels
        together = Running.of(p, labels).choice != labels
        errors = together.mean(-1)
        best = int(errors.argmin())
        losses = [account.trace.loss_at(step) for step in account.steps]
        return cls(
            part,
            len(labels),
            _warm(account.recipe, len(p)),
            tuple(alone.mean(-1).tolist()),
            tuple(errors.tolist()),
            Difference.of(alone[-1], together[-1]),
            Difference.of(alone[-2], alone[-1]) if len(p) > 1 else None,
            tuple(loss for loss in losses if loss is not None) if None not in losses else (),
            tuple(Difference.of(together[-1], fewer) for fewer in together),
            tuple(Difference.of(fewer, together[best]) for fewer in together),
            tuple(metrics.correlation(p)[-1, :-1].tolist()) if len(p) > 1 else (),
            {account.steps.index(line.step) + 1: line.bump for line in lines},
            float(account.wrong[0].std() / np.sqrt(account.wrong.shape[1])),
        )


def _chosen(run: Run) -> tuple[str, Outputs]:
    try:
        return "held_out", run.outputs("held_out")
    except DamagedError:
        raise
    except StoreError:
        return "test", run.outputs()


def _warm(recipe: Recipe, members: int) -> bool:
    return recipe.method != "single" and not any(recipe.begins_fresh(cycle) for cycle in range(1, members))
