"""The exit threshold, against a search over all thresholds by a plain loop."""

import numpy as np
import pytest

from snapens.combination import Combination
from snapens.combine import exit_threshold
from snapens.errors import ArgumentError
from snapens.outputs import Outputs
from snapens.prediction import Prediction


def differences(outputs, combination, threshold):
    """Of each example: early exit is wrong (1) or right (-1) where the full combination is not; members used."""
    full = Prediction.of(outputs, combination).wrong.astype(float)
    found = Prediction.of(outputs, Combination(combination.members, combination.weights, exit_threshold=threshold))
    return found.wrong - full, found.used


def measured(outputs, combination, threshold):
    """The mean difference of the errors, and the mean number of members used."""
    difference, used = differences(outputs, combination, threshold)
    return difference.mean(), used.mean()


def by_search(outputs, combination, loss):
    """The lowest confidence of the newest k members, k < all, with no more errors and none measurable above it."""
    members, weights = combination.members, combination.weights or (1.0,) * len(combination.members)
    candidates = set()
    for k in range(1, len(members)):
        candidates |= set(Prediction.of(outputs, Combination(members[-k:], weights[-k:])).confidence)
    accepted = None
    for threshold in sorted(candidates, reverse=True):
        difference, used = differences(outputs, combination, threshold)
        excess = difference.mean() - loss
        if excess > np.sqrt((difference**2).sum()) / len(difference) + 1e-12:
            break
        if excess <= 1e-12 and used.mean() < len(members):
            accepted = threshold
    return accepted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.5])
def test_the_threshold_is_the_lowest_of_all_that_a_search_accepts(make_outputs, seed, loss):
    outputs = make_outputs(seed=seed, examples=80, member_noise=1.5)
    for combination in (Combination(outputs.members), Combination(outputs.members, weights=(0.1, 0.2, 0.3, 0.4))):
        expected, found = by_search(outputs, combination, loss), exit_threshold(outputs, combination, loss)
        if expected is None:
            assert found is None
        else:
            assert measured(outputs, combination, found) == pytest.approx(measured(outputs, combination, expected))
            assert found <= expected


def test_a_larger_loss_saves_more_members(make_outputs):
    outputs = make_outputs(examples=400, member_noise=1.5)
    thresholds = [exit_threshold(outputs, loss=loss) for loss in (0.0, 0.02, 0.1)]
    used = [Prediction.of(outputs, Combination(outputs.members, exit_threshold=one)).used.mean() for one in thresholds]
    assert used == sorted(used, reverse=True)
    assert used[0] > used[-1]


def test_the_threshold_is_in_the_middle_between_two_confidences():
    # the older member corrects the last example, at whose confidence of 0.6 early exit would be wrong
    newest, older = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]
    p = np.log([older, newest]).astype(np.float16)
    assert exit_threshold(Outputs((("a", 1), ("a", 2)), p, np.array([0, 0, 1]))) == pytest.approx(0.7, abs=1e-3)


def test_equal_confidences_exit_together():
    # the newest member gives 0.8 to five examples, of which the full mean corrects one: no exit is without a loss
    newest = np.tile([0.8, 0.2], (5, 1))
    older = np.vstack([np.tile([0.9, 0.1], (4, 1)), [[0.1, 0.9]]])
    outputs = Outputs(
        (("a", 1), ("a", 2)), np.log(np.stack([older, newest])).astype(np.float16), np.array([0, 0, 0, 0, 1])
    )
    assert exit_threshold(outputs) is None
    assert exit_threshold(outputs, loss=0.2) == pytest.approx(0.8, abs=1e-3)  # one of five
    assert exit_threshold(outputs, loss=0.19) is None


def test_confidences_that_differ_only_by_rounding_exit_together():
    random = np.random.default_rng(0)
    for _ in range(200):  # few different scores: many means are equal except for the order of their terms
        scores = random.integers(0, 3, (3, 20, 4)).astype(np.float64)
        p = (scores - np.log(np.exp(scores).sum(-1, keepdims=True))).astype(np.float16)
        outputs = Outputs(tuple(("a", step) for step in range(1, 4)), p, labels=random.integers(0, 4, 20))
        combination = Combination(outputs.members)
        if (threshold := exit_threshold(outputs, combination)) is not None:
            assert measured(outputs, combination, threshold)[0] <= 0


def test_one_member_has_no_threshold(make_outputs):
    assert exit_threshold(make_outputs(members=1)) is None


@pytest.mark.parametrize("loss", [-0.1, 1.0, float("nan")])
def test_a_loss_that_is_no_fraction_is_rejected(make_outputs, loss):
    with pytest.raises(ArgumentError, match="exit_loss must be at least 0 and less than 1"):
        exit_threshold(make_outputs(), loss=loss)


def test_the_test_part_is_rejected(make_outputs):
    with pytest.raises(ArgumentError, match="got the part 'test'"):
        exit_threshold(make_outputs(part="test"))


def test_examples_with_a_confidence_of_1_can_exit():
    p = np.array([[[0.4, 0.6], [0.4, 0.6]], [[1.0, 0.0], [1.0, 0.0]]])
    with np.errstate(divide="ignore"):
        outputs = Outputs((("a", 1), ("a", 2)), np.log(p).astype(np.float16), np.array([0, 0]))
    found = Prediction.of(outputs, Combination(outputs.members, exit_threshold=exit_threshold(outputs)))
    assert found.used.tolist() == [1, 1]
