"""What `fit` chooses and what `gains` reports, against plain loops over the two halves."""

from dataclasses import replace

import numpy as np
import pytest

from snapens.combination import Combination
from snapens.combine import (
    MeanDifference,
    exit_threshold,
    fit,
    fit_temperature,
    gains,
    greedy_weights,
    simplex_weights,
)
from snapens.combine.calibration import random_halves
from snapens.combine.weights import true_class_probabilities
from snapens.errors import ArgumentError
from snapens.outputs import Outputs
from snapens.prediction import Prediction


def with_bad_first(make_outputs, examples=300):
    """Outputs whose oldest member guesses."""
    outputs = make_outputs(examples=examples, scale=2.0)
    log_probabilities = outputs.log_probabilities.copy()
    log_probabilities[0] = np.log(np.random.default_rng(9).dirichlet(np.ones(5), examples))
    return replace(outputs, log_probabilities=log_probabilities)


def test_by_default_the_exit_threshold_and_the_temperature_of_predictions_with_early_exit_are_fitted(make_outputs):
    outputs = make_outputs(examples=300, scale=3.0)
    found = fit(outputs)
    assert (found.members, found.weights) == (outputs.members, ())
    assert found.exit_threshold == exit_threshold(outputs)
    assert found.exit_threshold is not None
    p = outputs.probabilities[::-1]
    means = np.cumsum(p, 0) / np.arange(1, len(p) + 1)[:, None, None]  # of the newest 1, 2, … members
    stops = (means.max(-1) >= found.exit_threshold).argmax(0) + (means.max(-1) < found.exit_threshold).all(0) * -1
    answers = np.log(means[stops, np.arange(300)]).astype(np.float16)
    expected = fit_temperature(replace(outputs, members=outputs.members[-1:], log_probabilities=answers[None]))
    assert found.temperature == pytest.approx(expected, rel=1e-3)
    assert found.temperature > 1.5
    assert fit(outputs, exit_loss=None).temperature == fit_temperature(outputs)
    assert abs(found.temperature - fit_temperature(outputs)) > 0.01


def test_nothing_is_fitted_that_is_not_requested(make_outputs):
    outputs = make_outputs()
    assert fit(outputs, temperature=False, exit_loss=None) == Combination(outputs.members)
    for members in (2, np.int64(2)):
        assert fit(outputs, members=members, temperature=False, exit_loss=None) == Combination(outputs.members[2:])


@pytest.mark.parametrize("members", ["last", "drop-early"])
def test_an_early_member_that_guesses_is_left_out(make_outputs, members):
    outputs = with_bad_first(make_outputs)
    assert fit(outputs, members=members).members == outputs.members[1:]
    assert fit(outputs, members=members).weights == ()


def test_the_last_m_are_counted_in_each_run(make_outputs):
    outputs = make_outputs(members=6, runs=2)
    assert fit(outputs, members=1).members == (("run 0", 30), ("run 1", 30))


def test_greedy_selection_gives_members_and_weights(make_outputs):
    outputs = with_bad_first(make_outputs)
    expected = greedy_weights(true_class_probabilities(outputs))
    found = fit(outputs, members="greedy")
    assert found.members == tuple(m for m, weight in zip(outputs.members, expected, strict=True) if weight)
    assert found.weights == pytest.approx(expected[expected > 0])


def test_simplex_weights_are_those_of_the_chosen_members(make_outputs):
    outputs = with_bad_first(make_outputs)
    expected = simplex_weights(true_class_probabilities(outputs)[2:])
    assert fit(outputs, members=2, weights="simplex").weights == pytest.approx(expected)


def test_a_member_of_weight_zero_is_not_in_the_combination(make_outputs):
    outputs = make_outputs()
    log_probabilities = outputs.log_probabilities.copy()
    log_probabilities[0] = log_probabilities[0] * np.float16(0) - np.float16(np.log(5))  # equal probabilities
    outputs = replace(outputs, log_probabilities=log_probabilities)
    true_class = true_class_probabilities(outputs)
    found = fit(outputs, weights="simplex")
    assert len(found.members) == np.count_nonzero(simplex_weights(true_class))
    assert sum(found.weights) == pytest.approx(1)


@pytest.mark.parametrize("members", [1, "all", "last", "greedy", "drop-early"])
def test_one_member_is_enough(make_outputs, members):
    outputs = make_outputs(members=1)
    found = fit(outputs, members=members, weights="simplex")
    assert (found.members, found.weights, found.exit_threshold) == (outputs.members, (), None)


