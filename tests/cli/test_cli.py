"""The commands as a user types them, on tiny data and a network of the user's own."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from snapens import Snapshots
from snapens.cli import main, progress
from snapens.lab import data
from snapens.lab.data import glyphs
from snapens.lab.engine import pack as engine
from snapens.lab.paper import cells as paper
from snapens.lab.recipe import presets as demo
from snapens.lab.recipe.recipe import Recipe
from snapens.lab.records.run import Run

NETWORK = """
import os, signal
from torch import nn

class Interrupting(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.calls, self.at = 0, at

    def forward(self, x):
        self.calls += 1
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        return x

def plain(classes, channels, at=0):
    return nn.Sequential(nn.Flatten(), Interrupting(at), nn.Linear(64 * channels, classes))

def interrupted(classes, channels):
    return plain(classes, channels, at=9)

def wide(classes, channels):
    return plain(5, channels)

def broken(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a network of one's own and an array file of 64 images in three classes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(NETWORK)
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (64, 8, 8), dtype=np.uint8)
    labels = np.arange(64) % 3
    x[np.arange(64), labels] = 255  # a bright row tells the class
    np.savez(tmp_path / "tiny.npz", x_train=x[:48], y_train=labels[:48], x_test=x[48:], y_test=labels[48:])
    return tmp_path


def train(*more, network="mine:plain", out="run"):
    flags = f"--network {network} --dataset arrays --data tiny.npz --epochs 6 --cycles 2 --batch 8 --out {out}"
    return main(["train", *flags.split(), "--device", "cpu", *more])


def weights(path):
    snapshots = Snapshots(path)
    return {(step, name): w for step in snapshots.steps for name, w in snapshots.load(step).items()}


def test_a_recipe_is_trained_and_its_snapshots_are_shown(folder, capsys):
    assert train("--lr", "0.02", "--seed", "3") == 0
    run = Run("run")
    expected = Recipe(
        network="mine:plain", dataset="arrays", method="snapshot", epochs=6, cycles=2, batch=8, lr=0.02, seed=3
    )
    assert run.recipe == expected
    assert run.snapshots.steps == (18, 36)  # 6 epochs of 48 images in batches of 8, two cycles
    assert run.finished
    out, err = capsys.readouterr()
    assert "the last m together" in out
    assert f"{100 * run.outputs().ensemble_errors[-1]:.2f}" in out
    assert "run: epoch 6.0 / 6" in err
    assert "done" in err


def test_the_data_is_found_by_the_variable_too(folder, monkeypatch):
    monkeypatch.setenv("SNAPENS_DATA", "tiny.npz")
    flags = "--network mine:plain --dataset arrays --epochs 2 --cycles 1 --batch 8 --device cpu"
    assert main(["train", *flags.split()]) == 0
    assert Run("runs/mine-plain-arrays-snapshot-0.1-2-epochs-seed0").finished


def test_a_folder_with_a_run_is_refused_and_a_finished_one_resumes_to_nothing(folder, capsys):
    assert train() == 0
    before = weights("run")
    assert train() == 2
    assert "run must be a folder without a run, got run: choose another, or resume" in capsys.readouterr().err
    assert train("--resume") == 0
    assert train("--resume", "--lr", "0.3") == 2
    assert "lr: 0.1, 0.3" in capsys.readouterr().err
    after = weights("run")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_an_interrupt_leaves_a_run_that_resumes_to_the_same_weights(folder, capsys):
    assert train("--curves", network="mine:interrupted") == 130
    err = capsys.readouterr().err
    assert "interrupted; the same command with --resume goes on" in err
    assert "measuring" not in err
    assert not Run("run").finished
    while (status := train("--resume", network="mine:interrupted")) == 130:  # at the ninth call of each process
        assert not Run("run").finished
    assert status == 0
    assert train(network="mine:plain", out="whole") == 0
    ours, whole = weights("run"), weights("whole")
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[key], whole[key]) for key in whole)


@pytest.mark.parametrize("named", [["--data", "images"], []])
def test_a_run_among_the_images_is_refused(folder, capsys, monkeypatch, named):
    (folder / "images").mkdir()
    monkeypatch.setenv("SNAPENS_DATA", "images")
    assert main(["train", "--dataset", "folder", *named, "--out", "images/run"]) == 2
    assert "out must lie outside the images, got images/run in images" in capsys.readouterr().err


def test_a_finished_run_whose_outputs_are_lost_has_them_again_on_resuming(folder):
    assert train() == 0
    said, outputs = Run("run").outputs(), folder / "run/outputs.safetensors"
    outputs.unlink()
    assert train("--resume") == 0
    assert np.array_equal(Run("run").outputs().log_probabilities, said.log_probabilities)


