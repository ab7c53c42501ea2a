"""Ctrl-C and SIGTERM at every phase of a training."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import working_folder

import snapens
from snapens.cli import main
from snapens.cli.interrupt import Interrupt
from snapens.lab.records.run import Run

NETWORK = """
import os, signal
from torch import nn

class Signalling(nn.Module):
    'Sends signals to this process at one of its training calls; the first call is the rehearsal.'

    def __init__(self, at, *numbers):
        super().__init__()
        self.calls, self.at, self.numbers = 0, at, numbers

    def forward(self, x):
        self.calls += self.training
        if self.training and self.calls == self.at:
            for number in self.numbers:
                os.kill(os.getpid(), number)
            if len(self.numbers) > 1:
                os.read(os.pipe()[0], 1)  # nothing is ever written: only the second signal ends this step
        return x

def network(classes, channels, *arguments):
    return nn.Sequential(nn.Flatten(), Signalling(*arguments), nn.Linear(64 * channels, classes))

def rehearsal(classes, channels): return network(classes, channels, 1, signal.SIGINT)
def first_step(classes, channels): return network(classes, channels, 2, signal.SIGINT)
def terminated(classes, channels): return network(classes, channels, 2, signal.SIGTERM)
def last_step(classes, channels): return network(classes, channels, 6, signal.SIGINT)
def twice(classes, channels): return network(classes, channels, 4, signal.SIGINT, signal.SIGINT)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with networks that send signals, and an array file of 48 images in three classes."""
    working_folder.enter(tmp_path, monkeypatch, "signals", NETWORK)
    x = np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=x, y_train=np.arange(48) % 3, x_test=x, y_test=np.arange(48) % 3)
    return tmp_path


def command(network):
    flags = f"--network signals:{network} --dataset arrays --data tiny.npz --epochs 60 --cycles 2 --batch 8 --out run"
    return ["train", *flags.split(), "--device", "cpu"]


def test_a_signal_during_the_rehearsal_ends_at_once_and_begins_no_run(folder, capfd):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(command("rehearsal")) == 130
    assert capfd.readouterr().err.endswith(
        "\nsnapens: stopping; press Ctrl-C again to quit at once\n"
        "snapens: interrupted; the same command with --resume continues the training\n"
    )
    assert not (folder / "run").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(("network", "status"), [("first_step", 128 + 2), ("terminated", 128 + 15)])
def test_a_signal_during_a_step_stops_after_it_and_keeps_the_state(folder, network, status, monkeypatch):
    from snapens.lab.engine import training

    monkeypatch.setattr(training, "_BURST_STEPS", 1)
    assert main(command(network)) == status
    assert Run("run").state().completed == 1


LAST_STEP = ["--epochs", "1", "--cycles", "1"]  # five steps of eight images; four of 48 are held out


def test_a_signal_in_the_last_step_leaves_nothing_to_continue(folder, capfd):
    assert main([*command("last_step"), *LAST_STEP]) == 0
    shown = capfd.readouterr()
    assert "stopping after this step" in shown.err
    assert "interrupted" not in shown.err
    assert "test error" in shown.out
    assert Run("run").finished


@pytest.mark.parametrize("more", [["--seed", "0", "1"], ["--seed", "0", "--curves"]])
def test_a_signal_in_the_last_step_of_a_run_ends_the_work_after_it(folder, capfd, more):
    name, *arguments = command("last_step")
    assert main(["sweep" if "1" in more else name, *arguments, *LAST_STEP, *more]) == 130
    assert "interrupted; the same command with --resume continues" in capfd.readouterr().err
    assert sum(Run(path.parent).finished for path in folder.glob("run/**/recipe.json")) == 1
    assert len(list(folder.glob("run/**/recipe.json"))) == 1


def test_a_signal_while_the_errors_between_snapshots_are_measured_ends_at_once(folder, capfd, monkeypatch):
    from snapens.lab.engine.training import Training

    monkeypatch.setattr(Training, "measure_between", lambda self: os.kill(os.getpid(), signal.SIGTERM))
    arguments = [*command("first_step"), "--curves", "--network", "small", "--epochs", "2"]
    assert main(arguments) == 128 + 15
    assert "interrupted; the same command with --resume continues" in capfd.readouterr().err
    assert Run("run").finished


def test_a_second_signal_quits_within_the_step_and_what_was_kept_stays(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(snapens.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "snapens", *command("twice")],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 130
    assert "\nsnapens: stopping after this step; press Ctrl-C again to quit at once\nsnapens: quit\n" in done.stderr
    assert Run("run").state().completed == 0


def test_the_first_signal_is_acknowledged_by_another_thread_and_raises_outside_of_steps(capfd):
    interrupt = Interrupt()
    with interrupt, pytest.raises(KeyboardInterrupt) as raised:
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.args == (signal.SIGTERM,)
    assert interrupt()
    assert capfd.readouterr().err == "\nsnapens: stopping; press Ctrl-C again to quit at once\n"


def test_inside_a_step_the_first_signal_raises_only_at_its_end():
    reached = []

    def step(interrupt):
        with interrupt.finish_step():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(interrupt())

    with Interrupt() as interrupt:
        assert not interrupt()
        with pytest.raises(KeyboardInterrupt):
            step(interrupt)
    assert reached == [True]
