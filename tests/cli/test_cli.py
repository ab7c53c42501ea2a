"""The commands as a user types them, on tiny data and a network of the user's own."""

import shutil
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import working_folder

from snapens import Snapshots
from snapens.cli import main
from snapens.lab import data
from snapens.lab.data import glyphs
from snapens.lab.engine import pack as engine
from snapens.lab.paper import cells as paper
from snapens.lab.recipe import (
    SGD,
    Budget,
    Cutout,
    Dataset,
    Mirror,
    Network,
    Recipe,
    Settings,
    Snapshot,
    TrivialAugment,
    presets,
)
from snapens.lab.records.run import Run
from snapens.outputs import Outputs

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

def sure(classes, channels):
    return plain(classes, channels).append(nn.Softmax(1))

def wide(classes, channels):
    return plain(5, channels)

def broken(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a network of one's own and an array file of 64 images in three classes."""
    working_folder.enter(tmp_path, monkeypatch, "mine", NETWORK)
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (64, 8, 8), dtype=np.uint8)
    labels = np.arange(64) % 3
    x[np.arange(64), labels] = 255  # a bright row tells the class
    np.savez(tmp_path / "tiny.npz", x_train=x[:48], y_train=labels[:48], x_test=x[48:], y_test=labels[48:])
    return tmp_path


def train(*more, network="mine:plain", out="run"):
    flags = f"--network {network} --dataset arrays --data tiny.npz --epochs 6 --cycles 2 --batch 8 --out {out}"
    return main(["train", *flags.split(), "--held-out", "0", "--device", "cpu", *more])


def weights(path):
    snapshots = Snapshots(path)
    return {(step, name): w for step in snapshots.steps for name, w in snapshots.load(step).items()}


def test_a_recipe_is_trained_and_its_snapshots_are_shown(folder, capsys):
    assert train("--lr", "0.02", "--seed", "3") == 0
    run = Run("run")
    expected = Settings(network="mine:plain", dataset="arrays", epochs=6, cycles=2, batch=8, lr=0.02, seed=3).recipe()
    assert run.recipe == expected
    assert run.snapshots.steps == (18, 36)  # 6 epochs of 48 images in batches of 8, two cycles
    assert run.finished
    out, err = capsys.readouterr()
    assert "ensemble of the last m" in out
    assert f"{100 * run.outputs().ensemble_errors[-1]:.2f}" in out
    assert "run: epoch 6.0 / 6" in err
    assert "done" in err


def test_a_preset_is_a_name_for_flags_which_other_flags_override(folder):
    assert train("--preset", "cifar100-modern", "--lr", "0.02", "--weight-decay=0.001") == 0
    assert Run("run").recipe == Recipe(
        Network("mine:plain"),
        Dataset("arrays"),
        Snapshot(2),
        Budget(epochs=6, batch=8, warmup_epochs=1),
        SGD(lr=0.02, weight_decay=0.001, decays="weights"),
        transforms=(Mirror(), TrivialAugment(), Cutout(16)),
    )


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize(
    ("installed", "more", "noted"),
    [(False, [], True), (False, ["--network", "mine:plain"], False), (True, [], False)],
)
def test_a_preset_without_pretrained_weights_says_so(folder, capsys, monkeypatch, command, installed, more, noted):
    monkeypatch.setattr(presets, "find_spec", lambda name: object() if installed else None)
    assert main([command, "--preset", "folder-modern", "--data", "nowhere", "--device", "cpu", *more]) == 2
    message = "timm and torchvision are not installed: resnet50 is trained from random weights"
    assert (message in capsys.readouterr().err) == noted


def test_an_unknown_preset_is_rejected(folder, capsys):
    assert train("--preset=cifar100") == 2
    assert "snapens: unknown preset 'cifar100': did you mean cifar100-modern" in capsys.readouterr().err


def test_the_help_names_every_preset(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in presets.PRESETS)


def test_the_data_is_found_by_the_variable_too(folder, monkeypatch):
    monkeypatch.setenv("SNAPENS_DATA", "tiny.npz")
    flags = "--network mine:plain --dataset arrays --epochs 2 --cycles 1 --batch 8 --device cpu"
    assert main(["train", *flags.split()]) == 0
    assert main(["train", *flags.split(), "--weight-decay", "0.1"]) == 0  # another recipe, so another folder
    found = sorted((folder / "runs").iterdir())
    assert len(found) == 2
    assert all(Run(path).finished for path in found)
    assert all(path.name.startswith("mine-plain-arrays-snapshot-0.1-2-epochs-") for path in found)


