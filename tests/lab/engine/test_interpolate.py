"""The line between two snapshots, against weights averaged and evaluated by hand."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import ArgumentError, DamagedError
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.interpolate import LAST_SHARE, between
from snapens.lab.engine.pack import prepare, train
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run
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


def first_steps(training, count):
    """What training saw."""
    recipe, transforms = training.recipe, training.placed.data.transforms
    feed, images = Feed(training.placed, transforms, recipe.seed, recipe.budget.batch), []
    for step in range(count):
        feed.prepare(step)
        images.append(feed.read(torch.tensor([step]))[0])
    return images


def test_a_line_begins_at_the_earlier_snapshot_and_ends_at_the_last_one(finished):
    *earlier, last = (100 * error for error in finished.run.outputs().member_errors)
    found = between(finished.step, finished.run.snapshots)
    assert found.last_share == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
    assert [line.snapshot for line in found.lines] == [1, 2]
    for line, member in zip(found.lines, earlier, strict=True):
        assert (line.interpolated_percent[0], line.interpolated_percent[-1]) == pytest.approx((member, last), abs=1e-4)
    last = finished.run.snapshots.load(30)
    assert all(torch.equal(last[name], tensor) for name, tensor in tensors(finished.step.network).items())
    assert finished.step.network.training


def test_weights_and_statistics_half_way_are_their_means_or_estimated_anew(finished):
    data, snapshots = finished.placed.data, finished.run.snapshots
    end, start = snapshots.load(30), snapshots.load(10)
    network = tiny.net(classes=4, channels=3)
    network.load_state_dict({name: (end[name] + start[name]) / 2 for name in end})
    line, half = between(finished.step, snapshots).lines[0], LAST_SHARE.index(0.5)
    assert line.interpolated_percent[half] == pytest.approx(100 * error(network, data), abs=1e-4)

    inputs = []
    hook = network.norm.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    with torch.no_grad():  # the 40 training images of the first epoch, all in one batch
        network.eval()(torch.cat(first_steps(finished, 5)))
    hook.remove()
    x = inputs[0].double()
    network.norm.running_mean.copy_(x.mean((0, 2, 3)))
    network.norm.running_var.copy_(x.var((0, 2, 3)))
    assert line.estimated_percent[half] == pytest.approx(100 * error(network, data), abs=1e-4)


def test_what_was_measured_is_kept_in_the_run_and_read_back(finished, tmp_path):
    assert finished.run.curves() is None
    finished.measure_between()
    curves = Run(tmp_path / "run").curves()
    assert curves == between(finished.step, finished.run.snapshots)
    for damaged in ("[NaN]", "{}", json.dumps(asdict(replace(curves, lines=(replace(curves.lines[1], snapshot=3),))))):
        (tmp_path / "run/curves.json").write_text(damaged)
        with pytest.raises(DamagedError, match=r"curves.json must be unaltered, got .*: re"):
            finished.run.curves()


def test_a_bump_is_what_rises_above_the_line_between_the_ends_with_statistics_estimated_anew():
    assert Line(1, (50, 90, 50), (20, 26, 30)).bump_points == 1  # 25 half-way
    assert Line(1, (50, 90, 50), (20, 20, 30)).bump_points == -5
    assert Line(1, (50,) * 5, (40, 31, 25, 28, 20)).bump_points == 3  # 35, 30, 25 on the way
    assert Line(1, (50, 10, 50), (24, 21, 23)).dip_points == 2
    assert Line(1, (50, 10, 50), (24, 25, 23)).dip_points == -2
    assert Line(1, (50,) * 5, (24, 10, 20, 10, 23)).dip_points == 3  # half-way, wherever else it is lower


@pytest.mark.parametrize(
    ("shares", "lines", "message"),
    [
        ((0, 1), (), "last_share must go from 0 to 1 in equal steps, got"),
        ((0, 0.4, 1), (), "last_share must"),
        ((0.1, 0.5, 1), (), "last_share must"),
        ((0, 0.5, 0.9), (), "last_share must"),
        ((0, 0.5, 0.5, 1), (), "last_share must"),
        ((0, 0.5, 1), (Line(2, (1, 2, 3), (1, 2, 3)), Line(1, (1, 2, 3), (1, 2, 3))), "lines must be of ascending"),
        ((0, 0.5, 1), (Line(0, (1, 2, 3), (1, 2, 3)),), "lines must be of ascending snapshots, counted from 1, got"),
        ((0, 0.5, 1), (Line(1, (1, 2), (1, 2, 3)),), "a line must have a percentage for each of 3 shares, got"),
        ((0, 0.5, 1), (Line(1, (1, 2, 3), (1, 2, 101)),), "a line must have a percentage"),
    ],
)
def test_lines_that_cannot_be_are_refused(shares, lines, message):
    with pytest.raises(ArgumentError, match=message):
        Between(shares, lines, "images")
