"""The exit threshold: the confidence at which no further member needs to be evaluated."""

from dataclasses import replace

import numpy as np

from ..combination import Combination
from ..errors import ArgumentError
from ..outputs import Outputs
from ..prediction import predictions, prefixes
from ..quality import Answers, Floats, Whole
from .held_out import check_held_out

_EQUAL = 1e-12  # the largest difference of confidences that differ only by rounding


def exit_threshold(outputs: Outputs, combination: Combination | None = None, loss: float = 0.0) -> float | None:
    """The lowest threshold at which early exit raises the error (a fraction) by at most `loss`.

    Early exit is compared with the full combination on the same examples, for every observed confidence. The difference
    does not fall steadily with the threshold: by chance it may be small again after it was large. So a threshold is
    accepted only if no higher one raises the error by more than `loss` plus one paired standard error. Returns None
    if no accepted threshold saves work.

    Examples:
        >>> p = [[[0.3, 0.7], [0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]]
        >>> outputs = Outputs((("a", 4), ("a", 8)), np.log(p).astype(np.float16), labels=np.array([1, 0, 0]))
        >>> round(exit_threshold(outputs), 2)  # the first example needs both members, the others do not
        0.7
    """
    check_held_out(outputs)
    if not 0 <= loss < 1:
        raise ArgumentError(f"exit_loss must be at least 0 and less than 1 (a fraction), or None, got {loss!r}")
    answers = prefixes(outputs, combination)
    members, examples = answers.wrong.shape
    if members == 1:
        return None
    confidence, more_errors, changed = _as_the_threshold_falls(answers)
    below = np.append(confidence[1:], confidence[-1])
    possible = np.append(confidence[:-1] - below[:-1] > _EQUAL, True)  # examples of equal confidence exit together
    excess = more_errors - loss * examples - 1e-9
    measurable = np.maximum.accumulate(possible & (excess > np.sqrt(changed)))  # here or at a higher threshold
    accepted = possible & (excess <= 0) & ~measurable
    if not accepted.any():
        return None
    lowest = int(np.flatnonzero(accepted)[-1])
    middle = (confidence[lowest] + below[lowest]) / 2  # between two confidences: rounding cannot change an exit
    return min(float(middle), float(np.nextafter(1, 0)))


def with_early_exit(outputs: Outputs, combination: Combination) -> Outputs:
    """The predictions of a combination with early exit, before the temperature, as the outputs of one member."""
    means = [block.probabilities for block in predictions(outputs, replace(combination, temperature=1.0))]
    with np.errstate(divide="ignore"):  # the logarithm of 0
        scores = np.log(np.concatenate(means)).astype(np.float16)
    return Outputs(outputs.members[-1:], scores[None], outputs.labels, outputs.part)


def _as_the_threshold_falls(answers: Answers) -> tuple[Floats, Whole, Whole]:
    """All confidences, highest first; for a threshold at each: additional errors, and changed answers.

    An answer is changed if only one of early exit and the full combination is right; the square root of their number
    is the standard error of the additional errors. The confidence of the newest k members moves the exit of an example
    to k unless a smaller k was more confident.
    """
    members, examples = answers.wrong.shape
    order = np.argsort(-answers.confidence[:-1], axis=0, kind="stable")  # of equal confidences, the smaller k first
    after = np.minimum.accumulate(order, axis=0)
    before = np.vstack([np.full(examples, members - 1), after[:-1]])
    difference = answers.wrong.astype(np.int64) - answers.wrong[-1]
    confidence = np.take_along_axis(answers.confidence, order, axis=0).ravel()
    falling = np.argsort(-confidence, kind="stable")

    def moved(values: Whole) -> Whole:
        change = np.take_along_axis(values, after, axis=0) - np.take_along_axis(values, before, axis=0)
        return np.cumsum(change.ravel()[falling])

    return confidence[falling], moved(difference), moved(np.abs(difference))
