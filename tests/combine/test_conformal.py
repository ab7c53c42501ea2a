"""Conformal sets: coverage by simulation and by hand."""

import numpy as np
import pytest

from snapens.combination import Combination
from snapens.combine import ConformalSets
from snapens.errors import ArgumentError
from snapens.outputs import Outputs
from snapens.prediction import Prediction


def test_the_threshold_by_hand():
    """Nine held-out examples: for a coverage of 0.8, ceil(10 · 0.8) = 8 of them must be covered."""
    of_label = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    p = np.stack([of_label, 1 - of_label], axis=-1)
    outputs = Outputs((("a", 1),), np.log(p).astype(np.float16)[None], np.zeros(9, np.int64))
    found = ConformalSets.fit(outputs, coverage=0.8)
    assert found.threshold == pytest.approx(0.1, abs=1e-4)
    assert found.measured_coverage(outputs) == 8 / 9
    assert found.sets(outputs)[0].tolist() == [False, True]
    assert found.sets(outputs)[4].tolist() == [True, True]
    assert ConformalSets.fit(outputs, coverage=0.9).threshold == pytest.approx(0.05, abs=1e-4)  # all nine


def test_rounding_errors_of_the_coverage_do_not_count():
    """0.07 · 100 is 7.000000000000001 in float64: 7 of 99 examples must be covered, not 8."""
    of_label = np.arange(1, 100) / 100
    p = np.stack([of_label, 1 - of_label], axis=-1)
    outputs = Outputs((("a", 1),), np.log(p).astype(np.float16)[None], np.zeros(99, np.int64))
    found = ConformalSets.fit(outputs, coverage=0.07)
    assert found.measured_coverage(outputs) == 7 / 99
    assert found.threshold == pytest.approx(0.93, abs=1e-3)


def test_the_mean_coverage_over_many_draws_is_the_stated_one(make_outputs):
    # split conformal with n held-out examples covers between 0.9 and 0.9 + 1 / (n + 1) on average
    coverages = []
    for seed in range(200):
        both = make_outputs(members=2, examples=49 + 200, seed=seed)
        held_out, new = (
            Outputs(both.members, both.log_probabilities[:, rows], both.labels[rows])
            for rows in (slice(49), slice(49, None))
        )
        combination = Combination(both.members, temperature=1.5, exit_threshold=0.7)
        coverages.append(ConformalSets.fit(held_out, combination, coverage=0.9).measured_coverage(new))
    error = np.std(coverages) / np.sqrt(200)
    assert 0.9 - 3 * error <= np.mean(coverages) <= 0.92 + 3 * error


def test_sets_hold_the_classes_that_are_probable_enough(make_outputs):
    held_out, new = make_outputs(seed=0), make_outputs(seed=1, part="test")
    found = ConformalSets.fit(held_out, Combination.last(2))
    sets, prediction = found.sets(new), Prediction.of(new, Combination.last(2))
    assert sets.shape == (60, 5)
    assert sets.any(-1).tolist() == (prediction.confidence >= found.threshold).tolist()
    assert found.coverage == 0.9


@pytest.mark.parametrize("coverage", [0, 1, 1.5, float("nan")])
def test_a_coverage_that_is_no_fraction_is_rejected(make_outputs, coverage):
    with pytest.raises(ArgumentError, match="coverage must be more than 0 and less than 1"):
        ConformalSets.fit(make_outputs(), coverage=coverage)


def test_more_coverage_than_the_held_out_examples_allow_is_rejected(make_outputs):
    with pytest.raises(ArgumentError, match=r"at most 0\.888889 with 8 held-out examples, got 0\.9: hold out more"):
        ConformalSets.fit(make_outputs(examples=8), coverage=0.9)
    ConformalSets.fit(make_outputs(examples=9), coverage=0.9)


def test_the_test_part_is_rejected(make_outputs):
    with pytest.raises(ArgumentError, match="got the part 'test'"):
        ConformalSets.fit(make_outputs(part="test"))
