"""Metrics: the quality of predictions, computed in float64.

Probabilities are arrays or tensors of (…, examples, classes): (examples, classes) gives one number,
(members, examples, classes) one per member. Labels are (examples,) class indices. Errors are fractions, not percent.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ArgumentError

Floats = NDArray[np.float64]


def error(probabilities: ArrayLike, labels: ArrayLike) -> Any:
    """The share of examples whose most probable class is wrong.

    Examples:
        >>> float(error([[0.9, 0.1], [0.6, 0.4]], labels=[0, 1]))
        0.5
    """
    p, y = _checked(probabilities, labels)
    return np.mean(p.argmax(-1) != y, axis=-1)


def nll(probabilities: ArrayLike, labels: ArrayLike) -> Any:
    """The mean negative log-likelihood of the labels, in nats.

    Probabilities are clipped to at least the smallest normal float32 number.

    Examples:
        >>> round(float(nll([[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])), 4)
        0.5108
    """
    return np.mean(surprise(_of_label(*_checked(probabilities, labels))), axis=-1)


def surprise(p: Floats) -> Floats:
    """−log p, in nats, of each probability, clipped to at least the smallest normal float32 number.

    Examples:
        >>> surprise(np.array([1.0, 0.5])).round(4) + 0
        array([0.    , 0.6931])
    """
    found: Floats = -np.log(np.maximum(p, np.finfo(np.float32).tiny))
    return found


def brier(probabilities: ArrayLike, labels: ArrayLike) -> Any:
    """The mean over examples of the squared distance from the one-hot label, summed over classes (0 to 2).

    Examples:
        >>> round(float(brier([[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])), 4)
        0.37
    """
    p, y = _checked(probabilities, labels)
    return np.mean(np.square(p).sum(-1) - 2 * _of_label(p, y) + 1, axis=-1)


def ece(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> Any:
    """The expected calibration error: |accuracy − confidence| in bins of equal width, weighted by their examples.

    Examples:
        >>> round(float(ece([[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])), 4)
        0.35
    """
    p, y = _checked(probabilities, labels)
    return calibration_error(p.max(-1), p.argmax(-1) == y, bins)


def calibration_error(confidence: Floats, right: NDArray[np.bool_], bins: int = 15) -> Any:
    """Like `ece`, from the confidence (…, examples) and whether each prediction is right (…, examples).

    Examples:
        >>> round(float(calibration_error(np.array([0.9, 0.6]), np.array([True, False]))), 4)
        0.35
    """
    if bins < 1:
        raise ArgumentError(f"bins must be at least 1, got {bins}")
    bin_of = confidence_bins(confidence, bins)
    gaps = [np.abs(np.where(bin_of == k, right - confidence, 0).sum(-1)) for k in range(bins)]
    return np.sum(gaps, axis=0) / confidence.shape[-1]


def confidence_bins(confidence: Floats, bins: int = 15) -> NDArray[np.int64]:
    """The bin of each confidence, from 0: bins have equal width, and each includes its upper limit.

    Examples:
        >>> confidence_bins(np.array([0.5, 0.51, 1.0]), bins=2)
        array([0, 1, 1])
    """
    found: NDArray[np.int64] = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(np.int64)
    return found


def class_errors(wrong: ArrayLike, labels: ArrayLike, classes: int) -> Floats:
    """(classes,): the share of the examples of each class that is predicted wrongly; NaN for a class without examples.

    Examples:
        >>> class_errors([False, True, False, True], labels=[0, 1, 0, 0], classes=3).round(4)
        array([0.3333, 1.    ,    nan])
    """
    marked = _marks("wrong", wrong)
    y = _labels(labels, len(marked), classes)
    count, found = np.bincount(y, minlength=classes), np.bincount(y, marked, minlength=classes)
    errors: Floats = np.divide(found, count, out=np.full(count.shape, np.nan), where=count > 0)
    return errors


def risk_coverage(confidence: ArrayLike, wrong: ArrayLike) -> Floats:
    """(examples,): the error on the n most confident examples, for n = 1 … N: the risk at coverage n / N.

    Among examples of equal confidence, it is the mean over all orders. The mean of this curve is the area under
    the risk-coverage curve (AURC) of selective prediction; lower is better.

    Examples:
        >>> risk_coverage([0.9, 0.6, 0.7, 0.5], wrong=[False, True, False, False]).round(4)
        array([0.    , 0.    , 0.3333, 0.25  ])
    """
    score, errors = _scores_and_marks("confidence", confidence, "wrong", wrong)
    _, group, count = np.unique(-score, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, errors) / count)[np.sort(group)]
    found: Floats = np.cumsum(expected) / np.arange(1, score.size + 1)
    return found


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """The probability that a positive example has a higher score than a negative one; a tie counts one half.

    This is the area under the ROC curve. For detecting out-of-distribution examples or errors, the score is an
    uncertainty (`entropy`, `mutual_information`), and these examples are the positive ones.

    Examples:
        >>> auroc([0.1, 0.4, 0.4, 0.8], positive=[False, False, True, True])
        0.875
    """
    score, target = _scores_and_marks("scores", scores, "positive", positive)
    positives = int(target.sum())
    negatives = target.size - positives
    if not positives or not negatives:
        raise ArgumentError(
            f"positive must mark at least one example and leave at least one, got {positives} of {target.size}"
        )
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]  # from 1; equal scores share the mean of their ranks
    return float((rank @ target - positives * (positives + 1) / 2) / (positives * negatives))


def correlation(members: ArrayLike) -> Floats:
    """(members, members): the Pearson correlation of two members' softmax over examples × classes (Figure 6).

    It is 0 for a member that gives every class of every example the same probability.

    Examples:
        >>> correlation([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.4, 0.6]]]).round(4)
        array([[1.    , 0.8437],
               [0.8437, 1.    ]])
    """
    return correlation_from(comoments(_members(members)))


def comoments(p: Floats) -> Floats:
    """(members + 1, members + 1): the products, sums and count that determine a correlation.

    The results for several blocks of examples add up to the result for all examples.
    """
    rows = p.reshape(len(p), -1) - 1 / p.shape[-1]  # near the mean, so that differences of products keep their digits
    products: Floats = np.zeros((len(p) + 1, len(p) + 1))
    products[:-1, :-1] = rows @ rows.T
    products[-1, :-1] = products[:-1, -1] = rows.sum(-1)
    products[-1, -1] = rows.shape[-1]
    return products


def correlation_from(comoments: Floats) -> Floats:
    """(members, members): the correlation, from the result of `comoments`."""
    sums, count = comoments[-1, :-1], comoments[-1, -1]
    covariance = (comoments[:-1, :-1] - np.outer(sums, sums) / count) / count
    variance = np.diag(covariance)
    constant = variance < 1e-30  # rounding
    scale = np.sqrt(np.where(constant, 1, variance))
    found: Floats = np.clip(covariance / np.outer(scale, scale), -1, 1)
    found[constant] = found[:, constant] = 0
    np.fill_diagonal(found, 1)
    return found


def disagreement(members: ArrayLike) -> Floats:
    """(members, members): the share of examples for which two members predict different classes.

    Examples:
        >>> disagreement([[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.4, 0.6]]])
        array([[0. , 0.5],
               [0.5, 0. ]])
    """
    return share_that_differs(_members(members).argmax(-1))


def share_that_differs(choices: NDArray[np.int64]) -> Floats:
    """(members, members): like `disagreement`, from the predicted classes (members, examples).

    Examples:
        >>> share_that_differs(np.array([[0, 0], [0, 1]]))
        array([[0. , 0.5],
               [0.5, 0. ]])
    """
    shares: Floats = np.mean(choices[:, None] != choices[None], axis=-1)
    return shares


def mutual_information(members: ArrayLike) -> Floats:
    """(examples,): entropy of the mean minus the mean entropy, in nats: how much the members disagree.

    Examples:
        >>> mutual_information([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]).round(4)
        array([0.6931, 0.    ])
    """
    p = _members(members)
    information: Floats = np.maximum(entropy(p.mean(0)) - entropy(p).mean(0), 0)
    return information


def entropy(probabilities: ArrayLike) -> Floats:
    """(…, examples): the entropy of each prediction, in nats: how uncertain it is.

    Examples:
        >>> entropy([[1.0, 0.0], [0.5, 0.5]]).round(4)
        array([0.    , 0.6931])
    """
    p = _probabilities(probabilities)
    found: Floats = np.maximum(-np.sum(p * np.log(p, where=p > 0, out=np.zeros_like(p)), axis=-1), 0)
    return found


def _of_label(p: Floats, y: NDArray[np.int64]) -> Floats:
    chosen: Floats = np.take_along_axis(p, np.broadcast_to(y, p.shape[:-1])[..., None], axis=-1)[..., 0]
    return chosen


def _scores_and_marks(name: str, scores: ArrayLike, mark: str, marks: ArrayLike) -> tuple[Floats, Floats]:
    x, marked = np.asarray(scores, dtype=np.float64), _marks(mark, marks)
    if x.shape != marked.shape or not np.isfinite(x).all():
        raise ArgumentError(f"{name} must be finite, one number per entry of {mark} {marked.shape}, got {x.shape}")
    return x, marked


def _marks(name: str, values: ArrayLike) -> Floats:
    marked = np.asarray(values)
    if marked.ndim != 1 or marked.size == 0 or not np.isin(marked, (0, 1)).all():
        raise ArgumentError(
            f"{name} must be true or false, one per example, got {marked.dtype} of shape {marked.shape}"
        )
    return marked.astype(np.float64)


def _members(members: ArrayLike) -> Floats:
    p = _probabilities(members)
    if p.ndim != 3:
        raise ArgumentError(f"members must be (members, examples, classes), got the shape {p.shape}")
    return p


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    p = _probabilities(probabilities)
    return p, _labels(labels, *p.shape[-2:])


def _labels(labels: ArrayLike, examples: int, classes: int) -> NDArray[np.int64]:
    y = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels)
    if y.shape != (examples,):
        raise ArgumentError(f"labels must have one entry per example ({examples}), got the shape {y.shape}")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= classes:
        raise ArgumentError(
            f"labels must be whole numbers from 0 to {classes - 1}, got {y.dtype} {y.min()} to {y.max()}: convert them "
            "to class indices"
        )
    return y.astype(np.int64)


def _probabilities(values: ArrayLike) -> Floats:
    if hasattr(values, "detach"):  # a tensor of any type on any device
        values = values.detach().cpu().double()
    p = np.asarray(values, dtype=np.float64)
    if p.size == 0 or p.ndim < 2:
        raise ArgumentError(
            f"probabilities must be (…, examples, classes) with at least one example, got the shape {p.shape}"
        )
    if not (p.min() >= 0 and np.abs(p.sum(-1) - 1).max() < 1e-2):
        raise ArgumentError(
            "probabilities must be at least 0 and sum to 1 over the last axis, "
            f"got {p.min():.4g} to {p.max():.4g}: apply a softmax to logits, or move the classes last"
        )
    return p