def test_a_run_that_fails_is_said_to_and_exits_with_1(folder, capsys):
    assert train("--lr", "1e30") == 1
    assert "run failed: " in capsys.readouterr().err
    assert main(["paper", "list", "resnet110-cifar10-"]) == 0  # and nothing is wrong with the next command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "resnet11"], "network must be a known one, got 'resnet11': did you mean resnet110"),
        (["--dataset", "cifar11"], "dataset must be a known one, got 'cifar11': did you mean"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--network", "mine:nothing"], "network must be module:callable that Python can import"),
        (["--network", "resnet11", "--data", "nowhere"], "network must be a known one"),  # before any data is read
        (["--network", "mine:broken"], "network 'mine:broken' must be able to train on arrays in batches of 8, got"),
        (["--network", "mine:wide"], "network 'mine:wide' must have 3 outputs an image, got (5,)"),
        (["--batch", "49"], "batch must be at most the 48 training images, got 49"),
        (
            ["--batch", "20", "--cycles", "15"],
            "got 14 steps (6 epochs of 48 images in batches of 20",
        ),
        (["--threads", "0"], "threads must be at least 1, got 0"),
        (["--data", "nothing.npz"], "nothing.npz"),
        (["--held-out", "48"], "held_out must be at least 0 and less than the 48 training images, got 48"),
        (["--device", "cuda"], "device must be one that is here, got cuda"),
        (["--dropout", "0.5"], "network 'mine:plain' must accept what is asked of it"),
    ],
)
def test_what_cannot_work_is_refused_before_training(folder, capsys, arguments, message):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert train(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_without_tensorboard_its_files_are_refused_before_training(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train("--tensorboard") == 2
    assert 'pip install "snapens[log]"' in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_unknown_cells_are_refused_with_the_nearest_names(capsys):
    assert main(["paper", "run", "wrn32-cifar100-snapshot-0.3"]) == 2
    err = capsys.readouterr().err
    assert "cell must be a known one" in err
    assert "wrn32-cifar100-snapshot-0.2" in err
    assert main(["paper", "run"]) == 2
    assert "cells must name at least one" in capsys.readouterr().err
    assert main(["paper", "list", "wrn32-cifar11"]) == 2
    assert "did you mean wrn32-cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["60", "200"])
def test_all_cells_are_listed_with_their_published_values(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["paper", "list"]) == 0
    out = capsys.readouterr().out
    assert all(cell.name in out for cell in paper.cells())
    headline = next(line for line in out.splitlines() if "densenet100-cifar100-snapshot-0.2 " in line)
    assert "17.41" in headline
    starred = next(line for line in out.splitlines() if "densenet40-cifar10-single " in line)
    assert "5.24*" in starred


def test_the_runs_of_some_cells_are_trained_together_and_shown_beside_the_published_values(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    small = Recipe(network="mine:plain", dataset="arrays", method="single", epochs=4, cycles=2, batch=8)
    single = paper.Cell("tiny-single", small, "table 1", "last", 12.34)
    nocycle = paper.Cell("tiny-nocycle", small, "table 1", "ensemble", 11.11)
    double = paper.Cell("tiny-snapshot-x2", replace(small, method="snapshot"), "figure 4", "ensemble", seeds=2)
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell for cell in (single, nocycle, double)})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    cells = ["tiny-single", "tiny-nocycle", "tiny-snapshot-x2"]
    assert main(["paper", "run", *cells, "--data", "tiny.npz", "--device", "cpu", "--seed", "5"]) == 0
    names = {path.name for path in (folder / "runs/paper").iterdir()}
    assert names == {"tiny-single-seed5", "tiny-snapshot-x2-seed10", "tiny-snapshot-x2-seed11"}
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "tiny-" in line}
    outputs = Run("runs/paper/tiny-single-seed5").outputs()
    assert "12.34" in lines["tiny-single"]
    assert f"{100 * outputs.member_errors[-1]:.2f}" in lines["tiny-single"]
    assert f"{100 * outputs.ensemble_errors[-1]:.2f}" in lines["tiny-nocycle"]
    members = np.concatenate(
        [Run(f"runs/paper/tiny-snapshot-x2-seed{seed}").outputs().probabilities for seed in (10, 11)]
    )
    assert main(["paper", "run", "tiny-nocycle", "--data", "tiny.npz", "--device", "cpu", "--seed", "5"]) == 0
    assert "11.11" in capsys.readouterr().out  # its run is there already
    wrong = (members.mean(0).argmax(-1) != outputs.labels).mean()
    assert f"{100 * wrong:.2f}" in lines["tiny-snapshot-x2"]


def test_the_lines_between_the_snapshots_are_measured_on_demand_even_later(folder):
    assert train() == 0
    assert Run("run").curves() is None
    assert train("--resume", "--curves") == 0
    assert [line.snapshot for line in Run("run").curves().lines] == [1]


