"""Calibration: the temperature of a combination, and log-likelihoods that are compared at their best temperature."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..combination import Combination
from ..errors import ArgumentError
from ..outputs import Outputs
from ..quality import Floats, Whole, blocks
from .held_out import check_held_out

Mask = NDArray[np.bool_]

LIMIT = 10.0
"""Temperatures are searched from 1 / LIMIT to LIMIT: few or perfectly predicted examples have no finite optimum."""
SPLITS = 5
"""The default number of random divisions into two halves."""
_TOLERANCE = 1e-7  # relative; Newton's method then has twice the digits
_ITERATIONS = 100  # about 6 suffice, and 25 if the optimum is beyond the limit


def is_limit(temperature: float) -> bool:
    """Whether a fitted temperature is an end of the range, except for rounding."""
    return not 1.001 / LIMIT < temperature < LIMIT / 1.001


def fit_temperature(outputs: Outputs, combination: Combination | None = None) -> float:
    """The temperature with the lowest NLL for the prediction of all members of a combination, from 0.1 to 10.

    Examples:
        >>> p = np.log([[[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]]).astype(np.float16)  # too confident: 2 of 3 are right
        >>> round(fit_temperature(Outputs((("a", 4),), p, labels=np.array([0, 0, 1]))), 3)  # log 9 / log 2
        3.17
    """
    check_held_out(outputs)
    everything = np.ones((1, len(outputs.labels)), bool)
    return float(_temperatures(outputs, _weights(outputs, combination), everything)[0, 0])


def worthwhile_temperature(outputs: Outputs, combination: Combination | None = None) -> float:
    """The best temperature; 1 if temperatures of one half of the examples do not lower the NLL of the other half."""
    weights, halves = _weights(outputs, combination), random_halves(len(outputs.labels), SPLITS, seed=0)
    fitted, ones = _temperatures(outputs, weights, halves), np.ones((1, len(halves)))
    better = _nll(outputs, weights, fitted, ~halves).mean() < _nll(outputs, weights, ones, ~halves).mean()
    return fit_temperature(outputs, combination) if better else 1.0


def calibrated_log_likelihood(
    outputs: Outputs, combination: Combination | None = None, *, splits: int = SPLITS, seed: int = 0
) -> float:
    """The mean log-likelihood of the labels, in nats, at the best temperature; higher is better.

    The temperature and the exit threshold of the combination are not used. A temperature is fitted on one random half
    of `outputs` and applied to the other half, and the result is the mean over both directions and `splits` random
    divisions (Ashukha et al., 2020, "Pitfalls of in-domain uncertainty estimation"). So it is an evaluation, not a
    choice, and `outputs` may be the test part.
    """
    return float(_by_halves(outputs, _weights(outputs, combination), splits, seed)[0])


def deep_ensemble_equivalent(
    outputs: Outputs, networks: Sequence[Outputs], combination: Combination | None = None
) -> float:
    """How many independent networks have the same calibrated log-likelihood as a combination, interpolated.

    The last member of each of `networks` is an independent network, evaluated on the same examples. The value of n
    networks is the mean over all groups of n consecutive networks, where the first follows the last.
    Zero networks predict all classes with equal probability. The result is infinite if the combination is better than
    all networks together.
    """
    shape = outputs.log_probabilities.shape[1:]
    if not networks or any(
        other.log_probabilities.shape[1:] != shape or not np.array_equal(other.labels, outputs.labels)
        for other in networks
    ):
        raise ArgumentError(
            f"networks must be Outputs, at least one, with the classes and labels of outputs, got {len(networks)}: "
            "evaluate the independent networks on the same examples, in the same order"
        )
    count = len(networks)
    members = tuple((f"network {k}", 1) for k in range(count))
    pooled = Outputs(members, np.stack([other.log_probabilities[-1] for other in networks]), outputs.labels)
    ours = calibrated_log_likelihood(outputs, combination)
    below = -np.log(shape[-1])
    for size in range(1, count + 1):
        circle = [[(start + k) % count for k in range(size)] for start in range(count if size < count else 1)]
        groups = np.array([np.isin(np.arange(count), group) / size for group in circle])
        value = float(_by_halves(pooled, groups).mean())
        if value >= ours:
            return float(size - 1 + (max(ours - below, 0) / (value - below) if value > below + 1e-9 else 0))
        below = value
    return float("inf")


def _by_halves(outputs: Outputs, weights: Floats, splits: int = SPLITS, seed: int = 0) -> Floats:
    """(combinations,): the log-likelihood on halves, each at the temperature of the other half."""
    examples = len(outputs.labels)
    if examples < 2 or splits < 1:
        raise ArgumentError(
            f"outputs must have at least 2 examples and splits must be at least 1, got {examples} and {splits}: "
            "evaluate more examples"
        )
    halves = random_halves(examples, splits, seed)
    found: Floats = -_nll(outputs, weights, _temperatures(outputs, weights, halves), ~halves).mean(-1)
    return found


def random_halves(examples: int, splits: int, seed: int) -> Mask:
    """(2 × splits, examples): random halves, each followed by its complement."""
    rng, halves = np.random.default_rng(seed), []
    for _ in range(splits):
        half = np.zeros(examples, bool)
        half[rng.permutation(examples)[: examples // 2]] = True
        halves += [half, ~half]
    return np.array(halves)


def calibrated_nll(outputs: Outputs, weights: Floats) -> Floats:
    """(combinations,): the NLL of each row of weights (combinations, members) at its best temperature for outputs."""
    everything = np.ones((1, len(outputs.labels)), bool)
    return _nll(outputs, weights, _temperatures(outputs, weights, everything), everything)[:, 0]


def _weights(outputs: Outputs, combination: Combination | None) -> Floats:
    """(1, members): the weight of each member of the outputs, with the sum 1."""
    chosen = (combination or Combination(outputs.members)).among(outputs.members)
    shares = dict(zip(chosen.members, chosen.shares, strict=True))
    found: Floats = np.array([[shares.get(member, 0.0) for member in outputs.members]]) / sum(chosen.shares)
    return found


def _log_means(outputs: Outputs, weights: Floats, subsets: Mask) -> Iterator[tuple[tuple[int, int], Floats, Whole]]:
    """Blocks of ((combination, subset), log of the mean (examples, classes), labels)."""
    for rows, p in blocks(outputs.log_probabilities):
        for k, mean in enumerate(np.tensordot(weights, p, axes=1)):
            scores = np.log(np.maximum(mean, np.finfo(np.float32).tiny))  # clipped as in metrics.nll
            for j, subset in enumerate(subsets[:, rows]):
                yield (k, j), scores[subset], outputs.labels[rows][subset]


def _temperatures(outputs: Outputs, weights: Floats, subsets: Mask) -> Floats:
    """(combinations, subsets): the best temperatures for weights (combinations, members) and masks (subsets, examples).

    The NLL is convex in the inverse temperature. Newton's method finds the zero of its slope; a step that leaves the
    interval known to contain the zero is replaced by the middle of the interval.
    """
    inverse = np.ones((len(weights), len(subsets)))
    low, high = inverse / LIMIT, inverse * LIMIT
    for _ in range(_ITERATIONS):
        slope, curvature = _derivatives(outputs, weights, inverse, subsets)
        low, high = np.where(slope <= 0, inverse, low), np.where(slope >= 0, inverse, high)
        step = inverse - slope / np.maximum(curvature, np.finfo(np.float64).tiny)
        step = np.where((low <= step) & (step <= high), step, np.sqrt(low * high))
        moved, inverse = np.abs(step - inverse), step
        if (moved <= _TOLERANCE * inverse).all():
            break
    found: Floats = 1 / inverse
    return found


def _derivatives(outputs: Outputs, weights: Floats, inverse: Floats, subsets: Mask) -> tuple[Floats, Floats]:
    """(combinations, subsets), twice: the derivatives of the summed NLL by the inverse temperature."""
    slope, curvature = np.zeros_like(inverse), np.zeros_like(inverse)
    for case, scores, labels in _log_means(outputs, weights, subsets):
        p = np.exp(inverse[case] * (scores - scores.max(-1, keepdims=True)))
        p /= p.sum(-1, keepdims=True)
        mean = (p * scores).sum(-1)
        slope[case] += (mean - scores[np.arange(len(labels)), labels]).sum()
        curvature[case] += (p * np.square(scores - mean[:, None])).sum()
    return slope, curvature


def _nll(outputs: Outputs, weights: Floats, temperatures: Floats, subsets: Mask) -> Floats:
    """(combinations, subsets): the mean NLL at each temperature."""
    total = np.zeros_like(temperatures)
    for case, scores, labels in _log_means(outputs, weights, subsets):
        scores = (scores - scores.max(-1, keepdims=True)) / temperatures[case]
        total[case] += np.log(np.exp(scores).sum(-1)).sum() - scores[np.arange(len(labels)), labels].sum()
    found: Floats = total / subsets.sum(-1)
    return found
