"""What `snapens train` holds out of a user's own data."""

import sys

import numpy as np
import pytest
from PIL import Image

from snapens.cli import main
from snapens.lab.data.labels import tenth
from snapens.lab.records.run import Run

FLAGS = ["--network", "tiny:net", "--epochs", "2", "--cycles", "1", "--batch", "4", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with an array file of 40 training images in two classes."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    y = np.arange(40) % 2
    np.savez("tiny.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return tmp_path


def train(*more, dataset="arrays", data="tiny.npz", out=("--out", "run")):
    return main(["train", *FLAGS, "--dataset", dataset, "--data", data, *out, *more])


def test_a_tenth_of_the_users_own_training_examples_is_held_out(folder, capsys):
    assert train() == 0
    message = (
        "reading arrays\nholding out 4 of 40 training examples, too few for a temperature and early exit, which need "
        "100; --held-out 0 trains on all\npreparing 1 run"
    )
    err = capsys.readouterr().err
    assert message in err
    assert err.count("reading") == 1
    run = Run("run")
    assert run.recipe.dataset.held_out == 4
    assert run.outputs("held_out").labels.shape == (4,)
    assert run.data["images"]["train"]["count"] == 36


@pytest.mark.parametrize("count", [0, 7])
def test_the_user_can_choose_the_number(folder, capsys, count):
    assert train("--held-out", str(count)) == 0
    assert "holding out" not in capsys.readouterr().err
    assert Run("run").recipe.dataset.held_out == count
    assert Run("run").has_outputs("held_out") is (count > 0)


def test_a_default_folder_is_named_after_the_recipe_with_the_number(folder, capsys):
    assert train(out=()) == 0
    assert train("--held-out", "4", out=()) == 2  # the same recipe
    assert "run must be a folder without a run" in capsys.readouterr().err
    assert train("--resume", out=()) == 0
    assert "is already finished" in capsys.readouterr().err
    assert train("--held-out", "0", out=()) == 0
    assert len(list((folder / "runs").iterdir())) == 2


def test_a_resumed_run_keeps_its_number_and_needs_no_data_once_it_is_finished(folder, capsys):
    assert train("--held-out", "6") == 0
    (folder / "tiny.npz").unlink()
    assert train("--resume") == 0
    err = capsys.readouterr().err
    assert "run is already finished" in err
    assert train("--resume", "--held-out", "4") == 2
    assert "dataset.held_out: 6, 4" in capsys.readouterr().err


def images(root, count):
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for k in range(count):
            pixels = np.random.default_rng(k).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{k}.png")


def test_a_val_folder_beside_test_is_held_out_instead(folder, capsys):
    for part, count in (("train", 10), ("test", 2), ("val", 3)):
        images(folder / "own" / part, count)
    assert train(dataset="folder", data="own") == 0
    assert "holding out the 6 examples in val/, too few for a temperature" in capsys.readouterr().err
    assert Run("run").recipe.dataset.held_out == 0
    assert Run("run").outputs("held_out").labels.shape == (6,)


def test_enough_images_in_a_val_folder_are_said_to_be_for_a_combination(folder, capsys):
    for part, count in (("train", 10), ("test", 2), ("val", 50)):
        images(folder / "own" / part, count)
    assert train(dataset="folder", data="own") == 0
    assert "holding out the 100 examples in val/, so that a combination" in capsys.readouterr().err


def test_a_val_folder_alone_is_the_test_set_and_a_tenth_is_held_out(folder, capsys):
    for part, count in (("train", 10), ("val", 3)):
        images(folder / "own" / part, count)
    assert train(dataset="folder", data="own") == 0
    assert "holding out 2 of 20 training examples" in capsys.readouterr().err
    assert Run("run").outputs().labels.shape == (6,)


def test_nothing_is_held_out_of_few_examples_and_of_public_data(folder, capsys):
    images(folder / "own" / "train", 4)
    images(folder / "own" / "test", 1)
    assert train(dataset="folder", data="own") == 0
    assert "holding out no examples, because the 8 training examples are too few" in capsys.readouterr().err
    assert not Run("run").has_outputs("held_out")
    assert main(["train", "--dataset", "cifar10", "--data", str(folder), "--device", "cpu"]) == 2
    assert "holding out" not in capsys.readouterr().err


def test_the_only_example_of_a_class_is_trained_on():
    assert tenth(np.arange(40) % 2, seed=0) == 4
    assert {tenth(np.array([0] * 39 + [1]), seed) for seed in range(50)} == {0, 4}
    for seed in range(50):
        order = np.argsort(np.random.Philox(key=[seed, 0x5E1D]).random_raw(40), kind="stable")
        assert tenth(np.array([0] * 39 + [1]), seed) == (0 if 39 in order[:4] else 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--network", "nothing:here"], "network must be module:callable that Python can import"),
        (["--network", "timm:resnet18"], "needs timm, which cannot be imported"),
        (["--out", "tiny/inside"], "out must be outside the folder of images"),
    ],
)
def test_what_is_wrong_is_said_before_the_data_are_read(folder, capsys, monkeypatch, more, message):
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it was not installed
    images(folder / "tiny", 4)
    assert train(*more, dataset="folder", data="tiny") == 2
    err = capsys.readouterr().err
    assert message in err
    assert "reading" not in err


def test_a_folder_with_a_run_is_rejected_before_the_data_are_read(folder, capsys):
    assert train("--held-out", "0") == 0
    capsys.readouterr()
    assert train() == 2
    err = capsys.readouterr().err
    assert "run must be a folder without a run" in err
    assert "reading" not in err
