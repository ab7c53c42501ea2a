"""Scores: what members are worth, alone and as their mean grows, and how many must be asked until it is sure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import metrics
from ...outputs import running_means

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """What one predictor is worth: its error (a fraction), NLL (nats) and expected calibration error."""

    error: float
    nll: float
    ece: float

    @classmethod
    def of(cls, probabilities: Floats, labels: Whole) -> "Score":
        """From (examples, classes)."""
        return cls(*(float(of(probabilities, labels)) for of in (metrics.error, metrics.nll, metrics.ece)))

    @classmethod
    def of_growing(cls, members: Floats, labels: Whole) -> "tuple[Score, ...]":
        """Of the first 1, 2, … members together."""
        return tuple(cls.of(mean, labels) for mean in running_means(members))


@dataclass(frozen=True)
class Running:
    """The mean of the last k members, k = 1 … M: its choice, its confidence, its NLL.

    Each is (members, examples).
    """

    choice: Whole
    confidence: Floats
    nll: Floats

    @classmethod
    def of(cls, probabilities: Floats, labels: Whole) -> "Running":
        """From (members, examples, classes), oldest member first."""
        rows, found = np.arange(len(labels)), []
        for mean in running_means(probabilities[::-1]):
            choice = mean.argmax(-1)
            found.append((choice, mean[rows, choice], metrics.surprise(mean[rows, labels])))
        return cls(*(np.stack(column) for column in zip(*found, strict=True)))

    def asked(self, threshold: float) -> Whole:
        """(examples,): how many members speak, the last first, before the mean's confidence reaches the threshold.

        At 1 that is all of them, even after one that leaves no doubt.
        """
        sure = self.confidence >= threshold if threshold < 1 else np.zeros(self.confidence.shape, bool)
        sure[-1] = True  # there is no other left to ask
        return np.asarray(sure.argmax(0) + 1, dtype=np.int64)

    def wrong(self, asked: Whole, labels: Whole) -> NDArray[np.bool_]:
        """(examples,): where the mean of so many members, as many as each example asked, errs."""
        wrong: NDArray[np.bool_] = np.take_along_axis(self.choice, asked[None] - 1, axis=0)[0] != labels
        return wrong
