"""Early exit: what it costs and saves to ask members, the last first, only until their mean is sure enough."""

from dataclasses import dataclass

import numpy as np

from ..lab.records.scores import Floats, Running, Whole

THRESHOLDS = tuple(k / 100 for k in range(50, 101, 2))
"""Confidences at which to stop."""


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
                error, nll = running.wrong(used, labels).mean(), running.nll[used - 1, rows].mean()
                tables[:, m - 1, column] = error, nll, used.mean()
        return cls(*tables)
