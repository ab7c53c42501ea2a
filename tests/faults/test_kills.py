"""A real SIGKILL at random moments: a run that is killed and resumed ends as the one that was never killed."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from disk import Disk
from scenarios import look, trained

from snapens.lab.records.run import Run

RECIPES = {
    kills: tiny.recipe(
        cycles=4, epochs=epochs, method="grow", pattern=("fresh", "warm"), dropout=0.3, held_out=8, seed=5
    )
    for kills, epochs in {10: 12, 100: 200}.items()
}
"""The number of kills, and a run that is long enough for them; four steps per epoch."""


def ends_itself(disk, operation, real, *args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def was_killed(folder, recipe, at=-1):
    """Train in a process of its own, which is killed at an operation, or finishes before it."""
    if (child := os.fork()) == 0:
        try:
            with Disk(folder, ends_itself, at):
                trained(folder / "run", recipe)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def kill_at_random(folder, kills):
    rng, reached, recipe = random.Random(0), [], RECIPES[kills]
    (folder / "whole").mkdir()
    assert not was_killed(folder / "whole", recipe)
    while len(reached) < kills:
        assert was_killed(folder, recipe, at=rng.randint(1, 900)), f"finished after {len(reached)} kills"
        state = Run(folder / "run").state() if (folder / "run" / "recipe.json").exists() else None
        reached.append(state.completed if state else 0)
    assert not was_killed(folder, recipe)
    assert look(folder / "run") == look(folder / "whole" / "run")
    assert reached == sorted(reached)
    assert reached[-1] > 0
    print(kills, "kills survived")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_run_killed_at_random_ends_as_the_one_never_killed(tmp_path, kills):
    """From a process without threads, so that it can fork."""
    here = Path(__file__).parent
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1:3]; "
        "import torch, torch._dynamo; torch.set_num_threads(1); "  # imported once, not in every fork
        f"import test_kills; test_kills.kill_at_random(Path(sys.argv[3]), {kills})"
    )
    command = [sys.executable, "-c", code, here, here.parent / "lab", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("kills survived\n"), done.stderr[-3000:]
