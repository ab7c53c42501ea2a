"""`snapens export` on runs of the engine, compared with the outputs that the engine stored."""

import sys

import numpy as np
import onnxruntime
import pytest
import tiny
import torch

from snapens import Combination
from snapens.cli import main
from snapens.lab.data.tables import from_table
from snapens.lab.engine.pack import prepare, train
from snapens.lab.records.run import Run

ROWS = np.random.default_rng(0).normal(1000, [1, 20, 300], (60, 3))
LABELS = np.arange(60) % 2


def export(*arguments):
    """Run the command; the networks of these tests are not those of snapens."""
    return main(["export", *arguments, "--import-network"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs: of images, with held-out images, and of a table."""
    folder = tmp_path_factory.mktemp("runs")
    table = from_table(ROWS[:40], LABELS[:40], ROWS[40:], LABELS[40:])
    jobs = [
        (tiny.recipe(held_out=8), folder / "images", tiny.data()),
        (tiny.recipe(network="mlp", dataset="arrays", batch=10), folder / "table", table),
    ]
    for recipe, path, data in jobs:
        train(prepare([(recipe, path)], lambda _, data=data: data, torch.device("cpu")))
    return folder


@pytest.fixture
def images(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield Run(runs / "images")
    (runs / "images" / "combination.json").unlink(missing_ok=True)


def stored_mean(run, last=2):
    """The mean of the members' test outputs, as the engine stored them in float16."""
    return run.outputs().probabilities[-last:].mean(0)


def predicted(path, **inputs):
    return onnxruntime.InferenceSession(str(path)).run(None, inputs)[0]


def test_raw_pixels_of_the_test_set_give_the_predictions_that_the_engine_stored(images, tmp_path, capsys):
    assert export(str(images.path), "--raw-inputs", "--prefixes") == 0
    shown = capsys.readouterr()
    path = images.path / "images.onnx"
    assert shown.out.split() == [str(path), f"{path}.md"]
    assert "combination.json" not in shown.err
    found = predicted(path, pixels=tiny.data().test.pixels)
    np.testing.assert_allclose(found[0], stored_mean(images, 1), atol=1e-3)
    np.testing.assert_allclose(found[1], stored_mean(images, 2), atol=1e-3)


def test_the_card_names_the_data_the_classes_the_input_format_and_the_measured_errors(images, tmp_path):
    export(str(images.path), "--format", "program", "--out", "new/e.pt2")
    card = (tmp_path / "new/e.pt2.md").read_text()
    error = 100 * images.outputs().ensemble_errors[-1]
    assert f"| test set | 20 | 2 | {error:.2f} % |" in card
    assert f"| held-out examples | 8 | 2 | {100 * images.outputs('held_out').ensemble_errors[-1]:.2f} % |" in card
    for line in ("tiny:net", "tiny, 32 training examples", "4: circle, square, star, line", "| `images` | float32 |"):
        assert line in card
    assert "pixels from 0 to 255, resized to 8 × 8 pixels with bilinear interpolation, minus the mean (" in card


def test_rows_of_a_table_give_the_predictions_that_the_engine_stored(runs, tmp_path):
    export(str(runs / "table"), "--raw-inputs", "--out", str(tmp_path / "t.onnx"))
    found = predicted(tmp_path / "t.onnx", rows=ROWS[40:])
    np.testing.assert_allclose(found, stored_mean(Run(runs / "table")), atol=1e-3)
    assert "rows of numbers; the graph standardises them" in (tmp_path / "t.onnx.md").read_text()


def test_a_fitted_combination_is_used_and_named_and_last_replaces_it(images, tmp_path, capsys):
    members = images.outputs().members
    Combination(members, temperature=0.5).save(images.path)
    command = [str(images.path), "--format", "program", "--raw-inputs", "--out", "e.pt2"]
    pixels = torch.from_numpy(tiny.data().test.pixels)

    export(*command)
    assert f"using {images.path}/combination.json: 2 of 2 members (steps 8, 16), temperature 0.500, no early exit" in (
        shown := capsys.readouterr().err
    )
    assert "early exit is not part of the file" not in shown
    squared = stored_mean(images) ** 2
    found = torch.export.load("e.pt2").module()(pixels=pixels)
    np.testing.assert_allclose(found, squared / squared.sum(-1, keepdims=True), atol=2e-3)

    export(*command, "--last", "1")
    assert "combination.json is not used, because --last 1 was given" in capsys.readouterr().err
    found = torch.export.load("e.pt2").module()(pixels=pixels)
    np.testing.assert_allclose(found, stored_mean(images, 1), atol=1e-3)


def test_the_command_says_that_early_exit_is_not_part_of_the_file(images, tmp_path, capsys):
    Combination(images.outputs().members, exit_threshold=0.4).save(images.path)
    export(str(images.path), "--format", "program", "--raw-inputs", "--out", "e.pt2")
    shown = capsys.readouterr().err
    assert "early exit at a confidence of 0.4000\nearly exit is not part of the file: the file evaluates all" in shown
    found = torch.export.load("e.pt2").module()(pixels=torch.from_numpy(tiny.data().test.pixels))
    np.testing.assert_allclose(found, stored_mean(images), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--last", "3"], "last must be between 1 and 2 (the number of members), got 3"),
        (["--format", "program", "--tolerance", "-1"], "must equal those of PyTorch within -1"),
        (["--format", "program", "--out", "file/e.pt2"], "file/e.pt2 could not be written"),
    ],
)
def test_a_rejected_export_is_one_line_and_leaves_no_file(options, message, images, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert export(str(images.path), *options) == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_a_recipe_is_rejected(tmp_path, capsys):
    assert export(str(tmp_path)) == 2
    assert "run must be a folder that holds recipe.json" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_command_that_installs_it(images, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export(str(images.path)) == 2
    assert "onnxruntime must be installed for this: pip install" in capsys.readouterr().err
