"""Evidence: the numbers that a verdict rests on, differences with what they are worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, lgamma, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..lab.recipe.recipe import Recipe
from ..lab.records.curves import Between, Line
from ..lab.records.scores import Running
from ..outputs import Outputs
from .account import Account

Part = Literal["held_out", "test"]
"""The images that something is chosen by; test images only describe, and are taken where none were held out."""


@dataclass(frozen=True)
class Difference:
    """An error less another on the same examples: how many only the first gets wrong, how many only the other."""

    more: int
    fewer: int
    examples: int

    @classmethod
    def of(cls, wrong: NDArray[np.bool_], other: NDArray[np.bool_]) -> "Difference":
        """How much more often the first errs than the other."""
        return cls(int((wrong & ~other).sum()), int((other & ~wrong).sum()), len(wrong))

    @property
    def value(self) -> float:
        """A fraction of the examples."""
        return (self.more - self.fewer) / self.examples

    @property
    def standard_error(self) -> float:
        """Of the value: paired."""
        return sqrt(((self.more + self.fewer) / self.examples - self.value**2) / self.examples)

    @property
    def chance(self) -> float:
        """Of so many `more` or more, were both as good: McNemar's exact test, one-sided."""
        n = self.more + self.fewer
        return min(1.0, sum(exp(_log_of_half(n, k)) for k in range(self.more, n + 1)))

    def __neg__(self) -> "Difference":
        return Difference(self.fewer, self.more, self.examples)


@dataclass(frozen=True)
class Evidence:
    """What a verdict is about. Errors are fractions; members are ordered oldest first, ensembles by m = 1 … M."""

    part: Part
    examples: int
    missing: int
    """Snapshots that an unfinished run has yet to take."""
    restarts: tuple[Literal["none", "warm", "fresh"], ...]
    """What lies between each earlier member and the last: fresh weights, or cycles that go on; none is no cycles."""
    member_errors: tuple[float, ...]
    ensemble_errors: tuple[float, ...]
    learned: Difference
    """Always answering the most frequent class, less all together."""
    gain: Difference
    """The last snapshot less all together."""
    nll: tuple[float, float]
    """Of the last snapshot, and of all together."""
    nll_noise: float
    """The paired standard error of their difference."""
    progress: Mapping[int, Difference]
    """Of one cycle, and of the later half of all cycles: the snapshot before these less the last one."""
    losses: tuple[float, ...]
    """The training loss just before each minimum; empty where the log does not have them all."""
    over_fewer: tuple[Difference, ...]
    """All together less the last m."""
    over_best: tuple[Difference, ...]
    """The last m less the best m."""
    disagreements: tuple[float, ...]
    """The share of images on which each earlier member chooses another class than the last one."""
    lines: Mapping[int, Line]
    """From an earlier member (counted from 1) to the last, if measured: of test images."""
    test_noise: float
    """The standard error of the last member's test error."""

    @classmethod
    def of(
        cls, part: Part, outputs: Outputs, running: Running, account: Account, between: Between | None
    ) -> "Evidence":
        """From what the members say of one part of the images, alone and as their mean grows."""
        p, labels = outputs.probabilities, outputs.labels
        alone, together = p.argmax(-1) != labels, running.choice != labels
        errors = together.mean(-1)
        best = int(errors.argmin())
        losses = [account.trace.loss_at(step) for step in account.steps]
        nll = running.nll[[0, -1]]
        return cls(
            part=part,
            examples=len(labels),
            missing=max(account.recipe.cycles - len(p), 0),
            restarts=tuple(_between(account.recipe, k, len(p)) for k in range(len(p) - 1)),
            member_errors=tuple(alone.mean(-1).tolist()),
            ensemble_errors=tuple(errors.tolist()),
            learned=Difference.of(labels != np.bincount(labels).argmax(), together[-1]),
            gain=Difference.of(alone[-1], together[-1]),
            nll=(float(nll[0].mean()), float(nll[1].mean())),
            nll_noise=float((nll[1] - nll[0]).std() / np.sqrt(len(labels))),
            progress={k: Difference.of(alone[-1 - k], alone[-1]) for k in sorted({1, len(p) // 2}) if 0 < k < len(p)},
            losses=tuple(loss for loss in losses if loss is not None) if None not in losses else (),
            over_fewer=tuple(Difference.of(together[-1], fewer) for fewer in together),
            over_best=tuple(Difference.of(fewer, together[best]) for fewer in together),
            disagreements=tuple(metrics.disagreement(p)[-1, :-1].tolist()),
            lines={line.snapshot: line for line in between.lines} if between else {},
            test_noise=float(account.wrong[0].std() / np.sqrt(account.wrong.shape[1])),
        )


def _between(recipe: Recipe, member: int, members: int) -> Literal["none", "warm", "fresh"]:
    if recipe.method == "single":
        return "none"
    return "fresh" if any(recipe.begins_fresh(cycle) for cycle in range(member + 1, members)) else "warm"


def _log_of_half(n: int, k: int) -> float:
    """The logarithm of the binomial probability of k of n."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2)
