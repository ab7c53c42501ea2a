"""The line between two snapshots, against weights averaged and evaluated by hand."""

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import DamagedError
from snapens.lab.engine import prepare, train
from snapens.lab.interpolate import GRID, lines
from snapens.lab.runs import Run
from snapens.weights import tensors

CPU = torch.device("cpu")


@pytest.fixture
def finished(tmp_path):
    recipe = tiny.recipe(cycles=3, epochs=6, dropout=0.3, lr=0.2)
    trainings = prepare([(recipe, tmp_path / "run")], tiny.load, CPU)
    train(trainings)
    return trainings[0]


def normalised(data, images):
    mean, deviation = map(np.array, data.normalisation())
    return torch.from_numpy(((images.pixels - mean) / deviation).transpose(0, 3, 1, 2)).float()


def error(network, data):
    network.eval()
    with torch.no_grad():
        return (network(normalised(data, data.test)).argmax(1).numpy() != data.test.labels).mean()


def test_a_line_begins_at_the_last_snapshot_and_ends_at_the_earlier_one(finished):
    members = finished.run.outputs().member_errors
    found = list(lines(finished.step, finished.run.snapshots))
    assert [line.step for line in found] == [20, 10]
    for line, member in zip(found, (members[1], members[0]), strict=True):
        assert len(line.interpolated) == len(line.estimated) == len(GRID)
        assert line.interpolated[0] == members[2]
        assert line.interpolated[-1] == member
    last = finished.run.snapshots.load(30)
    assert all(torch.equal(last[name], tensor) for name, tensor in tensors(finished.step.network).items())
    assert finished.step.network.training


def test_weights_and_statistics_half_way_are_their_means_or_estimated_anew(finished):
    data, snapshots = finished.placed.data, finished.run.snapshots
    end, start = snapshots.load(30), snapshots.load(10)
    network = tiny.net(classes=4, channels=3)
    network.load_state_dict({name: (end[name] + start[name]) / 2 for name in end})
    line = list(lines(finished.step, snapshots))[1]
    half = GRID.index(0.5)
    assert line.interpolated[half] == error(network, data)

    inputs = []
    hook = network.norm.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    with torch.no_grad():  # all 40 training images are one batch
        network.eval()(normalised(data, data.train))
    hook.remove()
    x = inputs[0].double()
    network.norm.running_mean.copy_(x.mean((0, 2, 3)))
    network.norm.running_var.copy_(x.var((0, 2, 3)))
    assert line.estimated[half] == error(network, data)


def test_what_was_measured_is_kept_in_the_run_and_read_back(finished, tmp_path):
    assert finished.run.curves() is None
    finished.measure_between()
    curves = Run(tmp_path / "run").curves()
    assert curves["grid"] == list(GRID)
    assert [line["step"] for line in curves["lines"]] == [20, 10]
    (tmp_path / "run/curves.json").write_text("[NaN]")
    with pytest.raises(DamagedError, match=r"curves.json must be what snapens wrote"):
        finished.run.curves()
