"""Each example runs as a user would run it, and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def output_of(name, *arguments, cwd):
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_plain_loop_reports_every_cycle(tmp_path):
    steps = re.findall(
        r"step (\d+): error of this snapshot [\d.]+%, of the ensemble ([\d.]+)%",
        output_of("plain_loop.py", cwd=tmp_path),
    )
    assert [int(step) for step, _ in steps] == [200, 400, 600, 800, 1000]
    assert float(steps[-1][1]) < 5


def test_amp_and_accumulation_counts_optimizer_steps(tmp_path):
    output = output_of("amp_and_accumulation.py", cwd=tmp_path)
    assert re.findall(r"snapshot of step (\d+)", output) == ["20", "40", "60"]
    assert re.findall(r"after (\d) members", output) == ["1", "2", "3"]


def test_resume_ends_as_if_it_had_never_stopped(tmp_path):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = output_of("resume.py", "whole", cwd=tmp_path)
    starts = [output_of("resume.py", "stopped", steps, cwd=tmp_path).splitlines()[0] for steps in (120, 80)]
    assert starts == ["starting at step 0", "starting at step 100"]
    assert output_of("resume.py", "stopped", cwd=tmp_path).splitlines()[1] == whole.splitlines()[1]
    assert whole.splitlines()[1].startswith("members (100, 200, 300)")


def test_regression_is_unsure_where_there_was_no_data(tmp_path):
    error, inside, outside = map(float, re.findall(r": ([\d.]+)", output_of("regression.py", cwd=tmp_path)))
    assert error < 0.1
    assert outside > 3 * inside


def test_a_frozen_base_is_stored_once(tmp_path):
    first, *others = map(
        int, re.search(r"snapshot: ([\d ]+)", output_of("frozen_base.py", tmp_path, cwd=tmp_path))[1].split()
    )
    assert first > 4_000_000
    assert len(others) == 4
    assert max(others) < 30_000


def test_recipes_from_python_are_trained_side_by_side(tmp_path):
    lines = output_of("recipes_from_python.py", cwd=tmp_path).splitlines()
    found = [re.fullmatch(r"(\w+): snapshots ([\d.]+, [\d.]+, [\d.]+) %, together ([\d.]+) %", line) for line in lines]
    assert [match[1] for match in found] == ["snapshot", "single"]
    assert all(float(match[3]) < 10 for match in found)  # of four classes: chance is 75


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_has_its_own_test(path):
    assert len(path.read_text().splitlines()) < 60
    assert f'"{path.name}"' in Path(__file__).read_text()
