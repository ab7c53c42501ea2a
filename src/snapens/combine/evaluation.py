"""Evaluation: how good a combination is on labelled examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import metrics
from ..combination import Combination
from ..outputs import Outputs
from ..prediction import Prediction
from .calibration import calibrated_log_likelihood, deep_ensemble_equivalent
from .exits import with_early_exit
from .held_out import FEW_EXAMPLES


@dataclass(frozen=True)
class Evaluation:
    """The quality of one combination; errors are fractions, likelihoods are in nats."""

    examples: int
    error: float
    nll: float
    brier: float
    ece: float
    calibrated_log_likelihood: float | None
    """At the best temperature, fitted on the other half of the examples; None for too few examples to fit it."""
    error_of_confident: float
    """The error on the 80 % of the examples with the highest confidence."""
    mean_members: float
    """The number of members that are evaluated per example."""
    equivalent: float | None
    """The number of independent networks with the same calibrated log-likelihood, if both are known."""
    class_errors: tuple[float | None, ...]
    """The error of each class; None for a class without examples."""

    @classmethod
    def of(
        cls, outputs: Outputs, combination: Combination | None = None, networks: Sequence[Outputs] = ()
    ) -> "Evaluation":
        """Evaluate a combination, by default the mean of all members.

        The last member of each of `networks` is an independent network, evaluated on the same examples.

        Examples:
            >>> p = np.log([[[0.6, 0.4], [0.5, 0.5]], [[0.2, 0.8], [0.9, 0.1]]]).astype(np.float16)
            >>> found = Evaluation.of(Outputs((("a", 4), ("a", 8)), p, labels=np.array([1, 1])))
            >>> found.error, found.class_errors, found.mean_members
            (0.5, (None, 0.5), 2.0)
        """
        found = Prediction.of(outputs, combination)
        if combination is not None and combination.exit_threshold is not None:  # for the best temperature
            outputs, combination = with_early_exit(outputs, combination), None
        confident = round(0.8 * len(found.labels))
        enough = len(found.labels) >= FEW_EXAMPLES
        classes = metrics.class_errors(found.wrong, found.labels, outputs.log_probabilities.shape[-1])
        return cls(
            examples=len(found.labels),
            **vars(found.score),
            brier=float(found.brier.mean()),
            calibrated_log_likelihood=calibrated_log_likelihood(outputs, combination) if enough else None,
            error_of_confident=float(metrics.risk_coverage(found.confidence, found.wrong)[confident - 1]),
            mean_members=float(found.used.mean()),
            equivalent=deep_ensemble_equivalent(outputs, networks, combination) if enough and networks else None,
            class_errors=tuple(None if np.isnan(error) else float(error) for error in classes),
        )
