"""How good members are, against plain float64 loops over examples; in blocks, and within bounded memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from conftest import score

from snapens import quality as module
from snapens.lab.records.run import Run
from snapens.quality import THRESHOLDS, Quality

FINISHED = Path(__file__).parent / "golden/format1/finished"
GOLDEN = {
    "alone": [
        {"error": 0.85, "nll": 1.3924149992010704, "ece": 0.2445176886675962},
        {"error": 0.75, "nll": 1.4673459696960292, "ece": 0.15889794302057675},
        {"error": 0.75, "nll": 1.4395945058089143, "ece": 0.0896437578163061},
    ],
    "first": [
        {"error": 0.85, "nll": 1.3924149992010704, "ece": 0.2445176886675962},
        {"error": 0.75, "nll": 1.4185507678589184, "ece": 0.11740297867801586},
        {"error": 0.75, "nll": 1.4235635137900555, "ece": 0.09879631360222686},
    ],
    "last": [
        {"error": 0.75, "nll": 1.4395945058089143, "ece": 0.0896437578163061},
        {"error": 0.75, "nll": 1.4466349867366513, "ece": 0.12427085041844144},
        {"error": 0.75, "nll": 1.4235635137900555, "ece": 0.09879631360222688},
    ],
    "correlation": [
        [1.0, 0.7914625609969883, 0.5648746856242728],
        [0.7914625609969883, 1.0, 0.8390635659972453],
        [0.5648746856242728, 0.8390635659972453, 1.0],
    ],
    "disagreement": [[0.0, 0.2, 0.2], [0.2, 0.0, 0.0], [0.2, 0.0, 0.0]],
    "exit_error": [0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75],
    "exit_members": [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
}


def outputs(members=4, examples=60, classes=5, seed=0):
    """Log-probabilities (members, examples, classes) in float16, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, examples)
    logits = rng.normal(size=(members, examples, classes)) + rng.normal(size=(1, examples, classes))
    logits[:, np.arange(examples), labels] += 1.5
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float16), labels


def softmax(log_probabilities):
    p = np.exp(log_probabilities.astype(np.float64))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("block_bytes", [1, 8 * 4 * 5 * 7, 1 << 24])  # one example, seven examples, all at once
def test_members_and_ensembles_have_the_scores_that_a_loop_finds(monkeypatch, block_bytes):
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    log_probabilities, labels = outputs()
    p, quality = softmax(log_probabilities), Quality.of(log_probabilities, labels)
    for k in range(4):
        for answers, chosen in ((quality.alone, p[k : k + 1]), (quality.first, p[: k + 1]), (quality.last, p[3 - k :])):
            mean, found = sum(chosen) / len(chosen), answers.scores[k]
            assert (found.error, found.nll, found.ece) == pytest.approx(score(mean, labels), abs=1e-12)
            assert answers.choice[k].tolist() == mean.argmax(-1).tolist()
            assert answers.confidence[k] == pytest.approx(mean.max(-1))
            assert answers.wrong[k].tolist() == (mean.argmax(-1) != labels).tolist()
    for a in range(4):
        for b in range(4):
            assert quality.correlation[a, b] == pytest.approx(np.corrcoef(p[a].ravel(), p[b].ravel())[0, 1])
            assert quality.disagreement[a, b] == np.mean(p[a].argmax(-1) != p[b].argmax(-1))


def test_early_exit_evaluates_members_newest_first_until_their_mean_is_confident():
    # two examples, two classes; oldest member first
    p = np.array([[[1e-9, 1.0], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]])
    quality = Quality.of(np.log(p), np.array([1, 0]))
    assert quality.last.confidence.round(6).tolist() == [[0.9, 0.6], [0.55, 0.55]]
    assert quality.evaluated(0.89).tolist() == [1, 2]
    assert quality.evaluated(0.5).tolist() == [1, 1]
    assert quality.evaluated(1.0).tolist() == [2, 2]
    at = THRESHOLDS.index(0.8)
    assert quality.exits.used[:, at].tolist() == [1, 1.5]
    assert quality.exits.error[:, at].tolist() == [0.5, 0.5]
    assert quality.exits.error[:, -1].tolist() == [0.5, 0]
    assert quality.exits.nll[1, at] == pytest.approx(-(np.log(0.1) + np.log(0.55)) / 2)


def test_a_certain_member_does_not_stop_an_evaluation_without_a_threshold():
    log_probabilities = np.array([[[-40.0, 0.0]], [[0.0, -40.0]]])
    quality = Quality.of(log_probabilities, np.array([0]))
    assert quality.last.confidence[0].tolist() == [1]
    assert quality.evaluated(1.0).tolist() == [2]


def test_a_quality_is_represented_by_its_errors_in_one_line():
    p = np.array([[[0.1, 0.9], [0.5, 0.5], [0.3, 0.7]], [[0.9, 0.1], [0.6, 0.4], [0.6, 0.4]]])
    assert repr(Quality.of(np.log(p), np.array([1, 0, 1]))) == (
        "Quality(members=2, examples=3, errors alone=[0.0, 0.6667], errors of the last m=[0.6667, 0.3333])"
    )


def test_the_golden_run_has_the_numbers_that_were_computed_all_at_once():
    """Computed by the code of 65ccdc6, which held all float64 probabilities in memory."""
    found = Run(FINISHED).outputs()
    quality = Quality.of(found.log_probabilities, found.labels)
    for answers, name in ((quality.alone, "alone"), (quality.first, "first"), (quality.last, "last")):
        assert [vars(one) for one in answers.scores] == GOLDEN[name]
    assert quality.correlation == pytest.approx(np.array(GOLDEN["correlation"]), abs=1e-12)
    assert quality.disagreement.tolist() == GOLDEN["disagreement"]
    assert quality.exits.error[-1, :9].tolist() == GOLDEN["exit_error"]
    assert quality.exits.used[-1, :9].tolist() == GOLDEN["exit_members"]


def test_memory_does_not_grow_with_the_product_of_members_examples_and_classes(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1 << 20)
    log_probabilities, labels = outputs(members=3, examples=20_000, classes=100)  # 48 MB in float64
    assert peak_bytes(lambda: Quality.of(log_probabilities, labels).exits) < 24e6


@pytest.mark.long
def test_the_size_of_imagenet_takes_less_than_a_gigabyte_beyond_the_outputs():
    rng = np.random.default_rng(0)
    log_probabilities = np.empty((3, 50_000, 1000), np.float16)
    for member in log_probabilities:
        logits = rng.standard_normal(member.shape, np.float32)
        member[:] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    labels = rng.integers(0, 1000, 50_000)
    assert peak_bytes(lambda: Quality.of(log_probabilities, labels).exits) < 1e9


def peak_bytes(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
