"""Early exit: members are asked from the last backwards until their running mean is sure enough."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import metrics

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

THRESHOLDS = tuple(k / 100 for k in range(50, 101, 2))
"""Confidences at which to stop; at 1 every member is asked, even after one that leaves no doubt."""


@dataclass(frozen=True)
class Running:
    """The mean of the last k members, k = 1 … M: its choice, its confidence, its probability of the label.

    Each is (members, examples).
    """

    choice: Whole
    confidence: Floats
    of_label: Floats

    @classmethod
    def of(cls, probabilities: Floats, labels: Whole) -> "Running":
        """From (members, examples, classes), oldest member first."""
        total, rows = np.zeros_like(probabilities[0]), np.arange(len(labels))
        found = []
        for k, member in enumerate(probabilities[::-1], 1):
            total += member
            choice = total.argmax(-1)
            found.append((choice, total[rows, choice] / k, total[rows, labels] / k))
        return cls(*(np.stack(column) for column in zip(*found, strict=True)))

    def asked(self, threshold: float) -> Whole:
        """(examples,): how many members speak before the mean's confidence reaches the threshold."""
        sure = self.confidence >= threshold if threshold < 1 else np.zeros(self.confidence.shape, bool)
        sure[-1] = True  # there is no other left to ask
        return np.asarray(sure.argmax(0) + 1, dtype=np.int64)


@dataclass(frozen=True)
class Exits:
    """Error, NLL and members asked on average: (m, thresholds) each, for at most m = 1 … M members."""

    error: Floats
    nll: Floats
    used: Floats

    @classmethod
    def of(cls, running: Running, labels: Whole) -> "Exits":
        """For every m and each of `THRESHOLDS`."""
        members, rows = len(running.choice), np.arange(len(labels))
        tables = np.empty((3, members, len(THRESHOLDS)))
        for column, threshold in enumerate(THRESHOLDS):
            asked = running.asked(threshold)
            for m in range(1, members + 1):
                used = np.minimum(asked, m)
                wrong = running.choice[used - 1, rows] != labels
                tables[:, m - 1, column] = wrong.mean(), _nll(running.of_label[used - 1, rows]), used.mean()
        return cls(*tables)


def _nll(of_label: Floats) -> float:
    """As `metrics.nll` has it, for examples whose probabilities come from different means."""
    two_classes = np.stack([of_label, 1 - of_label], axis=-1).clip(0, 1)
    return float(metrics.nll(two_classes, np.zeros(len(of_label), np.int64)))
