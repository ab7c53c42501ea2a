"""The comparison of predictions; none of it depends on how long things take."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from snapens.cli import main
from snapens.combination import Combination
from snapens.errors import ArgumentError
from snapens.lab import data
from snapens.lab.engine import pack, speed
from snapens.lab.recipe import Settings
from snapens.lab.records.run import Run
from snapens.storage import jsonfile

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on small images, and its data."""
    folder = tmp_path_factory.mktemp("speed")
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (72, 8, 8, 3), dtype=np.uint8)
    y = np.arange(72) % 4
    np.savez(folder / "tiny.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    recipe = Settings(network="small", dataset="arrays", epochs=6, cycles=3, batch=8).recipe()
    pack.train(pack.prepare([(recipe, folder / "run")], lambda recipe: data.load("arrays", folder / "tiny.npz"), CPU))
    return folder / "run", folder / "tiny.npz"


@pytest.fixture
def _clock(monkeypatch):
    """A clock that ticks a second whenever it is read."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


@pytest.mark.usefixtures("_clock")
def test_each_kind_of_prediction_is_timed_for_whole_batches(trained):
    subject = speed.of_run(*trained, 0.5, [3, 5], CPU)
    seen = []
    subject.full, subject.exit = (lambda inputs, k=k: seen.append((k, len(inputs))) for k in ("full", "exit"))
    found = list(subject.timings(5, seconds=12.0))
    assert [timing.what for timing in found] == [
        "one model", "Ensemble of 3", "Predictor of 3", "Predictor with early exit",
    ]  # fmt: skip
    assert {(timing.batch, timing.median_ms, timing.mean_ms, timing.calls) for timing in found} == {(5, 1e3, 1e3, 12)}
    assert seen == [("full", 5)] * 15 + [("exit", 5)] * 15  # with three calls before the measurement


def test_the_quality_is_that_of_the_stored_outputs(trained):
    outputs = Run(trained[0]).outputs("test")
    subject = speed.of_run(*trained, 1e-6, [4], CPU)
    found = dict(subject.qualities())
    everything, first = 100 * outputs.ensemble_errors[-1], 100 * outputs.member_errors[-1]
    assert found["all members"] == speed.Quality(pytest.approx(everything), 3.0, 0.0, 0.0)
    assert found["early exit"].error_percent == pytest.approx(first)
    assert found["early exit"].members_used == 1
    assert found["early exit"].more_errors_percent == pytest.approx(first - everything)
    wrong = [
        outputs.probabilities[-1].argmax(-1) != outputs.labels,
        outputs.probabilities.mean(0).argmax(-1) != outputs.labels,
    ]
    paired = np.std(np.subtract(*wrong, dtype=float), ddof=1) / len(outputs.labels) ** 0.5
    assert found["early exit"].standard_error_percent == pytest.approx(100 * paired)


def test_the_combination_of_the_folder_is_used(trained):
    path, root = trained
    run = Run(path)
    members = tuple((run.identity, step) for step in run.snapshots.steps[1:])
    Combination(members, temperature=2.0, exit_threshold=0.25).save(path)
    try:
        subject = speed.of_run(path, root, None, [4], CPU)
        assert subject.ensemble.combination == Combination(members, temperature=2.0, exit_threshold=0.25)
        assert speed.of_run(path, root, 0.75, [4], CPU).ensemble.combination.exit_threshold == 0.75
        random = speed.of_run(path, None, None, [4], CPU)
        assert random.ensemble.combination.exit_threshold is None
        assert random.inputs.shape == (8, 3, 8, 8)
        assert list(random.qualities()) == []
    finally:
        (path / "combination.json").unlink()


def test_more_examples_than_the_test_set_has_are_rejected(trained):
    with pytest.raises(
        ArgumentError, match=r"batches must be at most 32 \(the test examples\), got 33: use smaller ones"
    ):
        speed.of_run(*trained, None, [1, 33], CPU)


def test_the_command_prints_ratios_and_writes_them(trained, tmp_path, capsys, monkeypatch):
    path, root = trained
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(speed, "_FEWEST_CALLS", 1)
    command = ["bench", "predict", "--run", str(path), "--data", str(root), "--threshold", "0.5", "--batches", "1", "4"]
    assert main([*command, "--seconds", "0", "--device", "cpu", "--out", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "3 members (steps 10, 20, 30), temperature 1.000, early exit at a confidence of 0.5000" in shown
    assert "early exit: " in shown
    assert "members per example, error " in shown
    content = jsonfile.loads((tmp_path / "out.json").read_bytes())["networks"]["run"]
    assert content["exit_threshold"] == 0.5
    assert [(row["what"], row["batch"]) for row in content["timings"]] == [
        (what, batch)
        for batch in (1, 4)
        for what in ("one model", "Ensemble of 3", "Predictor of 3", "Predictor with early exit")
    ]
    ones = {row["batch"]: row["median_ms"] for row in content["timings"] if row["what"] == "one model"}
    assert all(row["ratio"] == pytest.approx(row["median_ms"] / ones[row["batch"]]) for row in content["timings"])


def test_the_command_says_how_many_members_of_the_run_it_uses(trained, capsys, monkeypatch):
    path, _ = trained
    monkeypatch.chdir(path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(speed, "_FEWEST_CALLS", 1)
    run = Run(path)
    Combination(tuple((run.identity, step) for step in run.snapshots.steps[1:])).save(path)
    try:
        assert main(["bench", "predict", "--run", ".", "--batches", "1", "--seconds", "0", "--device", "cpu"]) == 0
    finally:
        (path / "combination.json").unlink()
    shown = capsys.readouterr().out
    assert "2 of 3 members (steps 20, 30)" in shown
    assert shown.splitlines()[-1].startswith("run ")


def test_the_network_of_a_run_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    Run("run").begin(Settings(network="own:build", dataset="arrays", epochs=1, cycles=1, batch=8).recipe(), {})
    seen = []

    def of_run(*arguments):
        seen.extend(sys.path)
        raise ArgumentError("enough")

    monkeypatch.setattr(speed, "of_run", of_run)
    assert main(["bench", "predict", "--run", "run", "--device", "cpu", "--import-network"]) == 2
    assert seen[-1] == str(tmp_path)


def test_a_network_by_its_name_gets_random_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speed, "_FEWEST_CALLS", 1)
    command = ["bench", "predict", "small", "--members", "2", "--batches", "2", "--seconds", "0", "--device", "cpu"]
    assert main([*command, "--out", str(tmp_path / "new/found.json")]) == 0
    assert list(json.loads((tmp_path / "new/found.json").read_text())["networks"]) == ["small"]
    shown = capsys.readouterr().out
    assert [line.split()[2:-3] for line in shown.splitlines()[-3:]] == [
        ["one", "model"], ["Ensemble", "of", "2"], ["Predictor", "of", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["predict", "--threshold", "0.5"], "threshold and data need the snapshots of a run: add --run FOLDER"),
        (["predict", "--data", "."], "threshold and data need the snapshots of a run: add --run FOLDER"),
        (["predict", "--batches", "4", "0"], "batches must be at least 1, got 0"),
        (["predict", "--batches"], "batches must be at least 1, got 0"),
        (["predict", "--members", "0"], "members must be at least 1, got 0"),
        (["predict", "--seconds", "nan"], "seconds must be finite and at least 0, got nan"),
        (["predict", "--run", "r", "small"], "networks and members must not be given together with a run"),
        (["predict", "--run", "r", "--members", "2"], "networks and members must not be given together with a run"),
        (
            ["predict", "--run", "r", "--threshold", "0.5"],
            "threshold must be given together with data, because",
        ),
        (["train", "--pack", "0"], "pack must be at least 1, got 0"),
        (["train", "--batch", "-1"], "batch must be at least 1, got -1"),
        (["train", "--seconds", "-1"], "seconds must be finite and at least 0, got -1.0"),
    ],
)
def test_options_that_make_no_sense_are_rejected(options, message, capsys):
    assert main(["bench", *options]) == 2
    assert capsys.readouterr().err.startswith(f"snapens: {message}")
