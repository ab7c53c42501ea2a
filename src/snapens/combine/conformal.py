"""Conformal prediction: sets of classes that contain the true class with a stated probability."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..combination import Combination
from ..errors import ArgumentError
from ..outputs import Outputs
from ..prediction import predictions
from .held_out import check_held_out


@dataclass(frozen=True)
class ConformalSets:
    """Split-conformal prediction sets: all classes whose probability is at least `threshold`.

    For examples that are exchangeable with the held-out ones, a set contains the true class with a probability of at
    least `coverage`, whatever the quality of the combination (Sadinle et al., 2019). This holds exactly if the
    combination was not fitted on the same examples. A set may be empty.

    Examples:
        >>> p = np.log([[[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]]).astype(np.float16)
        >>> held_out = Outputs((("a", 4),), p, labels=np.array([0, 1, 1]))
        >>> conformal = ConformalSets.fit(held_out, coverage=0.5)  # two of three true classes have at least 0.8
        >>> round(conformal.threshold, 2)
        0.8
        >>> conformal.sets(held_out)
        array([[ True, False],
               [False, False],
               [False,  True]])
    """

    combination: Combination
    threshold: float
    coverage: float

    @classmethod
    def fit(cls, outputs: Outputs, combination: Combination | None = None, *, coverage: float = 0.9) -> "ConformalSets":
        """The sets for a combination, by default the mean of all members, from held-out outputs."""
        check_held_out(outputs)
        if not 0 < coverage < 1:
            raise ArgumentError(f"coverage must be more than 0 and less than 1, got {coverage}")
        chosen = combination or Combination(outputs.members)
        examples = len(outputs.labels)
        inside = math.ceil(round((examples + 1) * coverage, 9))  # the new example counts as one more
        if inside > examples:
            raise ArgumentError(
                f"coverage must be at most {examples / (examples + 1):.6g} with {examples} held-out examples, "
                f"got {coverage}: hold out more examples"
            )
        of_label = np.concatenate(
            [p[np.arange(len(p)), outputs.labels[rows]] for rows, p, *_ in predictions(outputs, chosen)]
        )
        return cls(chosen, float(np.sort(of_label)[examples - inside]), coverage)

    def sets(self, outputs: Outputs) -> NDArray[np.bool_]:
        """(examples, classes): the classes in the set of each example."""
        return np.concatenate([p >= self.threshold for _, p, *_ in predictions(outputs, self.combination)])

    def measured_coverage(self, outputs: Outputs) -> float:
        """The share of the examples whose set contains the label."""
        return float(self.sets(outputs)[np.arange(len(outputs.labels)), outputs.labels].mean())