def test_a_folder_with_a_run_is_rejected_and_a_finished_one_resumes_to_nothing(folder, capsys):
    assert train() == 0
    before = weights("run")
    assert train() == 2
    assert "got run: choose another folder (--out), or continue the run with --resume" in capsys.readouterr().err
    assert train("--resume") == 0
    assert train("--resume", "--lr", "0.3") == 2
    assert "lr: 0.1, 0.3" in capsys.readouterr().err
    after = weights("run")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_an_interrupt_leaves_a_run_that_resumes_to_the_same_weights(folder, capsys):
    assert train("--curves", network="mine:interrupted") == 130
    err = capsys.readouterr().err
    assert "snapens: interrupted; the same command with --resume continues" in err
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
@pytest.mark.parametrize(
    ("dataset", "out"),
    [
        ("folder", "images/run"),
        ("folder", "images/train/cats/run"),
        ("folder", "images/imagenet/../run"),
        ("imagenet", "images/imagenet/train/run"),
        ("tinyimagenet", "images/tiny-imagenet-200/run"),
    ],
)
def test_a_run_folder_inside_the_images_is_rejected(folder, capsys, monkeypatch, named, dataset, out):
    for name in ("imagenet", "tiny-imagenet-200"):
        (folder / "images" / name).mkdir(parents=True)
    monkeypatch.setenv("SNAPENS_DATA", "images")
    assert main(["train", "--dataset", dataset, *named, "--out", out]) == 2
    images = str(folder / "images" / {"folder": "", "tinyimagenet": "tiny-imagenet-200"}.get(dataset, dataset))
    assert f"out must be outside the folder of images, got {out} in {images}: choose another" in capsys.readouterr().err
    assert not list(folder.rglob("run"))


def test_a_run_folder_beside_the_images_is_accepted_and_data_without_images_may_lie_around_it(folder, capsys):
    (folder / "images/imagenet").mkdir(parents=True)
    assert main(["train", "--dataset", "imagenet", "--data", "images", "--out", "images/runs/a"]) == 2
    assert "data must be a folder that holds train/WNID" in capsys.readouterr().err
    assert train("--data", "tiny.npz", out="run") == 0


def test_the_runs_of_cells_are_not_trained_inside_the_images(folder, capsys):
    (folder / "imagenet/train").mkdir(parents=True)
    command = ["paper", "run", "resnet50-imagenet-m2", "--data", ".", "--out", "imagenet/train/runs"]
    assert main(command) == 2
    assert "out must be outside the folder of images, got imagenet/train/runs/" in capsys.readouterr().err


def test_a_finished_run_whose_outputs_are_lost_has_them_again_on_resuming(folder):
    assert train() == 0
    said = Run("run").outputs()
    shutil.rmtree(folder / "run/outputs")
    assert train("--resume") == 0
    assert np.array_equal(Run("run").outputs().log_probabilities, said.log_probabilities)