def test_tensorboard_reads_what_was_logged(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--tensorboard") == 0
    events = EventAccumulator(str(folder / "run/tensorboard")).Reload()
    logged = [line["loss"] for line in Run("run").log() if line["event"] == "trained"]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(logged)
    assert [event.step for event in events.Scalars("test_error")] == [18, 36]


def test_a_terminal_gets_bars():
    training = SimpleNamespace(
        run=SimpleNamespace(path=SimpleNamespace(name="a-run")),
        recipe=SimpleNamespace(epochs=10),
        total_steps=100,
        completed=50,
        epoch=5.0,
        lr=0.05,
        loss=1.25,
        images_per_second=1234.0,
        finished=True,
        failure=None,
    )
    bars = progress.Bars([training])
    bars(training)
    text = "".join(str(column(bars._progress.tasks[0])) for column in bars._progress.columns[2:6])
    bars.close()
    assert text == "epoch 5.0 / 10lr 0.0500loss 1.2501,234 images/s"


def test_a_download_shows_its_bytes():
    with progress.Download("cifar10") as bar:
        bar(0, 100)
        bar(60, 100)
        task = bar._progress.tasks[0]
    assert (task.completed, task.total, task.description) == (60, 100, "fetching cifar10")


def test_the_demo_compares_and_is_shown_again_without_training(tmp_path, monkeypatch, capsys):
    small = replace(demo._SNAPSHOT, epochs=5)
    monkeypatch.setattr(demo, "_SNAPSHOT", small)
    monkeypatch.setattr(glyphs, "load", partial(glyphs.load, train=320, test=310))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "7"]) == 0
    torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    single, snapshot = Run(tmp_path / "demo/single-seed7"), Run(tmp_path / "demo/snapshot-seed7")
    assert (single.recipe.method, single.recipe.lr, single.recipe.epochs) == ("single", 0.1, 5)
    assert snapshot.recipe == replace(small, seed=7)
    baseline, outputs = single.outputs().member_errors[-1], snapshot.outputs()
    assert f"standard schedule: {100 * baseline:.2f} %" in shown
    assert f"ensemble of 5 {100 * outputs.ensemble_errors[-1]:.2f} %" in shown
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "7"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("command", ["demo", "train", "paper list", "paper run", "bench"])
def test_every_command_explains_itself(command):
    shown = subprocess.run(
        [sys.executable, "-m", "snapens", *command.split(), "--help"], capture_output=True, text=True, check=True
    )
    assert f"snapens {command}" in shown.stdout


def test_a_run_begun_before_is_resumed_only_when_told_and_curves_come_later(folder, monkeypatch, capsys):
    small = Recipe(network="mine:plain", dataset="arrays", method="snapshot", epochs=4, cycles=2, batch=8)
    cell = paper.Cell("tiny", small, "table 1", "ensemble", 1.0)
    sys.path.insert(0, str(folder))
    monkeypatch.setattr(paper, "_cells", lambda: {"tiny": cell})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    command = ["paper", "run", "tiny", "--data", "tiny.npz", "--device", "cpu"]
    load = partial(data.load, "arrays", folder / "tiny.npz")
    [training] = engine.prepare([(small, "runs/paper/tiny-seed0")], lambda recipe: load(), torch.device("cpu"))
    engine.train([training], stop=lambda: training.completed > 5)
    assert main(command) == 2
    assert "run must be finished or not begun, got runs/paper/tiny-seed0" in capsys.readouterr().err
    assert main([*command, "--resume", "--no-curves"]) == 0
    assert Run("runs/paper/tiny-seed0").curves() is None
    assert main(command) == 0
    assert Run("runs/paper/tiny-seed0").curves() is not None


def test_a_report_is_written_where_it_is_asked_for(folder, capsys):
    assert train() == 0
    assert "report: run/report.html" in capsys.readouterr().out
    assert main(["report", "run", "--out", "pages/one.html"]) == 0
    assert capsys.readouterr().out == "pages/one.html\n"
    assert (folder / "pages/one.html").read_text().startswith("<!doctype html>")
    assert main(["report", "run", "--out", "pages"]) == 0
    assert capsys.readouterr().out == "pages/report.html\n"
    assert main(["report", "run", "--format", "csv", "--out", "pieces"]) == 0
    assert all(line.startswith("pieces/") for line in capsys.readouterr().out.split())
    assert main(["report", "run", "--out", "pages/one.png"]) == 2
    assert "out must be a page or a folder, got pages/one.png: add --format png" in capsys.readouterr().err
    assert main(["report", "run", "--format", "csv", "--out", "one.csv"]) == 2
    assert "out must be a folder, for there are several pieces, got one.csv" in capsys.readouterr().err
    assert not list(folder.glob("**/one.*g")) + list(folder.glob("one.csv"))
    assert main(["report", "tiny.npz"]) == 2
    assert "run must be a folder that holds recipe.json, got tiny.npz" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "runs must name at least one run folder" in capsys.readouterr().err


def test_a_report_of_a_folder_is_of_the_runs_in_it(folder, capsys, caplog):
    for name in ("b", "a"):
        assert train(out=f"all/{name}") == 0
    assert train("--lr", "1e30", out="all/failed") == 1
    (folder / "all/none").mkdir()
    (folder / "all/notes.txt").touch()
    capsys.readouterr()
    assert main(["report", "all", "--format", "csv"]) == 0
    assert "all/failed is left out: it has no outputs of snapshots yet" in caplog.text
    assert {line.split("/")[0] for line in capsys.readouterr().out.split()} == {"all"}
    runs = (folder / "all/report/runs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in runs[1:]] == ["a", "b"]
    assert main(["report", "all/none"]) == 2
    assert "run must be a folder that holds recipe.json, got all/none" in capsys.readouterr().err
