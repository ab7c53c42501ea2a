"""What a combination predicts, against plain float64 loops over examples; in blocks, and within bounded memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score

from snapens import Ensemble, Snapshots, quality
from snapens.combination import Combination
from snapens.errors import ArgumentError
from snapens.outputs import Outputs
from snapens.prediction import Prediction, out_of_distribution, predictions, prefixes
from snapens.weights import tensors

MEMBERS = tuple(("a", step) for step in (4, 8, 12, 16))


def outputs(examples=60, classes=5, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, examples)
    logits = rng.normal(size=(4, examples, classes)) + rng.normal(size=(1, examples, classes))
    logits[:, np.arange(examples), labels] += 1.5
    logits *= spread
    return Outputs(MEMBERS, (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float16), labels)


def naive(outputs, combination):
    """One example at a time: its probabilities, members used and mutual information."""
    weights = combination.weights or (1.0,) * len(combination.members)
    found = []
    for i in range(len(outputs.labels)):
        total, weight, used, inside = 0.0, 0.0, 0, 0.0
        for member, share in reversed(list(zip(combination.members, weights, strict=True))):
            if share == 0:
                continue
            row = np.exp(outputs.log_probabilities[outputs.members.index(member), i].astype(np.float64))
            row = row / row.sum()
            total, weight, used, inside = total + share * row, weight + share, used + 1, inside + share * entropy(row)
            if combination.exit_threshold is not None and max(total / weight) >= combination.exit_threshold:
                break
        powers = np.exp(np.log(total / weight) / combination.temperature)
        found.append((powers / powers.sum(), used, entropy(total / weight) - inside / weight))
    return [np.array(column) for column in zip(*found, strict=True)]


COMBINATIONS = [
    Combination(MEMBERS),
    Combination(MEMBERS[1:], temperature=1.7),
    Combination(MEMBERS, exit_threshold=0.6),
    Combination(MEMBERS, weights=(0.1, 0.0, 0.4, 0.5), temperature=0.6, exit_threshold=0.7),
    Combination((MEMBERS[3], MEMBERS[0]), weights=(3.0, 1.0), exit_threshold=0.5),  # the oldest is evaluated first
]


@pytest.mark.parametrize("block_bytes", [1, 8 * 4 * 5 * 7, 1 << 24])  # one example, seven examples, all at once
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_a_combination_predicts_what_a_loop_over_examples_finds(monkeypatch, combination, block_bytes):
    monkeypatch.setattr(quality, "_BLOCK_BYTES", block_bytes)
    given = outputs()
    p, used, information = naive(given, combination)
    assert np.concatenate([block.probabilities for block in predictions(given, combination)]) == pytest.approx(p)
    found = Prediction.of(given, combination)
    of_label = p[np.arange(60), given.labels]
    assert found.choice.tolist() == p.argmax(-1).tolist()
    assert found.confidence == pytest.approx(p.max(-1))
    assert found.nll == pytest.approx(-np.log(of_label))
    assert found.brier == pytest.approx(np.square(p - np.eye(5)[given.labels]).sum(-1))
    assert found.entropy == pytest.approx(entropy(p, axis=-1))
    assert found.mutual_information == pytest.approx(information, abs=1e-12)
    assert found.used.tolist() == used.tolist()
    assert found.wrong.tolist() == (p.argmax(-1) != given.labels).tolist()
    assert (found.score.error, found.score.nll) == pytest.approx((found.wrong.mean(), -np.log(of_label).mean()))


def test_the_default_is_the_mean_of_all_members_and_last_m_selects_members():
    given = outputs()
    assert np.array_equal(Prediction.of(given).confidence, Prediction.of(given, Combination(MEMBERS)).confidence)
    last = Prediction.of(given, Combination.last(2))
    assert np.array_equal(last.confidence, Prediction.of(given, Combination(MEMBERS[2:])).confidence)
    assert set(last.used) == {2}


def test_the_newest_k_members_have_the_predictions_of_shorter_combinations():
    given = outputs()
    found = prefixes(given, Combination(MEMBERS, weights=(1.0, 2.0, 3.0, 4.0)))
    for k in range(1, 5):
        expected = Prediction.of(given, Combination(MEMBERS[4 - k :], weights=tuple(range(5 - k, 5))))
        assert found.confidence[k - 1] == pytest.approx(expected.confidence)
        assert found.wrong[k - 1].tolist() == expected.wrong.tolist()


def test_a_class_that_every_member_excludes_keeps_the_probability_zero_at_any_temperature():
    log_probabilities = np.array([[[0.0, -np.inf, -np.inf]]], np.float16)
    given = Outputs((("a", 4),), log_probabilities, np.array([1]))
    for temperature in (0.1, 1.0, 10.0):
        found = Prediction.of(given, Combination(given.members, temperature=temperature))
        assert found.confidence.tolist() == [1]
        assert 80 < found.nll[0] < 90
        assert found.entropy.tolist() == [0]


def test_a_low_temperature_does_not_underflow():
    given = Outputs((("a", 4),), np.log(np.full((1, 1, 1000), 1e-3)).astype(np.float16), np.array([7]))
    found = Prediction.of(given, Combination(given.members, temperature=0.005))
    assert found.confidence == pytest.approx([1e-3])


def test_a_combination_predicts_for_outputs_what_the_ensemble_predicts_for_inputs(make_net):
    """Up to the float16 of the outputs."""
    snapshots = Snapshots()
    for step in (4, 8, 12):
        snapshots.commit(step, tensors(make_net()))
    ensemble = Ensemble(snapshots, make_net())
    x, labels = 3 * torch.randn(20, 4), torch.randint(0, 3, (20,))
    given = ensemble.outputs([(x, labels)])
    confidence = np.sort(prefixes(given).confidence[0])
    widest = int(np.argmax(np.diff(confidence)))  # far from all, so that rounding does not matter
    threshold = float(confidence[widest : widest + 2].mean())
    ensemble.combination = Combination(given.members, (0.2, 0.3, 0.5), temperature=0.7, exit_threshold=threshold)
    p = ensemble.predict([x])
    found = Prediction.of(given, ensemble.combination)
    assert (found.used == 1).sum() == 20 - (widest + 1)
    assert 0 < widest < 19
    assert found.choice.tolist() == p.argmax(-1).tolist()
    assert found.confidence == pytest.approx(p.max(-1).values.numpy(), abs=2e-3)


def test_members_that_the_outputs_lack_are_rejected():
    with pytest.raises(ArgumentError, match="members must be among"):
        Prediction.of(outputs(), Combination((("b", 4),)))


def test_out_of_distribution_examples_are_detected_as_scikit_learn_counts():
    inside, outside = Prediction.of(outputs(seed=1)), Prediction.of(outputs(seed=2, examples=30, spread=0.5))
    found = out_of_distribution(inside, outside)
    for kind in ("entropy", "mutual_information"):
        scores = np.concatenate([getattr(inside, kind), getattr(outside, kind)])
        assert getattr(found, kind) == pytest.approx(roc_auc_score([0] * 60 + [1] * 30, scores))
    assert found.entropy > 0.6


def test_memory_does_not_grow_with_the_product_of_members_examples_and_classes(monkeypatch):
    monkeypatch.setattr(quality, "_BLOCK_BYTES", 1 << 20)
    given = outputs(examples=20_000, classes=100)  # 64 MB in float64
    tracemalloc.start()
    try:
        Prediction.of(given, Combination(MEMBERS, temperature=2.0, exit_threshold=0.8))
        assert tracemalloc.get_traced_memory()[1] < 12e6
    finally:
        tracemalloc.stop()


def test_a_prediction_is_represented_by_its_score_in_one_line():
    log_probabilities = np.log(np.full((1, 4, 2), 0.5)).astype(np.float16)
    found = Prediction.of(Outputs((("a", 4),), log_probabilities, labels=np.array([0, 1, 1, 1])))
    # the first of equally probable classes is chosen; NLL: log 2; ECE: 0.5 - 0.25
    assert repr(found) == "Prediction(examples=4, error=0.75, nll=0.6931, ece=0.25, mean members=1)"
