"""The exit threshold, against a search over all thresholds by a plain loop."""

import numpy as np
import pytest

from snapens.combination import Combination
from snapens.combine import exit_threshold
from snapens.errors import ArgumentError
from snapens.outputs import Outputs
from snapens.prediction import Prediction


def measured(outputs, combination, threshold):
    """The mean difference of the errors, its paired standard error, and the mean number of members used."""
    full = Prediction.of(outputs, combination).wrong.astype(float)
    found = Prediction.of(outputs, Combination(combination.members, combination.weights, exit_threshold=threshold))
    difference = found.wrong - full
    return difference.mean(), difference.std(ddof=1) / np.sqrt(len(full)), found.used.mean()


def by_search(outputs, combination, loss):
    """The last confidence before the loss is measurable, of all that the newest k members have, k < all."""
    members, weights = combination.members, combination.weights or (1.0,) * len(combination.members)
    candidates = set()
    for k in range(1, len(members)):
        candidates |= set(Prediction.of(outputs, Combination(members[-k:], weights[-k:])).confidence)
    found = None
    for threshold in sorted(candidates, reverse=True):
        mean, error, _ = measured(outputs, combination, threshold)
        if mean - error > loss + 1e-12:
            break
        found = threshold
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.5])
def test_the_threshold_is_the_last_before_a_search_finds_a_measurable_loss(make_outputs, seed, loss):
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


def test_equal_confidences_exit_together():
    # the newest member gives 0.8 to eight examples; the full mean corrects one or two of them
    newest = np.tile([0.8, 0.2], (8, 1))
    for corrected, loss, expected in ((1, 0.0, 0.8), (2, 0.0, None), (2, 0.1, 0.8), (2, 0.08, None)):
        older = np.vstack([np.tile([0.9, 0.1], (8 - corrected, 1)), np.tile([0.1, 0.9], (corrected, 1))])
        labels = np.repeat([0, 1], [8 - corrected, corrected])
        outputs = Outputs((("a", 1), ("a", 2)), np.log(np.stack([older, newest])).astype(np.float16), labels)
        # losses of 1/8 ± 0.125 and 2/8 ± 0.164
        found = exit_threshold(outputs, loss=loss)
        assert found == (expected and pytest.approx(expected, abs=1e-3))


def test_one_member_and_one_example_have_no_threshold(make_outputs):
    assert exit_threshold(make_outputs(members=1)) is None
    assert exit_threshold(make_outputs(examples=1)) is None


@pytest.mark.parametrize("loss", [-0.1, 1.0, float("nan")])
def test_a_loss_that_is_no_fraction_is_rejected(make_outputs, loss):
    with pytest.raises(ArgumentError, match="exit_loss must be at least 0 and less than 1"):
        exit_threshold(make_outputs(), loss=loss)


def test_the_test_part_is_rejected(make_outputs):
    with pytest.raises(ArgumentError, match="got the part 'test'"):
        exit_threshold(make_outputs(part="test"))
