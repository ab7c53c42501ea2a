"""Tables of numbers behind the protocol that images have."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from snapens.errors import ArgumentError
from snapens.lab import data as datasets
from snapens.lab.data.placed import PlacedTable
from snapens.lab.data.tables import from_table
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.pack import prepare, train
from snapens.lab.recipe import Settings
from snapens.lab.records.run import Run

CPU = torch.device("cpu")


def rows(count, seed=0):
    """Three blobs in five dimensions of very different scales."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.array([[0, 0, 0, 0, 0], [4, 0, 1, 0, 0], [0, 4, 0, 1, 0]])
    return (centres[labels] + rng.normal(size=(count, 5))) * [1, 10, 1000, 0.01, 1] + [5, 0, -3000, 0, 7], labels


def net(*, classes, features):
    return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))


def test_rows_are_standardised_by_the_training_rows():
    data = from_table(*rows(200), *rows(50, seed=1)).hold_out(20, seed=3)
    x = data.train.values
    (found,) = data.place(CPU).batches(data.test)
    expected = (data.test.values - x.mean(0)) / x.std(0)
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - expected).max() < 1e-5
    assert (len(data.train), len(data.held_out), len(data.test)) == (180, 20, 50)
    assert data.place(CPU).rows.mean(0).abs().max() < 1e-5


def test_a_constant_feature_becomes_zero():
    x, y = rows(60)
    x[:, 2] = 0.1  # whose mean and deviation are not exact
    assert (from_table(x, y).place(CPU).rows[:, 2] == 0).all()


def test_an_npz_with_a_two_dimensional_x_train_is_a_table(tmp_path):
    x, y = rows(100)
    np.savez(tmp_path / "blobs.npz", x_train=x, y_train=y, classes=np.array(["a", "b", "c"]))
    data = datasets.load("arrays", tmp_path / "blobs.npz")
    assert data.name == "blobs"
    assert data.inputs == {"features": 5}
    assert data.classes == ("a", "b", "c")
    assert len(data.train) + len(data.test) == 100


def test_a_table_trains_resumes_and_leaves_a_run_like_any_other(tmp_path):
    data = from_table(*rows(400), *rows(200, seed=1))
    settings = Settings(network=f"{__name__}:net", dataset="arrays", epochs=12, cycles=3, batch=20, lr=0.05)
    recipe = replace(settings, held_out=40).recipe()
    train(prepare([(recipe, tmp_path / "whole")], lambda recipe: data, CPU))
    run = Run(tmp_path / "whole")
    assert run.finished
    assert run.outputs().ensemble_errors[-1] < 0.1  # three blobs four deviations apart
    assert run.outputs("held_out").log_probabilities.shape == (3, 40, 3)
    expected = np.exp(run.outputs().log_probabilities.astype(np.float64)).mean(0)
    found = run.ensemble(import_network=True)(torch.from_numpy(data.test.values))
    assert np.abs(found.numpy() - expected).max() < 2e-3  # stored in float16
    looks = iter([False] * 3 + [True])
    train(prepare([(recipe, tmp_path / "parts")], lambda recipe: data, CPU), stop=lambda: next(looks))
    train(prepare([(recipe, tmp_path / "parts")], lambda recipe: data, CPU, resume=True))
    for step in run.snapshots.steps:
        ours, theirs = run.snapshots.load(step), Run(tmp_path / "parts").snapshots.load(step)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 0))}, r"x_train must be numbers \(rows, features\), got float64 of shape \(4, 0\)"),
        ({"x_train": np.array([["a"]] * 4)}, "x_train must be numbers"),
        (
            {"x_train": np.array([[1.0], [np.nan], [2.0], [3.0]])},
            r"x_train must be numbers below 1e\+30, got nan in row 1, feature 0",
        ),
        ({"y_train": [0, 1, 0]}, r"y_train must be 4 integers, one per example, got int64 of shape \(3,\)"),
        (
            {"y_train": ["a", "b", "a", "b"]},
            r"4 integers, .* got <U1 of shape \(4,\): number all .*np.unique\(y, return_i",
        ),
        ({"y_train": [0, 2, 0, 2]}, "y_train must number the classes from 0 without gaps"),
        ({"y_train": [0, 0, 0, 0]}, "data must have at least 2 classes"),
        ({"x_test": np.zeros((2, 1))}, "x_test and y_test must be passed together"),
        ({"x_test": np.zeros((2, 3)), "y_test": [0, 1]}, "x_test must have as many features as x_train, 1, got 3"),
        ({"x_test": np.zeros((2, 1)), "y_test": [0, 7]}, "test labels must be between 0 and 1, got 0 to 7 in table"),
    ],
)
def test_a_table_that_breaks_a_rule_is_rejected(changes, message):
    with pytest.raises(ArgumentError, match=message):
        from_table(**{"x_train": np.arange(4.0)[:, None], "y_train": [0, 1, 0, 1], **changes})


def test_a_table_is_not_cropped_and_has_no_image_transforms():
    data = from_table(*rows(40))
    with pytest.raises(ArgumentError, match="padding must be left out for tables, got 4"):
        data.place(CPU, 4)
    recipe = Settings(network=f"{__name__}:net", transforms=("mirror",), epochs=2, cycles=1, batch=4).recipe()
    with pytest.raises(ArgumentError, match=r"transforms must suit the data \(features=5\), got mirror"):
        prepare([(recipe, "nowhere")], lambda recipe: data, CPU)


def test_an_image_network_is_rejected_for_a_table():
    recipe = Settings(network="small", dataset="arrays", epochs=2, cycles=1, batch=4).recipe()
    message = (
        r"network 'small' takes images \(channels\), but the data are tables \(features\): use a network for tables, "
        "such as --network mlp"
    )
    with pytest.raises(ArgumentError, match=message):
        prepare([(recipe, "nowhere")], lambda recipe: from_table(*rows(40)), CPU)


def test_rows_are_held_out_once():
    data = from_table(*rows(60), *rows(10)).hold_out(20, 0)
    with pytest.raises(ArgumentError, match="held_out must be 0 for a data set with held-out examples"):
        data.hold_out(5, 0)
    with pytest.raises(ArgumentError, match="held_out must be at least 0"):
        data.hold_out(-1, 0)


def test_a_table_that_is_streamed_gives_the_same_batches(monkeypatch):
    data = from_table(*rows(40))
    resident = Feed(data.place(CPU), (), 0, 8)
    monkeypatch.setattr(PlacedTable, "resident", False)
    streamed = Feed(data.place(CPU), (), 0, 8)
    for step in (0, 1, 2, 9):
        batches = []
        for feed, lies in ((resident, True), (streamed, False)):
            monkeypatch.setattr(PlacedTable, "resident", lies)
            feed.prepare(step)
            batches.append(feed.read(torch.tensor([step])))
        assert torch.equal(batches[0].inputs, batches[1].inputs)
        assert torch.equal(batches[0].targets, batches[1].targets)


def test_more_rows_than_there_are_cannot_be_held_out():
    with pytest.raises(ArgumentError, match="held_out must be at least 0 and less than the 40 training examples"):
        from_table(*rows(40), *rows(10)).hold_out(40, 0)
