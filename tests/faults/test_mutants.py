"""The harness finds deliberate defects: without this, a harness that finds nothing proves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_defect_is_found(name):
    """By the short forms of the sweeps; exit code 1 says that tests ran and failed."""
    command = [sys.executable, HERE / "mutants.py", name, "-x", "--tb=line", "-p", "no:cacheprovider", f"{HERE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    print(name, done.stdout.strip().splitlines()[-1])
