"""Evidence: the numbers that a verdict rests on, differences with their paired standard errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..lab.between import Line
from ..lab.recipe import Recipe
from ..lab.runs import Outputs
from ..lab.scores import Running
from .account import Account

Part = Literal["held_out", "test"]
"""The images that something is chosen by; test images only describe, and are taken where none were held out."""


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

    part: Part
    examples: int
    restarts: Literal["none", "warm", "fresh"]
    """Whether cycles go on from the weights of the one before; none is a standard schedule."""
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
    disagreements: tuple[float, ...]
    """The share of images on which each earlier member chooses another class than the last one."""
    bumps: Mapping[int, float]
    """Member (counted from 1) -> how far the test error rises above both ends on its way to the last, if measured."""
    test_noise: float
    """The standard error of the last member's test error."""

    @classmethod
    def of(cls, part: Part, outputs: Outputs, running: Running, account: Account, lines: Sequence[Line]) -> "Evidence":
        """From what the members say of one part of the images, alone and as their mean grows."""
        p, labels = outputs.probabilities, outputs.labels
        alone, together = p.argmax(-1) != labels, running.choice != labels
        errors = together.mean(-1)
        best = int(errors.argmin())
        losses = [account.trace.loss_at(step) for step in account.steps]
        return cls(
            part,
            len(labels),
            _restarts(account.recipe, len(p)),
            tuple(alone.mean(-1).tolist()),
            tuple(errors.tolist()),
            Difference.of(alone[-1], together[-1]),
            Difference.of(alone[-2], alone[-1]) if len(p) > 1 else None,
            tuple(loss for loss in losses if loss is not None) if None not in losses else (),
            tuple(Difference.of(together[-1], fewer) for fewer in together),
            tuple(Difference.of(fewer, together[best]) for fewer in together),
            tuple(metrics.disagreement(p)[-1, :-1].tolist()),
            {line.snapshot: line.bump_points / 100 for line in lines},
            float(account.wrong[0].std() / np.sqrt(account.wrong.shape[1])),
        )


def _restarts(recipe: Recipe, members: int) -> Literal["none", "warm", "fresh"]:
    if recipe.method == "single":
        return "none"
    return "fresh" if any(recipe.begins_fresh(cycle) for cycle in range(1, members)) else "warm"
