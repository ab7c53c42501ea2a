"""Weights from the probabilities of the true class, against scipy, exhaustive search and hand calculations."""

import numpy as np
import pytest
from scipy.optimize import minimize

from snapens.combine.weights import (
    greedy_weights,
    mixture_nll,
    simplex_weights,
    true_class_probabilities,
)
from snapens.errors import ArgumentError


def nll(p, weights):
    return -np.mean(np.log(np.asarray(weights) @ np.asarray(p) / np.sum(weights)))


@pytest.fixture
def true_class():
    """Five members of very different quality on 400 examples."""
    rng = np.random.default_rng(0)
    return np.stack([rng.beta(a, b, 400) for a, b in ((2, 1), (1, 1), (3, 1), (1, 4), (2, 2))])


def test_the_probability_of_the_true_class_is_that_of_each_label(make_outputs):
    outputs = make_outputs()
    found = true_class_probabilities(outputs)
    assert found.shape == (4, 60)
    for k in range(4):
        for i, label in enumerate(outputs.labels):
            row = np.exp(outputs.log_probabilities[k, i].astype(np.float64))
            assert found[k, i] == pytest.approx(row[label] / row.sum())


def test_the_nll_of_a_mixture_is_that_of_the_weighted_mean(true_class):
    assert mixture_nll(true_class, [1, 2, 3, 4, 5]) == pytest.approx(nll(true_class, [1, 2, 3, 4, 5]))


def test_simplex_weights_have_the_nll_that_scipy_finds(true_class):
    best = minimize(
        lambda w: nll(true_class, w),
        np.full(5, 0.2),
        method="SLSQP",
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    found = simplex_weights(true_class)
    assert found.sum() == pytest.approx(1)
    assert nll(true_class, found) <= best.fun + 2e-6
    assert found == pytest.approx(best.x, abs=5e-3)


def test_a_member_without_use_has_the_simplex_weight_zero():
    p = np.array([[0.9, 0.8, 0.7, 0.2], [0.2, 0.3, 0.3, 0.9], [0.1, 0.1, 0.1, 0.1]])
    found = simplex_weights(p)
    assert found[2] == 0
    assert (found[:2] > 0.1).all()


def test_a_small_weight_that_an_example_needs_is_kept():
    """Only the second member explains one of 2000 examples: the best weights are the shares of the examples."""
    needs = np.arange(2000) == 0
    assert simplex_weights([~needs, needs]) == pytest.approx([0.9995, 0.0005], rel=1e-3)


def test_simplex_weights_of_one_member_and_of_equal_members():
    assert simplex_weights([[0.5, 0.1]]).tolist() == [1]
    assert simplex_weights([[0.5, 0.1], [0.5, 0.1]]) == pytest.approx([0.5, 0.5])


def test_an_example_that_no_member_can_explain_does_not_spoil_the_weights():
    assert simplex_weights([[0.9, 0.0], [0.3, 0.0]]) == pytest.approx([1, 0])


def test_greedy_selection_equals_a_plain_loop(true_class):
    chosen, best, lowest = [], [], np.inf
    for _ in range(100):
        candidates = [np.mean(-np.log(np.mean(true_class[[*chosen, k]], axis=0))) for k in range(5)]
        chosen.append(int(np.argmin(candidates)))
        if min(candidates) < lowest - 1e-12:
            best, lowest = list(chosen), min(candidates)
    expected = np.bincount(best, minlength=5) / len(best)
    assert greedy_weights(true_class) == pytest.approx(expected)
    assert nll(true_class, expected) < nll(true_class, np.ones(5))


def test_greedy_selection_of_one_dominant_member_stops_at_one():
    assert greedy_weights([[0.2, 0.2], [0.9, 0.9], [0.3, 0.1]]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("true_class", "words"),
    [
        ([0.5, 0.5], "true_class must be probabilities (members, examples) from 0 to 1"),
        (np.empty((2, 0)), "at least one, got float64 of shape (2, 0)"),
        ([[-0.7, -0.1]], "from -0.7 to -0.1: exponentiate log-probabilities"),
        ([[np.nan, 0.1]], "from 0 to 1"),
    ],
)
def test_other_values_than_probabilities_are_rejected(true_class, words):
    for function in (simplex_weights, greedy_weights):
        with pytest.raises(ArgumentError) as caught:
            function(true_class)
        assert words in str(caught.value)
