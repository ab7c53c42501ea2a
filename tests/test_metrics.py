from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import entropy, pearsonr
from sklearn.metrics import brier_score_loss, log_loss, recall_score, roc_auc_score, zero_one_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from snapens import metrics
from snapens.errors import ArgumentError


@pytest.fixture
def members():
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.full(7, 0.4), size=(3, 500))


@pytest.fixture
def labels():
    return np.random.default_rng(1).integers(0, 7, 500)


def test_error_equals_scikit_learns(members, labels):
    expected = [zero_one_loss(labels, p.argmax(-1)) for p in members]
    assert metrics.error(members, labels) == pytest.approx(expected)
    assert metrics.error(members[0], labels) == pytest.approx(expected[0])


def test_nll_equals_scikit_learns(members, labels):
    expected = [log_loss(labels, p, labels=range(7)) for p in members]
    assert metrics.nll(members, labels) == pytest.approx(expected, rel=1e-9)


def test_nll_of_an_impossible_label_is_large_and_finite():
    assert 80 < metrics.nll([[1.0, 0.0]], [1]) < 90


def test_brier_equals_scikit_learns(members, labels):
    expected = [brier_score_loss(labels, p, labels=range(7), scale_by_half=False) for p in members]
    assert metrics.brier(members, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_equals_torchmetrics(members, bins):
    # the first is right where it is least sure: where gaps have either sign, it matters what is in which bin
    sure = members[0].max(-1) > 0.7
    labels = np.where(sure, members[0].argmin(-1), members[0].argmax(-1))
    expected = [
        multiclass_calibration_error(torch.tensor(p), torch.tensor(labels), num_classes=7, n_bins=bins).item()
        for p in members
    ]
    assert metrics.ece(members, labels, bins) == pytest.approx(expected, abs=1e-6)
    if bins == 15:
        assert metrics.ece(members, labels) == pytest.approx(expected, abs=1e-6)


def test_the_edge_of_a_bin_is_in_the_lower_one():
    # two halves, both right, and a wrong 0.75: gaps of 1 and -0.75, which would add up to 0.25 in one bin
    p = [[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]
    assert metrics.ece(p, [0, 0, 0], bins=2) == pytest.approx(1.75 / 3)


def test_ece_of_a_certain_and_right_model_is_zero():
    assert metrics.ece(np.eye(4), np.arange(4)) == 0


def test_the_risk_at_each_coverage_by_hand():
    # by falling confidence: right, right, wrong, wrong
    curve = metrics.risk_coverage([0.9, 0.8, 0.7, 0.6], [False, False, True, True])
    assert curve.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert curve.mean() == pytest.approx((1 / 3 + 1 / 2) / 4)


def test_the_risk_of_equal_confidences_is_the_mean_over_all_orders():
    confidence, wrong = [0.9, 0.7, 0.7, 0.7, 0.2], [True, False, True, False, True]
    curves = []
    for middle in permutations(wrong[1:4]):
        ordered = [wrong[0], *middle, wrong[4]]
        curves.append([sum(ordered[:n]) / n for n in range(1, 6)])
    assert metrics.risk_coverage(confidence, wrong) == pytest.approx(np.mean(curves, axis=0))


def test_auroc_equals_scikit_learns_also_with_ties():
    rng = np.random.default_rng(0)
    positive = rng.random(300) < 0.3
    for scores in (rng.normal(size=300) + positive, rng.integers(0, 5, 300) + positive, np.zeros(300)):
        assert metrics.auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    assert metrics.auroc([1, 2, 3], [0, 0, 1]) == 1
    assert metrics.auroc([1, 2, 3], [1, 0, 0]) == 0


def test_the_error_of_each_class_is_one_minus_scikit_learns_recall(members, labels):
    wrong = members[0].argmax(-1) != labels
    expected = 1 - recall_score(labels, members[0].argmax(-1), average=None)
    assert metrics.class_errors(wrong, labels, classes=7) == pytest.approx(expected)


def test_correlation_equals_scipys(members):
    matrix = metrics.correlation(members)
    assert matrix.shape == (3, 3)
    for i in range(3):
        for j in range(3):
            assert matrix[i, j] == pytest.approx(pearsonr(members[i].ravel(), members[j].ravel()).statistic)
    assert metrics.correlation(members[:1]).shape == (1, 1)


def test_what_never_varies_correlates_with_nothing_but_itself():
    members = [[[0.5, 0.5], [0.5, 0.5]], [[0.8, 0.2], [0.4, 0.6]]]
    assert metrics.correlation(members).tolist() == [[1, 0], [0, 1]]


def test_disagreement_counts_different_votes(members):
    votes = members.argmax(-1)
    matrix = metrics.disagreement(members)
    assert matrix[0, 2] == sum(a != b for a, b in zip(votes[0], votes[2], strict=True)) / 500
    assert (matrix.diagonal() == 0).all()


def test_mutual_information_equals_scipys_entropies(members):
    expected = entropy(members.mean(0), axis=-1) - entropy(members, axis=-1).mean(0)
    assert metrics.mutual_information(members) == pytest.approx(expected)
    assert (metrics.mutual_information(members[:1]) == 0).all()


def test_entropy_equals_scipys(members):
    assert metrics.entropy(members) == pytest.approx(entropy(members, axis=-1))
    assert metrics.entropy([[1.0, 0.0]]).tolist() == [0]


def test_tensors_of_any_float_type_are_taken(members, labels):
    p = torch.tensor(members, dtype=torch.float32)
    assert metrics.nll(p, torch.tensor(labels)) == pytest.approx(metrics.nll(members, labels), rel=1e-5)
    halves = torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16, requires_grad=True)
    assert metrics.error(halves, [1]) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.error([[2.0, -1.0]], [0]), "got -1 to 2: apply a softmax to logits, or move the classes last"),
        (lambda: metrics.nll([[0.7, 0.7]], [0]), "sum to 1"),
        (lambda: metrics.nll([[np.nan, 0.7]], [0]), "sum to 1"),
        (lambda: metrics.error([[0.5, 0.5]], [0, 1]), "labels must have one entry per example"),
        (lambda: metrics.error([[0.5, 0.5]], [2]), "labels must be whole numbers from 0 to 1"),
        (lambda: metrics.error([[0.5, 0.5]] * 2, [0, 2]), "from 0 to 1, got int64 0 to 2"),
        (lambda: metrics.error([[0.5, 0.5]] * 2, [-1, 1]), "from 0 to 1, got int64 -1 to 1"),
        (lambda: metrics.error([[0.5, 0.5]], [0.0]), "labels must be whole numbers"),
        (lambda: metrics.error(np.empty((0, 2)), []), "at least one example"),
        (lambda: metrics.ece([[0.5, 0.5]], [0], bins=0), "bins must be at least 1, got 0"),
        (lambda: metrics.auroc([0.5, 0.6], [1, 1]), "leave at least one, got 2 of 2"),
        (lambda: metrics.auroc([0.5, 0.6], [0, 0]), "positive must mark at least one example"),
        (lambda: metrics.auroc([0.5, np.nan], [0, 1]), "scores must be finite, one number per entry of positive (2,)"),
        (lambda: metrics.auroc([], []), "positive must be true or false, one per example, got float64 of shape (0,)"),
        (lambda: metrics.auroc([0.5, 0.6], [0]), "one number per entry of positive (1,), got (2,)"),
        (lambda: metrics.auroc([0.5, 0.6], [0, 2]), "positive must be true or false"),
        (
            lambda: metrics.risk_coverage([[0.5]], [[1]]),
            "wrong must be true or false, one per example, got int64 of shape (1, 1)",
        ),
        (lambda: metrics.risk_coverage([0.5], [0.5]), "wrong must be true or false"),
        (lambda: metrics.class_errors([True], [0, 1], 2), "labels must have one entry per example"),
        (lambda: metrics.class_errors([True], [], 2), "labels must have one entry per example"),
        (lambda: metrics.class_errors([True], [2], 2), "whole numbers from 0 to 1, got int64 2 to 2"),
        (lambda: metrics.class_errors([0.5], [0], 2), "wrong must be true or false, one per example"),
        (
            lambda: metrics.correlation([[0.5, 0.5]]),
            r"members must be (members, examples, classes), got the shape (1, 2)",
        ),
    ],
)
def test_bad_arguments_are_rejected(call, words):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert words in str(caught.value)
