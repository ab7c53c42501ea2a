"""The exit threshold: the confidence at which no further member needs to be evaluated."""

import numpy as np
from numpy.typing import NDArray

from ..combination import Combination
from ..errors import ArgumentError
from ..outputs import Outputs
from ..prediction import prefixes
from ..quality import Answers, Floats, Whole
from .held_out import check_held_out


def exit_threshold(outputs: Outputs, combination: Combination | None = None, loss: float = 0.0) -> float | None:
    """The lowest confidence down to which early exit does not measurably lose more than `loss` of the accuracy.

    Early exit is compared with the full combination on the same examples. A loss is measurable if the difference of the
    errors (fractions) exceeds `loss` by more than one paired standard error of this difference. Every observed
    confidence is tried as a threshold, from the highest on, until the loss is measurable: a lower threshold that looks
    good again is good by chance. None if this saves no work.

    Examples:
        >>> older = [[0.3, 0.7], [0.3, 0.7], [0.9, 0.1], [0.9, 0.1]]
        >>> newest = [[0.6, 0.4], [0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]  # wrong for the first two examples
        >>> p = np.log([older, newest]).astype(np.float16)
        >>> round(exit_threshold(Outputs((("a", 4), ("a", 8)), p, labels=np.array([1, 1, 0, 0]))), 2)
        0.7
    """
    check_held_out(outputs)
    if not 0 <= loss < 1:
        raise ArgumentError(f"exit_loss must be at least 0 and less than 1 (a fraction), or None, got {loss!r}")
    answers = prefixes(outputs, combination)
    members, examples = answers.wrong.shape
    if members == 1 or examples == 1:  # one example has no standard error
        return None
    confidence, saved, total, squares = _as_the_threshold_falls(answers)
    mean = total / examples
    error = np.sqrt(np.maximum(squares / examples - mean**2, 0) / (examples - 1))
    below = np.append(confidence[1:], -np.inf)
    together = below < confidence  # examples of equal confidence exit together
    measurable = np.flatnonzero(together & (mean - error > loss + 1e-12))
    accepted = np.flatnonzero(together[: measurable[0] if len(measurable) else None])
    if not len(accepted) or not saved[accepted[-1]]:
        return None
    lowest = accepted[-1]
    if lowest == len(confidence) - 1:
        return float(confidence[lowest])
    return float((confidence[lowest] + below[lowest]) / 2)  # between two confidences: rounding cannot change an exit


def _as_the_threshold_falls(answers: Answers) -> tuple[Floats, Whole, Whole, Whole]:
    """All confidences, falling; for each as the threshold: members saved, sum and sum of squares of the differences.

    The difference of an example is 1 if only its early exit is wrong, and −1 if only the full combination is wrong.
    The confidence of the newest k members moves the exit of an example to k unless a smaller k was more confident.
    """
    members, examples = answers.wrong.shape
    order = np.argsort(-answers.confidence[:-1], axis=0, kind="stable")  # of equal confidences, the smaller k first
    after = np.minimum.accumulate(order, axis=0)
    before = np.vstack([np.full(examples, members - 1), after[:-1]])
    difference = answers.wrong.astype(np.int64) - answers.wrong[-1]
    confidence = np.take_along_axis(answers.confidence, order, axis=0).ravel()
    falling = np.argsort(-confidence, kind="stable")

    def running(change: NDArray[np.int64]) -> Whole:
        return np.cumsum(change.ravel()[falling])

    def moved(values: Whole) -> Whole:
        return running(np.take_along_axis(values, after, axis=0) - np.take_along_axis(values, before, axis=0))

    return confidence[falling], running(before - after), moved(difference), moved(difference**2)