def test_a_run_that_fails_is_said_to_and_exits_with_1(folder, capsys):
    assert train("--lr", "1e30") == 1
    assert "run failed: " in capsys.readouterr().err
    assert main(["paper", "list", "resnet110-cifar10-"]) == 0  # and nothing is wrong with the next command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "resnet11"], "unknown network 'resnet11': did you mean resnet110"),
        (["--dataset", "cifar11"], "unknown dataset 'cifar11': did you mean"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--network", "mine:nothing"], "network must be module:callable that Python can import"),
        (["--network", "resnet11", "--data", "nowhere"], "unknown network 'resnet11'"),  # before any data is read
        (["--network", "mine:broken"], "network 'mine:broken' must be able to train on arrays in batches of 8, got"),
        (
            ["--network", "mine:sure"],
            "network 'mine:sure' must return logits, got probabilities: remove",
        ),
        (["--network", "mine:wide"], "network 'mine:wide' must have 3 outputs per example, got (5,)"),
        (["--batch", "49"], "batch must be at most the 48 training examples, got 49"),
        (
            ["--batch", "20", "--cycles", "15"],
            "got 14 steps (6 epochs of 48 examples in batches of 20",
        ),
        (
            ["--network", "mlp"],
            "network 'mlp' takes tables (features), but the data are images (channels): use a network",
        ),
        (["--ema", "1.5"], "ema must have a decay of more than 0 and less than 1, got 1.5"),
        (["--threads", "0"], "threads must be at least 1, got 0"),
        (["--data", "nothing.npz"], "nothing.npz"),
        (["--held-out", "48"], "held_out must be at least 0 and less than the 48 training examples, got 48"),
        (["--device", "cuda"], "device must be available, got cuda, but torch finds no GPU: use cpu or auto"),
        (["--dropout", "0.5"], "network 'mine:plain' must accept the settings and the inputs"),
    ],
)
def test_what_cannot_work_is_rejected_before_training(folder, capsys, arguments, message):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert train(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_without_tensorboard_its_files_are_rejected_before_training(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert train("--tensorboard") == 2
    assert "tensorboard must be installed for this: pip install " in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_unknown_cells_are_rejected_with_the_nearest_names(capsys):
    assert main(["paper", "run", "wrn32-cifar100-snapshot-0.3"]) == 2
    err = capsys.readouterr().err
    assert "unknown cell 'wrn32-cifar100-snapshot-0.3': did you mean" in err
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
    settings = Settings(network="mine:plain", dataset="arrays", method="single", epochs=4, cycles=2, batch=8)
    small = settings.recipe()
    single = paper.Cell("tiny", "npz", "single", small, "table 1", "last", 12.34)
    nocycle = paper.Cell("tiny", "npz", "nocycle", small, "table 1", "ensemble", 11.11)
    double = paper.Cell(
        "tiny", "npz", "snapshot-x2", replace(settings, method="snapshot").recipe(), "figure 4", "ensemble", seeds=2
    )
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell for cell in (single, nocycle, double)})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    cells = ["tiny-npz-single", "tiny-npz-nocycle", "tiny-npz-snapshot-x2"]
    assert main(["paper", "run", *cells, "--data", "tiny.npz", "--device", "cpu", "--seed", "5"]) == 0
    names = {path.name for path in (folder / "runs/paper").iterdir()}
    assert names == {"tiny-npz-single-seed5", "tiny-npz-snapshot-x2-seed10", "tiny-npz-snapshot-x2-seed11"}
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "tiny-" in line}
    outputs = Run("runs/paper/tiny-npz-single-seed5").outputs()
    assert "12.34" in lines["tiny-npz-single"]
    assert f"{100 * outputs.member_errors[-1]:.2f}" in lines["tiny-npz-single"]
    assert f"{100 * outputs.ensemble_errors[-1]:.2f}" in lines["tiny-npz-nocycle"]
    members = np.concatenate(
        [Run(f"runs/paper/tiny-npz-snapshot-x2-seed{seed}").outputs().probabilities for seed in (10, 11)]
    )
    wrong = (members.mean(0).argmax(-1) != outputs.labels).mean()
    assert f"{100 * wrong:.2f}" in lines["tiny-npz-snapshot-x2"]


def test_a_cell_is_not_trained_on_a_part_of_its_images(folder, capsys, monkeypatch):
    recipe = Settings(network="mine:plain", dataset="arrays", method="single", epochs=4, cycles=2, batch=8).recipe()
    single = paper.Cell("tiny", "npz", "single", recipe, "table 1", "last", 12.34)
    monkeypatch.setattr(paper, "_cells", lambda: {single.name: single})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    with np.load("tiny.npz") as arrays:
        images, tested = len(arrays["x_train"]), len(arrays["x_test"])
    command = ["paper", "run", "tiny-npz-single", "--data", "tiny.npz", "--device", "cpu", "--no-curves"]
    for known in ((images + 1000, tested), (images, tested + 1)):
        monkeypatch.setattr(paper, "IMAGES", {"arrays": known})
        assert main(command) == 2
        expected = f"arrays must have {known[0]:,} training and {known[1]:,} test images for a cell of the paper, got"
        assert f"{expected} {images} and {tested}" in capsys.readouterr().err
        assert not (folder / "runs").exists()
    monkeypatch.setattr(paper, "IMAGES", {"arrays": (images, tested)})
    assert main(command) == 0


