"""Prediction: what a combination predicts for the examples of some outputs.

It follows the rules of `Ensemble.predict`, in float64 and in blocks of examples, so that memory stays bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import metrics
from .combination import Combination
from .outputs import Outputs
from .quality import Answers, Floats, Score, Whole, blocks, prefix_means


class Block(NamedTuple):
    """The predictions for some consecutive examples."""

    rows: slice
    probabilities: Floats
    """(examples, classes), after the temperature."""
    used: Whole
    """(examples,): how many members were evaluated."""
    mutual_information: Floats
    """(examples,): entropy of the mean of the evaluated members minus their mean entropy, in nats.

    Both are computed without the temperature.
    """


def predictions(outputs: Outputs, combination: Combination | None = None) -> Iterator[Block]:
    """The predictions of a combination, by default the mean of all members, in blocks of examples."""
    chosen, order, shares = _newest_first(outputs, combination)
    for rows, p in blocks(outputs.log_probabilities):
        p = p[order]
        mean, used = _until_confident(p, shares, chosen.exit_threshold)
        counted = np.where(np.arange(len(p))[:, None] < used, shares[:, None], 0.0)
        inside = (counted * metrics.entropy(p)).sum(0) / counted.sum(0)
        information = np.maximum(metrics.entropy(mean) - inside, 0)
        yield Block(rows, tempered(mean, chosen.temperature), used, information)


def prefixes(outputs: Outputs, combination: Combination | None = None) -> Answers:
    """The predictions of the mean of the newest k members of a combination, k = 1 … all, without a temperature."""
    _, order, shares = _newest_first(outputs, combination)
    found = Answers.empty(len(order), len(outputs.labels))
    for rows, p in blocks(outputs.log_probabilities):
        for k, mean in enumerate(prefix_means(p[order], shares)):
            found.fill(k, rows, mean, outputs.labels[rows])
    return found


def tempered(mean: Floats, temperature: float) -> Floats:
    """softmax(log(mean) / temperature) of probabilities (examples, classes).

    Examples:
        >>> tempered(np.array([[0.8, 0.2]]), temperature=0.5).round(4)
        array([[0.9412, 0.0588]])
    """
    if temperature == 1:
        return mean
    # relative to the largest, so that a power does not underflow for all classes
    powers: Floats = (mean / mean.max(-1, keepdims=True)) ** (1 / temperature)
    powers /= powers.sum(-1, keepdims=True)
    return powers


@dataclass(frozen=True)
class Prediction:
    """What a combination predicts for labelled examples: arrays of (examples,).

    Examples:
        >>> p = np.log([[[0.6, 0.4], [0.5, 0.5]], [[0.2, 0.8], [0.9, 0.1]]]).astype(np.float16)
        >>> outputs = Outputs((("a", 4), ("a", 8)), p, labels=np.array([1, 1]))
        >>> found = Prediction.of(outputs, Combination(outputs.members, exit_threshold=0.85))
        >>> found.choice, found.confidence.round(2), found.used
        (array([1, 0]), array([0.6, 0.9]), array([2, 1]))
        >>> found.score.error
        0.5
    """

    labels: Whole
    choice: Whole
    """The most probable class."""
    confidence: Floats
    """The probability of that class."""
    nll: Floats
    """Minus the logarithm of the label's probability, in nats."""
    brier: Floats
    """The squared distance from the one-hot label, summed over classes."""
    entropy: Floats
    """The entropy of the prediction, after the temperature, in nats."""
    mutual_information: Floats
    """The entropy of the mean minus the mean entropy of the evaluated members, in nats: how much they disagree.

    It does not depend on the temperature: with one below 1, it can be greater than `entropy`.
    """
    used: Whole
    """How many members were evaluated."""

    @classmethod
    def of(cls, outputs: Outputs, combination: Combination | None = None) -> "Prediction":
        """The predictions of a combination, by default the mean of all members."""
        labels, columns = outputs.labels, []
        for rows, p, used, information in predictions(outputs, combination):
            each, choice = np.arange(len(p)), p.argmax(-1)
            of_label = p[each, labels[rows]]
            brier = np.square(p).sum(-1) - 2 * of_label + 1
            entropy = metrics.entropy(p)
            columns.append((choice, p[each, choice], metrics.surprise(of_label), brier, entropy, information, used))
        return cls(labels, *(np.concatenate(column) for column in zip(*columns, strict=True)))

    def __repr__(self) -> str:
        score = ", ".join(f"{name}={value:.4g}" for name, value in vars(self.score).items())
        return f"Prediction(examples={len(self.labels)}, {score}, mean members={self.used.mean():.4g})"

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether each prediction is wrong."""
        found: NDArray[np.bool_] = self.choice != self.labels
        return found

    @property
    def score(self) -> Score:
        """Error, NLL and expected calibration error."""
        ece = metrics.calibration_error(self.confidence, ~self.wrong)
        return Score(float(self.wrong.mean()), float(self.nll.mean()), float(ece))


class Detection(NamedTuple):
    """AUROC of the detection of out-of-distribution examples by two kinds of uncertainty."""

    entropy: float
    mutual_information: float


def out_of_distribution(inside: Prediction, outside: Prediction) -> Detection:
    """How well uncertainty separates examples `outside` the training distribution from those `inside` it.

    0.5 is chance and 1 is perfect. The labels are not used. A combination without early exit is more informative:
    mutual information is 0 where one member was evaluated.
    """
    outsider = np.repeat([False, True], [len(inside.labels), len(outside.labels)])
    kinds = ("entropy", "mutual_information")
    pairs = (np.concatenate([getattr(inside, kind), getattr(outside, kind)]) for kind in kinds)
    return Detection(*(metrics.auroc(scores, outsider) for scores in pairs))


def _newest_first(outputs: Outputs, combination: Combination | None) -> tuple[Combination, list[int], Floats]:
    """The combination with explicit members, and their places in the outputs and weights in order of evaluation."""
    chosen = (combination or Combination(outputs.members)).among(outputs.members)
    order = [outputs.members.index(member) for member in reversed(chosen.members)]
    return chosen, order, np.array(chosen.shares[::-1])


def _until_confident(p: Floats, shares: Floats, threshold: float | None) -> tuple[Floats, Whole]:
    """The mean of the members evaluated, and their number (examples,), from (members, examples, classes)."""
    used = np.zeros(p.shape[1], np.int64)
    found = np.empty_like(p[0])
    for k, mean in enumerate(prefix_means(p, shares), 1):
        stops = used == 0
        if k < len(p):
            stops &= mean.max(-1) >= (np.inf if threshold is None else threshold)
        found[stops], used[stops] = mean[stops], k
    return found, used
