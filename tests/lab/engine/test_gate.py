"""The gate: what a handful of recipes gave at 65ccdc6. No change of the engine may change it.

`gate.json` holds each recipe as it was written then, the loss of every step, and a hash of every snapshot's tensors.
"""

import hashlib
import json
from pathlib import Path

import pytest
import tiny
import torch

from snapens.lab.engine.pack import prepare, train
from snapens.lab.recipe import Recipe
from snapens.lab.records.run import Run

RECORDED = json.loads((Path(__file__).parent / "gate.json").read_text())
CASES = RECORDED["cases"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(*jobs, data=None, resume=False, stop=lambda: False):
    """Runs of (case, folder), all of one data set."""
    named = [(Recipe.of(CASES[case]["recipe"]), path) for case, path in jobs]
    trainings = prepare(named, lambda recipe: tiny.data(**(data or {})), CPU, resume=resume)
    train(trainings, stop=stop)
    assert [training.failure for training in trainings] == [None] * len(jobs)
    return trainings


def hashes(snapshots):
    return {
        str(step): hashlib.sha256(
            b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(snapshots.load(step).items()))
        ).hexdigest()
        for step in snapshots.steps
    }


def assert_as_recorded(case, training):
    recorded, run = CASES[case], Run(training.run.path)
    here = (torch.__version__, torch.backends.cpu.get_cpu_capability())
    if here == (RECORDED["torch"], RECORDED["cpu"]):
        assert training.step.losses.tolist() == recorded["losses"]
        assert hashes(run.snapshots) == recorded["snapshots"]
    else:
        assert training.step.losses.tolist() == pytest.approx(recorded["losses"], abs=1e-5)
        assert [str(step) for step in run.snapshots.steps] == list(recorded["snapshots"])
    assert run.outputs().member_errors == recorded["member_errors"]


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_gives_what_it_gave(case, tmp_path):
    (training,) = trained((case, tmp_path), data=CASES[case]["data"])
    assert_as_recorded(case, training)


@pytest.mark.parametrize("bursts", [1, 2, 4])
def test_a_resumed_run_gives_what_it_gave(bursts, tmp_path):
    looks = iter([False] * bursts + [True])
    (training,) = trained(("grow", tmp_path), stop=lambda: next(looks))
    assert 0 < training.completed < training.total_steps
    (training,) = trained(("grow", tmp_path), resume=True)
    assert_as_recorded("grow", training)


def test_a_pack_gives_what_its_runs_gave(tmp_path):
    cases = ("single", "dropout", "residual network")
    for case, training in zip(cases, trained(*((case, tmp_path / case) for case in cases)), strict=True):
        assert_as_recorded(case, training)