def test_several_repetitions_of_a_cell_are_trained_by_one_command(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    recipe = Settings(network="mine:plain", dataset="arrays", method="single", epochs=4, cycles=2, batch=8).recipe()
    single = paper.Cell("tiny", "npz", "single", recipe, "table 1", "last", 12.34)
    monkeypatch.setattr(paper, "_cells", lambda: {single.name: single})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    command = ["paper", "run", "tiny-npz-single", "--data", "tiny.npz", "--device", "cpu", "--no-curves", "--seed"]
    assert main([*command, "2"]) == 0
    assert "tiny-npz-single-seed2 is already finished" not in capsys.readouterr().err
    assert main([*command, "2", "1", "2"]) == 0
    said = capsys.readouterr()
    assert "tiny-npz-single-seed2 is already finished" in said.err
    errors = [Run(f"runs/paper/tiny-npz-single-seed{seed}").outputs().member_errors[-1] for seed in (1, 2)]
    line = next(line for line in said.out.splitlines() if line.startswith("tiny-"))
    assert line.split()[4:7] == [*(f"{100 * error:.2f}" for error in errors), "2"]
    assert main(command) == 2
    assert "seed must have at least one value, got none: add one, or remove --seed" in capsys.readouterr().err


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


def test_the_demo_compares_and_is_shown_again_without_training(tmp_path, monkeypatch, capsys):
    short = [replace(recipe, budget=replace(recipe.budget, epochs=5)) for recipe in presets.demo(7)]
    monkeypatch.setattr(presets, "demo", lambda seed: short if seed == 7 else None)
    monkeypatch.setattr(glyphs, "load", partial(glyphs.load, train=320, test=310))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "7"]) == 0
    torch.set_num_threads(threads)
    shown = capsys.readouterr().out
    single, snapshot = Run(tmp_path / "demo/single-seed7"), Run(tmp_path / "demo/snapshot-seed7")
    assert [single.recipe, snapshot.recipe] == short
    baseline, outputs = single.outputs().member_errors[-1], snapshot.outputs()
    assert f"standard schedule: {100 * baseline:.2f} %" in shown
    assert f"ensemble of 5 snapshots {100 * outputs.ensemble_errors[-1]:.2f} %" in shown
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "7"]) == 0
    assert capsys.readouterr().out == shown


def test_a_run_begun_before_is_resumed_only_when_told_and_curves_come_later(folder, monkeypatch, capsys):
    small = Settings(network="mine:plain", dataset="arrays", epochs=4, cycles=2, batch=8).recipe()
    cell = paper.Cell("tiny", "npz", "snapshot", small, "table 1", "ensemble", 1.0)
    sys.path.insert(0, str(folder))
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    command = ["paper", "run", "tiny-npz-snapshot", "--data", "tiny.npz", "--device", "cpu"]
    load = partial(data.load, "arrays", folder / "tiny.npz")
    [training] = engine.prepare(
        [(small, "runs/paper/tiny-npz-snapshot-seed0")], lambda recipe: load(), torch.device("cpu")
    )
    engine.train([training], stop=lambda: training.completed > 5)
    assert main(command) == 2
    assert (
        "interrupted runs must be continued with --resume, got runs/paper/tiny-npz-snapshot-seed0"
        in capsys.readouterr().err
    )
    assert main([*command, "--resume", "--no-curves"]) == 0
    assert Run("runs/paper/tiny-npz-snapshot-seed0").curves() is None
    assert main(command) == 0
    assert Run("runs/paper/tiny-npz-snapshot-seed0").curves() is not None


def test_a_run_is_trained_without_the_packages_of_the_report_and_a_line_says_why_there_is_none(
    folder, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "jinja2", None)  # importing it fails
    assert train() == 0
    assert Run("run").finished
    assert "\nno report: jinja2 must be installed for this: pip install " in capsys.readouterr().out


def test_a_report_is_written_to_the_given_place(folder, capsys):
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
    assert (
        "out must be a page or a folder, got pages/one.png: add --format png for its parts" in capsys.readouterr().err
    )
    assert main(["report", "run", "--format", "csv", "--out", "one.csv"]) == 2
    assert "out must be a folder, because there are several files, got one.csv" in capsys.readouterr().err
    assert not list(folder.glob("**/one.*g")) + list(folder.glob("one.csv"))
    assert main(["report", "run", "--out", "new"]) == 0
    assert capsys.readouterr().out == "new/report.html\n"
    assert main(["report", "tiny.npz"]) == 2
    assert "run must be a folder that holds recipe.json, got tiny.npz" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "runs must name at least one run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["report"], ["evaluate"], ["evaluate", "--part", "held_out"], ["combine"], ["export", "--import-network"]],
)
def test_a_run_that_stopped_before_its_first_snapshot_is_to_be_resumed(folder, capsys, monkeypatch, command):
    from snapens.lab.engine import training

    monkeypatch.setattr(training, "_BURST_STEPS", 1)
    assert train(network="mine:interrupted") == 130  # after 8 of 36 steps; the first snapshot is at step 18
    capsys.readouterr()
    assert main([*command, "run"]) == 2
    assert capsys.readouterr().err == (
        "snapens: run must contain a snapshot, got run, which stopped before its first one (or is still training): "
        "its command with --resume continues it\n"
    )