def test_each_gain_is_measured_on_the_half_that_was_not_fitted(make_outputs):
    outputs = with_bad_first(make_outputs)
    names = ("temperature", "members", "weights", "exit_threshold")
    options = [
        {"members": "all", "weights": "equal", "temperature": False, "exit_loss": None},
        {"members": "all", "weights": "equal", "temperature": True, "exit_loss": None},
        {"members": "drop-early", "weights": "equal", "temperature": True, "exit_loss": None},
        {"members": "drop-early", "weights": "simplex", "temperature": True, "exit_loss": None},
        {"members": "drop-early", "weights": "simplex", "temperature": True, "exit_loss": 0.02},
    ]
    half, rest = random_halves(300, splits=1, seed=3)
    measured = []
    for option in options:
        nll, wrong, used = np.empty(300), np.empty(300), np.empty(300)
        for fitted, other in ((half, rest), (rest, half)):
            parts = [
                Outputs(outputs.members, outputs.log_probabilities[:, rows], outputs.labels[rows])
                for rows in (fitted, other)
            ]
            found = Prediction.of(parts[1], fit(parts[0], **option))
            nll[other], wrong[other], used[other] = found.nll, found.wrong, found.used
        measured.append((nll, wrong, used))
    found = gains(outputs, members="drop-early", weights="simplex", exit_loss=0.02, seed=3)
    assert tuple(gain.choice for gain in found) == names
    for gain, before, now in zip(found, measured[:-1], measured[1:], strict=True):
        for value, difference, k in ((gain.nll, gain.nll_gain, 0), (gain.error, gain.error_gain, 1)):
            assert value == pytest.approx(now[k].mean())
            gained = before[k] - now[k]
            expected = (gained.mean(), gained.std(ddof=1) / np.sqrt(300))
            assert tuple(difference) == pytest.approx(expected, abs=1e-12)
        assert gain.used == pytest.approx(now[2].mean())


def test_leaving_out_a_member_that_guesses_gains_measurably(make_outputs):
    temperature, members, exits = gains(with_bad_first(make_outputs, examples=1000), members="last")
    assert members.nll_gain.mean > 3 * members.nll_gain.standard_error
    assert members.used == 3
    assert temperature.error_gain == (0, 0)  # a temperature does not change the most probable class
    assert 1 < exits.used < 3


def test_members_that_are_all_alike_gain_nothing_measurable_from_a_choice(make_outputs):
    """On the examples that they were fitted on, weights always gain; on others they lose or gain within the noise."""
    outputs = make_outputs(examples=100, members=6)
    (weights,) = gains(outputs, weights="simplex", temperature=False, exit_loss=None)
    assert weights.nll_gain.mean < 2 * weights.nll_gain.standard_error


def test_nothing_fitted_has_no_gain(make_outputs):
    assert gains(make_outputs(), temperature=False, exit_loss=None) == ()


@pytest.mark.parametrize("function", [fit, gains])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"members": "best"}, "members must be a whole number, 'all', 'last', 'greedy' or 'drop-early', got 'best'"),
        ({"members": True}, "members must be a whole number of at least 1, got True"),
        ({"members": [1]}, "got [1]"),
        ({"members": 5}, "members must be between 1 and 4"),
        ({"members": 0}, "members must be a whole number of at least 1, got 0"),
        ({"weights": "best"}, "weights must be 'equal' or 'simplex', got 'best'"),
        ({"exit_loss": -0.1}, "exit_loss must be at least 0 and less than 1 (a fraction), or None, got -0.1"),
    ],
)
def test_unknown_choices_are_rejected(make_outputs, function, options, words):
    with pytest.raises(ArgumentError) as caught:
        function(make_outputs(), **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("function", [fit, gains])
def test_nothing_is_chosen_on_the_test_set(make_outputs, function):
    with pytest.raises(ArgumentError, match=r"got the part 'test': results on data .* hold out a part of the training"):
        function(make_outputs(part="test"))
    with pytest.raises(ArgumentError, match=r"outputs must be Outputs, got None: use ensemble\.outputs"):
        function(None)


@pytest.mark.parametrize("examples", [99, 100])
def test_few_examples_fit_neither_temperature_nor_early_exit_and_log_a_warning(make_outputs, caplog, examples):
    outputs = make_outputs(examples=examples, scale=3.0)
    assert exit_threshold(outputs, Combination(outputs.members, temperature=fit_temperature(outputs))) is not None
    found, measured = fit(outputs), [gain.choice for gain in gains(outputs)]
    warning = "99 held-out examples are too few to fit a temperature or early exit: hold out at least 100"
    if examples == 99:
        assert (found, measured, caplog.messages) == (Combination(outputs.members), [], [warning])
    else:  # although the halves that gains are measured on have fewer
        assert found.exit_threshold is not None
        assert (measured, caplog.messages) == (["temperature", "exit_threshold"], [])


@pytest.mark.parametrize(("right", "end"), [(True, 0.1), (False, 10)])
def test_a_temperature_at_the_end_of_its_range_is_fitted_with_a_warning(caplog, right, end):
    """If all predictions are right, the optimum is 0; if all are wrong, it is infinite."""
    p = np.log([[[0.9, 0.1]] * 200]).astype(np.float16)
    outputs = Outputs((("a", 4),), p, np.full(200, 0 if right else 1))
    assert fit(outputs).temperature == pytest.approx(end)
    (message,) = caplog.messages
    assert f"the temperature {end} is an end of the range from 0.1 to 10, because the held-out" in message
    assert fit(outputs, temperature=False).temperature == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ((0.02641, 0.01389), "+0.026 ± 0.014"),
        ((-0.00123, 0.00083), "-0.00123 ± 0.00083"),
        ((12.3, 40.2), "+12 ± 40"),
        ((0.0, 0.0), "+0.000 ± 0.000"),
    ],
)
def test_a_difference_is_printed_with_its_standard_error(difference, words):
    assert str(MeanDifference(*difference)) == f"{MeanDifference(*difference)}" == words


def test_one_example_has_no_measurable_gain(make_outputs):
    with pytest.raises(ArgumentError, match="at least 2 examples to measure gains, got 1"):
        gains(make_outputs(examples=1))
