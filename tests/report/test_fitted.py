"""The fitted combination in a report, against a plain float64 loop over examples."""

import folders
import numpy as np
import pytest
from conftest import score
from plain import words

from snapens import Combination
from snapens.report import page, page_charts
from snapens.report.summary import summarise

WEIGHTS, TEMPERATURE, THRESHOLD = (1.0, 3.0, 2.0), 1.7, 0.8


@pytest.fixture
def run(tmp_path):
    return folders.made(tmp_path / "run", members=4, examples=120, held_out=50, skill=3.0)


def combined(outputs):
    """Probabilities and members evaluated of the last three members, newest first, one example at a time."""
    predictions, used = [], []
    for members in folders.softmax(outputs)[1:].swapaxes(0, 1):
        for k in (1, 2, 3):
            mean = np.average(members[-k:], axis=0, weights=WEIGHTS[-k:])
            if mean.max() >= THRESHOLD:
                break
        logits = np.log(mean) / TEMPERATURE
        predictions.append(np.exp(logits) / np.exp(logits).sum())
        used.append(k)
    return np.array(predictions), np.array(used)


def test_its_quality_is_what_a_loop_finds(run):
    outputs = run.outputs()
    Combination(outputs.members[1:], WEIGHTS, TEMPERATURE, THRESHOLD).save(run.path)
    fitted = summarise([run]).details.fitted
    p, used = combined(outputs)
    assert (fitted.score.error, fitted.score.nll, fitted.score.ece) == pytest.approx(score(p, outputs.labels))
    assert 1 < fitted.used < 3
    assert (fitted.used, fitted.expected) == (used.mean(), combined(run.outputs("held_out"))[1].mean())
    mean = folders.softmax(outputs).mean(0)
    assert fitted.over_mean.value == pytest.approx(
        np.mean((p.argmax(-1) != outputs.labels) * 1.0 - (mean.argmax(-1) != outputs.labels))
    )
    assert (fitted.snapshots, fitted.shares) == ((2, 3, 4), (1 / 6, 1 / 2, 1 / 3))


def test_a_page_shows_it_in_words_and_numbers(run):
    assert "Fitted combination" not in page.render([run])
    Combination(run.outputs().members[1:], WEIGHTS, TEMPERATURE, THRESHOLD).save(run.path)
    fitted, text = summarise([run]).details.fitted, words(page.render([run]))
    row = f"{100 * fitted.score.error:.2f}{fitted.score.nll:.4f}{100 * fitted.score.ece:.2f}12 s{fitted.used:.2f}"
    assert f"Fitted combinationfrom combination.json{row}" in text
    assert "3 of 4 snapshots are averaged with the weights below." in text
    assert "A temperature of 1.700 makes the probabilities less confident." in text
    assert f"Early exit at a confidence of 0.8000: on average, {fitted.used:.2f} members are evaluated" in text
    assert f"({fitted.expected:.2f} per held-out image)" in text
    assert "snapshot 2 step 64 16.7 % snapshot 3 step 96 50.0 % snapshot 4 step 128 33.3 %" in text


@pytest.mark.parametrize(("temperature", "calibrated"), [(1.7, True), (1.0, False)])
def test_a_combination_with_a_temperature_counts_as_calibrated(run, temperature, calibrated):
    Combination(run.outputs().members, temperature=temperature).save(run.path)
    assert summarise([run]).details.evidence.calibrated is calibrated


@pytest.mark.parametrize("threshold", [THRESHOLD, 0.3])  # the second is below the curve of the chart
def test_the_chart_of_early_exit_marks_it(run, threshold):
    Combination(run.outputs().members, exit_threshold=threshold).save(run.path)
    chart = page_charts.draw(summarise([run]))["exits"]
    (mark,) = (line for line in chart.figure.axes[0].lines if line.get_label() == "fitted")
    wrong, used = [], []
    held_out = run.outputs("held_out")
    for members, label in zip(folders.softmax(held_out).swapaxes(0, 1), held_out.labels, strict=True):
        k = next((k for k in (1, 2, 3) if members[-k:].mean(0).max() >= threshold), 4)
        wrong.append(members[-k:].mean(0).argmax() != label)
        used.append(k)
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == pytest.approx((np.mean(used), 100 * np.mean(wrong)))
    assert chart.hints[-1].startswith(f"fitted combination, early exit at {threshold:g}: {100 * np.mean(wrong):.2f} %")
    Combination(run.outputs().members).save(run.path)  # without early exit
    assert "fitted" not in page_charts.draw(summarise([run]))["exits"].description


def test_a_plain_mean_is_said_to_be_one(run):
    Combination.last(4).save(run.path)
    text = words(page.render([run]))
    assert "All 4 snapshots are averaged with equal weights. The probabilities are not rescaled." in text
    assert "All members are evaluated for every image." in text
    assert "by +0.00 ± 0.00 points" in text
    assert summarise([run]).details.fitted.score.error == run.outputs().ensemble_errors[-1]


def test_a_combination_of_other_members_is_left_out_with_a_warning(run, caplog):
    Combination((("f" * 32, 8),)).save(run.path)
    assert summarise([run]).details.fitted is None
    assert "load that run too, or fit the combination again; the report leaves" in caplog.text


def test_a_damaged_combination_is_left_out_with_a_warning(run, caplog):
    (run.path / "combination.json").write_text("{}")
    assert summarise([run]).details.fitted is None
    assert "combination.json must" in caplog.text