def test_a_report_is_written_to_the_folder_of_the_run_that_it_is_about(folder, capsys):
    assert train(out="one/a") == 0
    assert train("--method", "single", out="b") == 0
    before = (folder / "b/report.html").read_text()
    capsys.readouterr()
    for arguments, written in (
        (["b", "one/a"], "one/a/report.html"),  # about the Snapshot Ensemble, with b as its baseline
        (["b", "one"], "one/a/report.html"),
        (["one", "b"], "one/report.html"),  # a folder of runs
        (["one", "b", "--focus", "b"], "one/report.html"),
        (["b", "one/a", "--out", "page.html"], "page.html"),
    ):
        assert main(["report", *arguments]) == 0
        assert capsys.readouterr().out == f"{written}\n"
        page = (folder / written).read_text()
        assert ("<title>b" if "--focus" in arguments else "<title>a") in page
    assert (folder / "b/report.html").read_text() == before
    assert main(["report", "b", "one/a", "--format", "csv"]) == 0
    assert {line.rpartition("/")[0] for line in capsys.readouterr().out.split()} == {"one/a/report"}
    assert main(["report", "one/a", "b", "--focus", "b"]) == 0
    assert capsys.readouterr().out == "b/report.html\n"


def test_a_report_of_a_loop_of_the_users_own_needs_only_outputs(folder, capsys):
    snapshots = Snapshots("all/own")
    snapshots.open_to_write()
    snapshots.commit(1, {"weight": torch.zeros(1)})
    assert main(["report", "all/own"]) == 2
    needed = "all/own must contain outputs of the part 'test' or 'held_out', got none: save them with Ensemble.load("
    assert needed in capsys.readouterr().err
    member = (snapshots.identity["run"], 1)
    outputs = Outputs((member,), np.log([[[0.25, 0.75]]]).astype(np.float16), labels=np.array([1]))
    outputs.save("all/own", part="extra")
    assert main(["report", "all/own"]) == 2
    assert "must contain outputs of the part 'test' or 'held_out', got extra: save them" in capsys.readouterr().err
    outputs.save("all/own", part="test")
    for path in ("all/own", "all"):
        assert main(["report", path]) == 0
        assert capsys.readouterr().out == f"{path}/report.html\n"
    assert main(["report", "all", "--format", "csv"]) == 0
    assert (folder / "all/report/runs.csv").read_text().splitlines()[1].startswith("own,,,0.0,0.0,")


def test_a_report_of_a_folder_is_about_the_data_of_its_focus(folder, capsys, caplog):
    with np.load("tiny.npz") as arrays:
        np.savez("other.npz", **{**arrays, "y_test": arrays["y_test"][::-1], "x_test": arrays["x_test"][::-1]})
    assert train(out="all/b") == 0
    assert train(out="all/c") == 0
    assert train("--data", "other.npz", out="all/a") == 0
    capsys.readouterr()
    assert main(["report", "all", "--format", "csv", "--focus", "b"]) == 0
    assert "all/a is left out: its data are not those of all/b, which the report is about" in caplog.text
    runs = (folder / "all/report/runs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in runs[1:]] == ["b", "c"]


def test_the_preparation_is_announced_after_the_checks(folder, capsys):
    for rejected in (["--network", "mlp"], ["--data", "nothing.npz"]):
        assert train(*rejected) == 2
        assert "preparing" not in capsys.readouterr().err
    assert train() == 0
    assert "reading arrays\npreparing 1 run: a trial step\n" in capsys.readouterr().err
    assert train() == 2
    assert "preparing" not in capsys.readouterr().err


def test_a_report_of_a_folder_is_of_the_runs_in_it(folder, capsys, caplog):
    for name in ("b", "a"):
        assert train(out=f"all/{name}") == 0
    assert train("--lr", "1e30", out="all/failed") == 1
    (folder / "all/none").mkdir()
    (folder / "all/notes.txt").touch()
    capsys.readouterr()
    assert main(["report", "all", "--format", "csv"]) == 0
    assert "all/failed is skipped: it has no outputs of snapshots yet" in caplog.text
    assert {line.split("/")[0] for line in capsys.readouterr().out.split()} == {"all"}
    runs = (folder / "all/report/runs.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in runs[1:]] == ["a", "b"]
    for focus, first in ((("--focus", "b"), "b"), ((), "a")):
        assert main(["report", "all", "--format", "csv", *focus]) == 0
        answer = (folder / "all/report/answer.csv").read_text().splitlines()
        assert answer[-1].split(",")[:2] == ["ensemble", first]
    capsys.readouterr()
    assert main(["report", "all", "--focus", "c"]) == 2
    assert "unknown focus 'c'" in capsys.readouterr().err
    assert main(["report", "all/none"]) == 2
    assert "run must be a folder that holds recipe.json, got all/none" in capsys.readouterr().err
