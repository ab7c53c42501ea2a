"""Outputs: what the members of a run say of one part of its images."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from . import metrics


@dataclass(frozen=True)
class Outputs:
    """What the members say of one part of the data: log-probabilities (members, examples, classes), labels."""

    log_probabilities: NDArray[np.float16]
    labels: NDArray[np.int64]

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(members, examples, classes), oldest member first, each row adding up to 1."""
        found: NDArray[np.float64] = np.exp(self.log_probabilities.astype(np.float64))
        found /= found.sum(-1, keepdims=True)
        return found

    @property
    def member_errors(self) -> list[float]:
        """The error of each member alone, a fraction, oldest first."""
        return metrics.error(self.probabilities, self.labels).tolist()  # type: ignore[no-any-return]

    @property
    def ensemble_errors(self) -> list[float]:
        """The error of the last m members together, for m = 1 … M."""
        return [float(metrics.error(mean, self.labels)) for mean in running_means(self.probabilities[::-1])]


def running_means(members: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """The mean of the first 1, 2, … of (members, examples, classes), each a new array."""
    total = np.zeros_like(members[0])
    for k, member in enumerate(members, 1):
        total += member
        yield total / k
