"""Weights: how much each member counts, chosen by the NLL of the mixture on held-out examples.

The NLL of a mixture, before a temperature, depends only on the probability that each member gives to the true class,
(members, examples). So the functions here take these probabilities: for a large label space they can be computed once
and stored. They return weights (members,) with the sum 1. A member of weight 0 is not evaluated in predictions.
"""

import numpy as np
from numpy.typing import ArrayLike

from .. import metrics
from ..errors import ArgumentError
from ..metrics import Floats
from ..outputs import Outputs
from ..quality import blocks

_TOLERANCE = 1e-6  # nats
_ITERATIONS = 10_000
_ROUNDS = 100
_NEGLIGIBLE = 1e-3


def true_class_probabilities(outputs: Outputs) -> Floats:
    """(members, examples): the probability that each member gives to the label.

    Examples:
        >>> p = np.log([[[0.5, 0.5], [0.25, 0.75]]]).astype(np.float16)
        >>> true_class_probabilities(Outputs((("a", 4),), p, labels=np.array([0, 1]))).round(3)
        array([[0.5 , 0.75]])
    """
    found: Floats = np.empty(outputs.log_probabilities.shape[:2])
    for rows, p in blocks(outputs.log_probabilities):
        found[:, rows] = np.take_along_axis(p, outputs.labels[rows][None, :, None], axis=-1)[..., 0]
    return found


def simplex_weights(true_class: ArrayLike) -> Floats:
    """The weights of at least 0 with the sum 1 that minimise the NLL of the mixture, within 1e-6 nats.

    Weights are found by expectation-maximisation, which never increases the NLL. A weight below 0.001 is set to 0 if
    this costs no more than that tolerance.

    Examples:
        >>> simplex_weights([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]]).round(3)  # one example of three prefers the second
        array([0.708, 0.292])
    """
    p = _checked(true_class)
    weights = np.full(len(p), 1 / len(p))
    for _ in range(_ITERATIONS):
        ratio = (p / (weights @ p)).mean(-1)  # minus the gradient; at most 1 for every member at the minimum
        if ratio.max() - 1 <= _TOLERANCE:  # bounds the distance to the minimum, because the NLL is convex
            break
        weights *= ratio
    large = np.where(weights < _NEGLIGIBLE, 0, weights)
    if mixture_nll(p, large) <= mixture_nll(p, weights) + _TOLERANCE:
        weights = large
    return _normalised(weights)


def greedy_weights(true_class: ArrayLike) -> Floats:
    """Greedy selection with replacement (Caruana et al., 2004): weights in proportion to how often a member was added.

    In each of 100 rounds the member is added that gives the mean the lowest NLL. The best round is returned.

    Examples:
        >>> greedy_weights([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9], [0.2, 0.2, 0.2]]).round(2)
        array([0.71, 0.29, 0.  ])
    """
    p = _checked(true_class)
    counts, total = np.zeros(len(p)), np.zeros(p.shape[1])
    best, lowest = counts, np.inf
    for size in range(1, _ROUNDS + 1):
        candidates = metrics.surprise((total + p) / size).mean(-1)
        added = int(candidates.argmin())
        counts[added] += 1
        total += p[added]
        if candidates[added] < lowest - 1e-12:  # of equally good rounds, the first has the fewest members
            best, lowest = counts.copy(), candidates[added]
    return _normalised(best)


def mixture_nll(true_class: ArrayLike, weights: ArrayLike) -> float:
    """The NLL, in nats, of the weighted mean of members, from the probabilities of the true class.

    Examples:
        >>> round(mixture_nll([[0.4, 0.4], [0.6, 0.6]], weights=[1, 1]), 4)  # -log 0.5
        0.6931
    """
    shares = _normalised(np.asarray(weights, dtype=np.float64))
    return float(metrics.surprise(shares @ _checked(true_class)).mean())


def _normalised(weights: Floats) -> Floats:
    found: Floats = weights / weights.sum()
    return found


def _checked(true_class: ArrayLike) -> Floats:
    p = np.asarray(true_class, dtype=np.float64)
    if p.ndim != 2 or p.size == 0 or not (p.min() >= 0 and p.max() <= 1 + 1e-6):
        raise ArgumentError(
            "true_class must be probabilities (members, examples) from 0 to 1, at least one, "
            f"got {p.dtype} of shape {p.shape}"
            + (f" from {p.min():.4g} to {p.max():.4g}: exponentiate log-probabilities" if p.size else "")
        )
    return np.maximum(p, np.finfo(np.float32).tiny)  # as metrics.nll does
