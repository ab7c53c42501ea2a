"""`snapens distill`, on tiny data and networks of the user's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import working_folder

from snapens.cli import main
from snapens.cli.distillation import Distill
from snapens.cli.options import TrainingOptions
from snapens.combination import Combination
from snapens.errors import StoreError
from snapens.lab.engine.world import World
from snapens.lab.recipe import EMA, SAM, Budget, Distillation, Network, Recipe, Settings, Teacher
from snapens.lab.records.run import Run

NETWORK = """
import os, signal
from torch import nn

class Interrupting(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return x

def plain(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(64 * channels, classes))

def interrupted(classes, channels):
    return nn.Sequential(nn.Flatten(), Interrupting(), nn.Linear(64 * channels, classes))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with networks, an array file of 48 training images, and a finished run with two snapshots."""
    working_folder.enter(tmp_path, monkeypatch, "pupil", NETWORK)
    x, labels = np.random.default_rng(0).integers(0, 256, (64, 8, 8), dtype=np.uint8), np.arange(64) % 3
    np.savez(tmp_path / "tiny.npz", x_train=x[:48], y_train=labels[:48], x_test=x[48:], y_test=labels[48:])
    flags = "--network pupil:plain --dataset arrays --data tiny.npz --epochs 6 --cycles 2 --batch 8 --held-out 6"
    assert main(["train", *flags.split(), "--ema", "0.5", "--lr", "0.02", "--device", "cpu", "--out", "run"]) == 0
    return tmp_path


def distill(*more, run="run", out="student"):
    flags = f"{run} --data tiny.npz --epochs 4 --share 0.5 --temperature 2 --device cpu --out {out}"
    return main(["distill", *flags.split(), *more, "--import-network"])


def test_a_run_is_distilled_into_a_run_like_any_other(folder, capsys):
    capsys.readouterr()
    assert distill("--lr", "0.01", "--seed", "2") == 0
    teacher, student = Run("run"), Run("student")
    settings = Settings(
        network="pupil:plain",
        dataset="arrays",
        epochs=4,
        cycles=1,
        batch=8,
        lr=0.01,
        seed=2,
        held_out=6,
    )  # without the average of the teacher
    objective = Distillation(Teacher(str(teacher.identity), (15, 31)), 0.5, 2.0)
    assert student.recipe == replace(settings.recipe(), objective=objective)
    assert student.finished
    assert student.snapshots.steps == (21,)  # 4 epochs of 42 images in batches of 8
    assert np.array_equal(student.outputs("held_out").labels, teacher.outputs("held_out").labels)
    shown = " ".join(capsys.readouterr().out.split())
    outputs = teacher.outputs()
    last, ensemble = outputs.member_errors[-1], outputs.ensemble_errors[-1]
    assert f"last snapshot {100 * last:.2f} %, ensemble of 2 snapshots {100 * ensemble:.2f} %." in shown
    assert f"Test error of the student: {100 * student.outputs().member_errors[-1]:.2f} %." in shown
    assert "report: student/report.html" in shown
    assert main(["report", "student", "run"]) == 0


def test_all_processes_learn_of_a_teacher_that_one_of_them_cannot_read(folder, monkeypatch):
    agree, shared = World.agree, []

    def noted(self, action):
        shared.append(True)
        try:
            return agree(self, action)
        finally:
            shared.pop()

    def unreadable(run, allowed):
        assert shared
        raise StoreError("the folder cannot be read")

    monkeypatch.setattr(World, "agree", noted)
    monkeypatch.setattr("snapens.cli.loader.import_network_of", unreadable)
    assert distill() == 2


def test_by_default_the_folder_is_named_after_the_recipe(folder):
    assert main(["distill", "run", "--data", "tiny.npz", "--epochs", "1", "--device", "cpu", "--import-network"]) == 0
    (found,) = (folder / "runs").iterdir()
    assert found.name.startswith("distilled-pupil-plain-arrays-snapshot-0.02-1-epochs-")
    assert Run(found).finished


def test_the_teacher_is_the_combination_in_its_folder_or_its_last_snapshots(folder, capsys):
    run = str(Run("run").identity)
    Combination(((run, 15), (run, 31)), (0, 2.0), temperature=1.5, exit_threshold=0.8).save("run")
    assert distill() == 0
    out, err = capsys.readouterr()
    assert Run("student").recipe.objective.teacher == Teacher(run, (31,), (2.0,), 1.5)
    assert "using run/combination.json: 2 of 2 members" in err
    assert "ensemble of 1 snapshot " in " ".join(out.split())
    assert distill("--last", "2", out="other") == 0
    assert Run("other").recipe.objective.teacher == Teacher(run, (15, 31))
    (folder / "run/combination.json").write_text("{}")
    assert distill(out="third") == 2
    assert "run/combination.json" in capsys.readouterr().err


def test_an_interrupted_distillation_resumes_to_the_same_weights(folder, capsys):
    assert distill("--network", "pupil:interrupted") == 130
    assert "snapens: interrupted; the same command with --resume continues" in capsys.readouterr().err
    assert not Run("student").finished
    assert distill("--network", "pupil:interrupted", "--resume", "--last", "1") == 2
    assert "objective.teacher.steps: (15, 31), (31,)" in capsys.readouterr().err
    while (status := distill("--network", "pupil:interrupted", "--resume")) == 130:
        pass
    assert status == 0
    assert distill(out="whole") == 0
    ours, whole = (Run(name).snapshots.load(21) for name in ("student", "whole"))
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--share", "2"], "share must be more than 0 and at most 1, got 2.0"),
        (["--temperature", "0"], "temperature must be a finite number greater than 0, got 0.0"),
        (["--last", "3"], "last must be between 1 and 2 (the number of members), got 3"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--data", "other.npz"], "data must be that of the teacher in run, got other images"),
        (["--network", "mlp"], "network 'mlp' takes tables (features), but the data are images"),
        (["--out", "run"], "run must be a folder without a run, got run: choose another folder (--out), or"),
    ],
)
def test_a_distillation_that_breaks_a_rule_is_rejected(folder, capsys, arguments, message):
    arrays = dict(np.load("tiny.npz"))
    np.savez("other.npz", **{**arrays, "y_train": arrays["y_train"][::-1]})
    assert distill(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "student").exists()


def test_a_folder_without_a_run_is_rejected(folder, capsys):
    assert distill(run="nothing") == 2
    assert (
        "run must be a folder that holds recipe.json, got nothing, which does not exist: check the path"
        in capsys.readouterr().err
    )


def test_a_student_does_not_inherit_the_number_of_processes_of_its_teacher():
    command = Distill(Path("run"), epochs=1, training=TrainingOptions())
    assert command._recipe(Recipe(batchnorm_parts=2), Teacher("run", (1,))).batchnorm_parts == 1


def test_a_student_with_another_network_takes_over_only_the_stride_of_the_first_layer():
    network, budget = Network("timm:resnet50", dropout=0.2, stem_stride=2, pretrained=True), Budget(90, 32, 5)
    teacher = Recipe(network, budget=budget, averaging=EMA(), sharpness=SAM())
    command = Distill(Path("run"), epochs=3, training=TrainingOptions(), network="timm:resnet18")
    student = command._recipe(teacher, Teacher("run", (1,)))
    assert student.network == Network("timm:resnet18", stem_stride=2)
    assert (student.budget, student.averaging, student.sharpness) == (Budget(3, 32), None, None)
    pretrained = replace(command, pretrained=True)._recipe(teacher, Teacher("run", (1,)))
    assert pretrained.network == Network("timm:resnet18", stem_stride=2, pretrained=True)


@pytest.mark.parametrize("of_teacher", [True, False])
def test_a_student_with_the_network_of_its_teacher_can_start_from_pretrained_weights(of_teacher):
    teacher = Recipe(Network("timm:resnet50", pretrained=of_teacher))
    command = Distill(Path("run"), epochs=1, training=TrainingOptions())
    assert command._recipe(teacher, Teacher("run", (1,))).network.pretrained == of_teacher
    assert replace(command, pretrained=True)._recipe(teacher, Teacher("run", (1,))).network.pretrained
