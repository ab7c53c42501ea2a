"""Temperatures against scipy, and calibrated log-likelihoods against plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from snapens import quality
from snapens.combination import Combination
from snapens.combine import calibrated_log_likelihood, calibration, deep_ensemble_equivalent, fit, fit_temperature
from snapens.errors import ArgumentError
from snapens.outputs import Outputs


def log_mean(outputs, members=None, weights=None):
    p = np.exp(outputs.log_probabilities.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    return np.log(np.average(p if members is None else p[members], axis=0, weights=weights))


def nll(scores, labels, temperature):
    return -log_softmax(scores / temperature, axis=-1)[np.arange(len(labels)), labels].mean()


def best(scores, labels):
    found = minimize_scalar(
        lambda log_t: nll(scores, labels, np.exp(log_t)), bounds=np.log([0.1, 10]), options={"xatol": 1e-10}
    )
    return np.exp(found.x)


@pytest.mark.parametrize("block_bytes", [1, 1 << 24])
@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])  # underconfident to overconfident
def test_the_temperature_is_the_one_that_scipy_finds(make_outputs, monkeypatch, scale, block_bytes):
    monkeypatch.setattr(quality, "_BLOCK_BYTES", block_bytes)
    outputs = make_outputs(scale=scale, examples=150)
    assert fit_temperature(outputs) == pytest.approx(best(log_mean(outputs), outputs.labels), rel=1e-5)
    weighted = Combination(outputs.members[1:], weights=(1.0, 2.0, 3.0), temperature=5.0, exit_threshold=0.5)
    scores = log_mean(outputs, [1, 2, 3], (1, 2, 3))  # all members, whatever the temperature and the exit
    assert fit_temperature(outputs, weighted) == pytest.approx(best(scores, outputs.labels), rel=1e-5)


def test_the_temperature_stays_within_limits_when_no_finite_one_is_best(make_outputs):
    outputs = make_outputs(examples=20)
    right = log_mean(outputs).argmax(-1)
    assert fit_temperature(replace(outputs, labels=right)) == pytest.approx(0.1)
    never = log_mean(outputs).argmin(-1)
    assert fit_temperature(replace(outputs, labels=never)) == pytest.approx(10)


def test_predictions_that_never_vary_keep_the_temperature_one():
    outputs = Outputs((("a", 1),), np.log(np.full((1, 3, 4), 0.25)).astype(np.float16), np.array([0, 1, 2]))
    assert fit_temperature(outputs) == 1


def test_a_class_of_probability_zero_does_not_spoil_the_temperature():
    log_probabilities = np.array([[[0.0, -np.inf], [-0.1, -2.3], [-0.1, -2.3]]], np.float16)
    found = fit_temperature(Outputs((("a", 1),), log_probabilities, np.array([0, 0, 1])))
    assert 1 < found <= 10


def test_the_temperature_is_not_fitted_on_the_test_part(make_outputs):
    with pytest.raises(ArgumentError, match="got the part 'test'"):
        fit_temperature(make_outputs(part="test"))


@pytest.mark.parametrize(("sharpness", "fitted"), [(1.0, False), (1.5, True)])
def test_fit_keeps_the_temperature_1_unless_that_of_one_half_lowers_the_nll_of_the_other(sharpness, fitted):
    """The labels are drawn from the probabilities before the sharpening: without it, these are calibrated."""
    rng = np.random.default_rng(10)
    scores = log_softmax(3 * rng.normal(size=(200, 10)), axis=-1)
    labels = np.array([rng.choice(10, p=p) for p in np.exp(scores)])
    outputs = Outputs((("a", 1),), log_softmax(sharpness * scores, axis=-1)[None].astype(np.float16), labels)
    scores, changes = log_mean(outputs), []
    for half in calibration.random_halves(200, splits=5, seed=0):
        temperature = best(scores[half], labels[half])
        changes.append(nll(scores[~half], labels[~half], temperature) - nll(scores[~half], labels[~half], 1))
    assert (np.mean(changes) < 0) == fitted
    assert abs(best(scores, labels) - 1) > 0.02  # by chance, the best for these examples is never exactly 1
    assert fit(outputs).temperature == (pytest.approx(best(scores, labels), rel=1e-5) if fitted else 1)


def test_the_calibrated_log_likelihood_is_the_mean_over_random_halves(make_outputs):
    outputs = make_outputs(scale=3.0, examples=101, part="test")
    scores, values = log_mean(outputs), []
    for half in calibration.random_halves(101, splits=3, seed=7):
        temperature = best(scores[half], outputs.labels[half])
        values.append(-nll(scores[~half], outputs.labels[~half], temperature))
    found = calibrated_log_likelihood(outputs, splits=3, seed=7)
    assert found == pytest.approx(np.mean(values), rel=1e-6)
    assert found > -nll(scores, outputs.labels, 1.0)  # the members are overconfident


def test_random_halves_are_halves_and_every_example_is_in_one_of_each_pair():
    halves = calibration.random_halves(101, splits=3, seed=0)
    assert halves.shape == (6, 101)
    assert halves.sum(-1).tolist() == [50, 51] * 3
    assert (halves[::2] ^ halves[1::2]).all()
    assert not np.array_equal(halves[0], halves[2])


def networks(make_outputs, count, examples=400):
    """Independent networks, one Outputs each."""
    pooled = make_outputs(count, examples, part="test")
    rows = zip(pooled.members, pooled.log_probabilities, strict=True)
    return [replace(pooled, members=(member,), log_probabilities=row[None]) for member, row in rows]


def joined(outputs):
    rows = np.concatenate([other.log_probabilities for other in outputs])
    return Outputs(tuple(("ours", k + 1) for k in range(len(rows))), rows, outputs[0].labels)


def test_an_ensemble_of_the_networks_themselves_is_equivalent_to_their_number(make_outputs):
    baseline = networks(make_outputs, 4)
    assert deep_ensemble_equivalent(joined(baseline), baseline) == pytest.approx(4)


def test_the_equivalent_is_interpolated_between_means_over_groups_in_a_circle(make_outputs):
    baseline, ours = networks(make_outputs, 3), make_outputs(2, 400, part="test")
    value = calibrated_log_likelihood(ours)
    groups = {1: [(0,), (1,), (2,)], 2: [(0, 1), (1, 2), (0, 2)], 3: [(0, 1, 2)]}
    curve = [-np.log(5)] + [
        np.mean([calibrated_log_likelihood(joined([baseline[k] for k in group])) for group in groups[size]])
        for size in (1, 2, 3)
    ]
    assert curve == sorted(curve)
    assert curve[0] < value < curve[3]
    assert deep_ensemble_equivalent(ours, baseline) == pytest.approx(np.interp(value, curve, range(4)))


def test_the_equivalent_is_below_one_for_a_worse_network_and_infinite_beyond_all(make_outputs):
    baseline = networks(make_outputs, 3)
    labels = baseline[0].labels
    rng = np.random.default_rng(0)
    noisy = np.log(rng.dirichlet(np.ones(5), size=(1, 400))).astype(np.float16)
    worse = Outputs((("ours", 1),), noisy, labels)
    assert 0 <= deep_ensemble_equivalent(worse, baseline) < 0.2
    perfect = Outputs((("ours", 1),), np.log(0.9 * np.eye(5)[labels] + 0.02).astype(np.float16)[None], labels)
    assert deep_ensemble_equivalent(perfect, baseline) == float("inf")
    uniform = Outputs((("ours", 1),), np.log(np.full((1, 400, 5), 0.2)).astype(np.float16), labels)
    assert deep_ensemble_equivalent(uniform, [uniform]) == pytest.approx(0, abs=1e-6)


def test_bad_arguments_are_rejected(make_outputs):
    with pytest.raises(ArgumentError, match="at least 2 examples and splits must be at least 1, got 1 and 5"):
        calibrated_log_likelihood(make_outputs(examples=1))
    with pytest.raises(ArgumentError, match="got 60 and 0"):
        calibrated_log_likelihood(make_outputs(), splits=0)
    with pytest.raises(ArgumentError, match="networks must be Outputs, at least one"):
        deep_ensemble_equivalent(make_outputs(), [])
    with pytest.raises(ArgumentError, match="with the classes and labels of outputs, got 1"):
        deep_ensemble_equivalent(make_outputs(), [make_outputs(seed=1)])
    outputs, wider = make_outputs(), make_outputs(classes=6)
    with pytest.raises(ArgumentError, match="with the classes and labels of outputs"):
        deep_ensemble_equivalent(outputs, [replace(wider, labels=outputs.labels)])
