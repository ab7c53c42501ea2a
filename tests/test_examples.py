"""Each example runs as a user would run it, and its output is checked."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from snapens.cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The future output of every example: importing torch takes most of their time, so several run at once."""
    folder = tmp_path_factory.mktemp("examples")

    def output_of(name, *arguments):
        command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
        environment = {**os.environ, "TMPDIR": str(folder)}  # some examples write to a temporary folder
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout

    def stopped_twice():
        return [output_of("resume.py", "stopped", *steps).splitlines() for steps in (["120"], ["80"], [])]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {"stopped": pool.submit(stopped_twice), **{p.name: pool.submit(output_of, p.name) for p in EXAMPLES}}


def test_plain_loop_reports_every_cycle_and_its_ensemble_is_clearly_better_than_the_last_snapshot(outputs):
    steps = re.findall(
        r"step (\d+): error of this snapshot ([\d.]+)%, of the ensemble ([\d.]+)%",
        outputs["plain_loop.py"].result(),
    )
    assert [int(step) for step, *_ in steps] == [300, 600, 900, 1200, 1500]
    alone, together = map(float, steps[-1][1:])
    assert together < 30  # of ten classes: chance is 90
    assert alone - together > 1.5  # the smallest difference of ten seeds was 2.0


def test_amp_and_accumulation_counts_optimizer_steps(outputs):
    output = outputs["amp_and_accumulation.py"].result()
    assert re.findall(r"snapshot of step (\d+)", output) == ["20", "40", "60"]
    assert re.findall(r"after (\d) members", output) == ["1", "2", "3"]


def test_uncertain_predictions_are_wrong_more_often_and_sets_have_the_stated_coverage(outputs):
    shown = outputs["uncertainty.py"].result()
    every, confident = map(float, re.findall(r"([\d.]+)%", shown)[:2])
    assert confident < every / 2
    assert 0.6 < float(re.search(r"entropy ([\d.]+)", shown)[1]) <= 1
    assert 0.87 < float(re.search(r"measured coverage ([\d.]+)", shown)[1]) < 0.95
    assert "soup" in shown


def test_resume_ends_as_if_it_had_never_stopped(outputs):
    whole = outputs["resume.py"].result().splitlines()
    first, second, last = outputs["stopped"].result()
    assert [first[0], second[0]] == ["starting at step 0", "starting at step 100"]
    assert last[1] == whole[1]
    assert whole[1].startswith("members (100, 200, 300)")


def test_regression_is_uncertain_outside_the_range_of_the_data(outputs):
    error, inside, outside = map(float, re.findall(r": ([\d.]+)", outputs["regression.py"].result()))
    assert error < 0.1
    assert outside > 3 * inside


def test_a_frozen_base_is_stored_once(outputs):
    first, *others = map(int, re.search(r"snapshot: ([\d ]+)", outputs["frozen_base.py"].result())[1].split())
    assert first > 4_000_000
    assert len(others) == 4
    assert max(others) < 30_000


def test_the_report_of_a_loop_needs_no_recipe(outputs, capsys):
    sentence, line = outputs["report.py"].result().splitlines()
    assert sentence.endswith("This command writes the report:")
    program, *command = line.split()
    assert (program, command[0], main(command)) == ("snapens", "report", 0)
    html = Path(capsys.readouterr().out.strip()).read_text()
    assert "a training loop of your own" in html
    assert "1,000 held-out examples. You may use them" in html
    assert "Fitted combination" in html


def test_export_runs_in_onnxruntime_for_every_number_of_members(outputs):
    lines = outputs["export.py"].result().splitlines()
    found = [
        re.fullmatch(r"newest (\d): test error ([\d.]+)%, within 1e-5 of PyTorch: True", line) for line in lines[:3]
    ]
    assert [match[1] for match in found] == ["1", "2", "3"]
    assert all(float(match[2]) < 10 for match in found)
    in_card = [re.match(r"\| test set \| 200 \| (\d) \| ([\d.]+)0 % \|", line).groups() for line in lines[3:6]]
    assert in_card == [(match[1], match[2]) for match in found]


PATTERN = r"(\w+): test error of the snapshots ([\d.]+, [\d.]+, [\d.]+) %, of the ensemble ([\d.]+) %"


def test_recipes_from_python_are_trained_side_by_side(outputs):
    lines = outputs["recipes_from_python.py"].result().splitlines()
    found = [re.fullmatch(PATTERN, line) for line in lines]
    assert [match[1] for match in found] == ["snapshot", "single"]
    assert all(float(match[3]) < 10 for match in found)  # of four classes: chance is 75


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_has_its_own_test(path):
    assert len(path.read_text().splitlines()) < 60
    assert f'"{path.name}"' in Path(__file__).read_text()


def test_a_fitted_combination_is_calibrated_and_needs_fewer_members(outputs):
    shown = outputs["choose_and_calibrate.py"].result()
    lower, error = map(float, re.search(r"temperature: NLL lower by ([\d.-]+) ± ([\d.]+)", shown).groups())
    assert lower > 2 * error
    assert float(re.search(r"early exit: .*, ([\d.]+) members", shown)[1]) < 5
    nll = [float(found) for found in re.findall(r"test error .*, NLL ([\d.]+)", shown)]
    assert nll[1] < nll[0]


def test_fast_prediction_is_that_of_the_ensemble_with_fewer_members(outputs):
    shown = outputs["fast_prediction.py"].result()
    assert 1 < float(re.search(r"with ([\d.]+) of 3 members", shown)[1]) < 2.5
    assert float(re.search(r"predict: (.+)", shown)[1]) < 1e-4
