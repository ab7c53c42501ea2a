"""Quality: how good members are on labelled examples, alone and together, computed once from their outputs.

Outputs are read in blocks of examples, so that the float64 probabilities of all examples are never in memory at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

from . import metrics
from .metrics import Floats as Floats

Whole = NDArray[np.int64]

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
"""Confidences at which early exit stops. At 1 it never stops: all members are evaluated."""
_BLOCK_BYTES = 1 << 24  # of float64 probabilities


def blocks(log_probabilities: NDArray[np.float16]) -> Iterator[tuple[slice, Floats]]:
    """Probabilities of (members, examples, classes) in blocks of examples, each row with the sum 1."""
    members, examples, classes = log_probabilities.shape
    size = max(1, _BLOCK_BYTES // (8 * members * classes))
    for start in range(0, examples, size):
        rows = slice(start, start + size)
        p = log_probabilities[:, rows].astype(np.float64)
        np.exp(p, out=p)
        p /= p.sum(-1, keepdims=True)
        yield rows, p


def prefix_means(members: Floats, weights: Floats | None = None) -> Iterator[Floats]:
    """The (weighted) mean of the first 1, 2, … of (members, examples, classes), each a new array."""
    total, weight = np.zeros_like(members[0]), 0.0
    for member, share in zip(members, np.ones(len(members)) if weights is None else weights, strict=True):
        total += share * member
        weight += share
        yield total / weight


@dataclass(frozen=True)
class Score:
    """The quality of one predictor: its error (a fraction), NLL (nats) and expected calibration error."""

    error: float
    nll: float
    ece: float


@dataclass(frozen=True)
class Answers:
    """The predictions of some predictors: arrays of (predictors, examples)."""

    choice: Whole
    """The most probable class."""
    confidence: Floats
    """The probability of that class."""
    nll: Floats
    """Minus the logarithm of the label's probability, in nats."""
    wrong: NDArray[np.bool_]

    @classmethod
    def empty(cls, predictors: int, examples: int) -> "Answers":
        """Arrays to be filled by `fill`."""
        return cls(*(np.empty((predictors, examples), kind) for kind in (np.int64, np.float64, np.float64, bool)))

    def fill(self, predictor: int, rows: slice, probabilities: Floats, labels: Whole) -> None:
        """Store the predictions of one predictor for some examples, from probabilities (examples, classes)."""
        each, choice = np.arange(len(labels)), probabilities.argmax(-1)
        self.choice[predictor, rows] = choice
        self.confidence[predictor, rows] = probabilities[each, choice]
        self.nll[predictor, rows] = metrics.surprise(probabilities[each, labels])
        self.wrong[predictor, rows] = choice != labels

    @cached_property
    def scores(self) -> tuple[Score, ...]:
        """One per predictor."""
        ece = metrics.calibration_error(self.confidence, ~self.wrong)
        columns = zip(self.wrong.mean(-1), self.nll.mean(-1), ece, strict=True)
        return tuple(Score(*map(float, column)) for column in columns)


@dataclass(frozen=True)
class Difference:
    """One error minus another on the same examples: how many only the first gets wrong, how many only the other."""

    more: int
    fewer: int
    examples: int

    @classmethod
    def of(cls, wrong: NDArray[np.bool_], other: NDArray[np.bool_]) -> "Difference":
        """How much more often the first is wrong than the other."""
        return cls(int((wrong & ~other).sum()), int((other & ~wrong).sum()), len(wrong))

    @property
    def value(self) -> float:
        """A fraction of the examples."""
        return (self.more - self.fewer) / self.examples

    @property
    def standard_error(self) -> float:
        """The paired standard error of the value."""
        return sqrt(((self.more + self.fewer) / self.examples - self.value**2) / self.examples)

    @property
    def chance(self) -> float:
        """The p-value of McNemar's exact test, one-sided: the chance of at least `more` if both were equally good."""
        n = self.more + self.fewer
        logs = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2) for k in range(self.more, n + 1))
        return min(1.0, sum(map(exp, logs)))

    def __neg__(self) -> "Difference":
        return Difference(self.fewer, self.more, self.examples)


@dataclass(frozen=True)
class Exits:
    """Early exit: arrays of (m, thresholds) for at most m = 1 … M members and each of `THRESHOLDS`."""

    error: Floats
    nll: Floats
    used: Floats
    """The mean number of members that are evaluated."""


@dataclass(frozen=True)
class Quality:
    """The quality of members on one set of labelled examples; members are ordered oldest first."""

    labels: Whole
    alone: Answers
    """Predictions of each member."""
    first: Answers
    """Predictions of the mean of the first m members, m = 1 … M."""
    last: Answers
    """Predictions of the mean of the last m members, m = 1 … M."""
    correlation: Floats
    """(members, members): the correlation of the softmax outputs, over examples × classes."""

    @classmethod
    def of(cls, log_probabilities: NDArray[np.float16], labels: Whole) -> "Quality":
        """From (members, examples, classes) and (examples,)."""
        members, examples, _ = log_probabilities.shape
        alone, first, last = (Answers.empty(members, examples) for _ in range(3))
        comoments = np.zeros((members + 1, members + 1))
        for rows, p in blocks(log_probabilities):
            for k, member in enumerate(p):
                alone.fill(k, rows, member, labels[rows])
            for together, ordered in ((first, p), (last, p[::-1])):
                for k, mean in enumerate(prefix_means(ordered)):
                    together.fill(k, rows, mean, labels[rows])
            comoments += metrics.comoments(p)
        return cls(labels, alone, first, last, metrics.correlation_from(comoments))

    def __repr__(self) -> str:
        members, examples = self.alone.choice.shape
        alone, last = (one.wrong.mean(-1).round(4).tolist() for one in (self.alone, self.last))
        return f"Quality(members={members}, examples={examples}, errors alone={alone}, errors of the last m={last})"

    @cached_property
    def disagreement(self) -> Floats:
        """(members, members): the share of examples for which two members predict different classes."""
        return metrics.share_that_differs(self.alone.choice)

    def evaluated(self, threshold: float) -> Whole:
        """(examples,): how many members early exit evaluates, newest first, until their mean is confident enough.

        At a threshold of 1 all members are evaluated, even if the confidence is already 1.
        """
        confidence = self.last.confidence
        enough = confidence >= threshold if threshold < 1 else np.zeros(confidence.shape, bool)
        enough[-1] = True  # no member is left
        return np.asarray(enough.argmax(0) + 1, dtype=np.int64)

    @cached_property
    def exits(self) -> Exits:
        """For every m and each of `THRESHOLDS`."""
        members, each = len(self.last.choice), np.arange(len(self.labels))
        tables = np.empty((3, members, len(THRESHOLDS)))
        for column, threshold in enumerate(THRESHOLDS):
            evaluated = self.evaluated(threshold)
            for m in range(1, members + 1):
                used = np.minimum(evaluated, m)
                error, nll = (values[used - 1, each].mean() for values in (self.last.wrong, self.last.nll))
                tables[:, m - 1, column] = error, nll, used.mean()
        return Exits(*tables)
