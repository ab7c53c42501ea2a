"""The gate: what a handful of recipes gave at 65ccdc6. No change of the engine may change it.

`gate.json` holds each recipe as it was written then and, for each of `cpus`, the loss of every step and a hash of every
snapshot's tensors: CPUs round differently. On the CPU of a recording, the results must be the same bits.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from torch.nn.functional import cross_entropy

from snapens.lab import nets
from snapens.lab.data.order import Order
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


@cache
def recording():
    """The number of the recording whose CPU rounds as this one does, found by a plain loop; None if there is none."""
    recipe, data = Recipe.of(CASES["no augmentation"]["recipe"]), tiny.data(augmentation="none")
    inputs, labels = (
        data.preprocessing.module()(torch.from_numpy(data.train.pixels)),
        torch.from_numpy(data.train.labels),
    )
    network = nets.of(recipe, len(data.classes), data.inputs).to(memory_format=torch.channels_last)
    settings = {"momentum": recipe.optimizer.momentum, "weight_decay": recipe.optimizer.weight_decay}
    optimizer = torch.optim.SGD(network.parameters(), lr=torch.zeros(()), nesterov=True, **settings)
    order, schedule = Order(recipe.seed, len(labels), recipe.budget.batch, columns=1), recipe.schedule(len(labels))
    losses = []
    for step in range(schedule.total_steps):
        rows = torch.from_numpy(order.rows(step, 1)[0][0])
        optimizer.param_groups[0]["lr"].fill_(recipe.optimizer.lr * schedule(step))
        loss = cross_entropy(network(inputs[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    recorded = [one["losses"] for one in CASES["no augmentation"]["recordings"]]
    return recorded.index(losses) if torch.__version__ == RECORDED["torch"] and losses in recorded else None


def assert_as_recorded(case, training):
    recordings, run = CASES[case]["recordings"], Run(training.run.path)
    losses = training.step.losses.tolist()
    if (exact := recording()) is None:
        assert losses == pytest.approx(recordings[0]["losses"], abs=1e-5)
        assert [str(step) for step in run.snapshots.steps] == list(recordings[0]["snapshots"])
    else:
        assert {"losses": losses, "snapshots": hashes(run.snapshots)} == recordings[exact]
    assert run.outputs().member_errors == CASES[case]["member_errors"]


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
