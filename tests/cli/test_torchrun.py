"""Commands that the real torchrun starts in two processes, which communicate on this machine only."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
import working_folder

import snapens
from snapens.cli import main
from snapens.lab.records.run import Run

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")
SAME = 1e-5
SIGNAL_AT = 20  # training calls of the network: the trial step and 19 steps
NETWORK = """
import os, signal
from torch import nn

def restarted():
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

class Signalling(nn.Module):
    "Sends a signal from one rank, to this process or to torchrun, at one of its training calls."

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        at, rank, target, number = map(int, os.environ.get("SIGNAL", "-1 0 0 0").split())
        if self.training and self.calls == at and os.environ["RANK"] == str(rank) and not restarted():
            send_to_torchrun(number) if target else os.kill(os.getpid(), number)
        return x

def send_to_torchrun(number):
    "Send a signal to torchrun, and wait until it has been passed on to this process."
    reader, writer = os.pipe()
    before = signal.getsignal(number)
    signal.signal(number, lambda *arguments: [os.write(writer, b"1"), before(*arguments)])
    os.kill(os.getppid(), number)
    os.read(reader, 1)

def plain(classes, channels, dropout=0.0):
    layers = Signalling(), nn.Conv2d(channels, 4, 3, 2), nn.ReLU(), nn.Dropout(dropout), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4 * 3 * 3, classes))
"""
FLAGS = "--dataset arrays --data tiny.npz --epochs 6 --cycles 3 --batch 8 --lr 0.05 --dropout 0.2 --padding 1"
TRAIN = f"train --network signalling:plain {FLAGS}"
"""36 steps on the 48 of 53 images that are not held out; the snapshots are at 12, 24 and 36."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    working_folder.enter(tmp_path, monkeypatch, "signalling", NETWORK)
    x = np.random.default_rng(0).integers(0, 256, (53, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=x, y_train=np.arange(53) % 3, x_test=x, y_test=np.arange(53) % 3)
    return tmp_path


def started(folder, processes, command, **environment):
    """Run a command in some processes, and return the finished torchrun."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    source = str(Path(snapens.__file__).parents[1])
    settings = {"PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *launcher, "-m", "snapens", *command.split()],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in a background job
    )


def finished(folder, processes, command, **environment):
    ended = started(folder, processes, command, **environment)
    assert ended.returncode == 0, ended.stderr
    return ended


def largest_difference(path, other):
    ours, theirs = Run(path).snapshots, Run(other).snapshots
    assert ours.steps == theirs.steps == (12, 24, 36)
    pairs = [(ours.load(step), theirs.load(step)) for step in ours.steps]
    return max((a[name].double() - b[name].double()).abs().max().item() for a, b in pairs for name in a)


def test_two_processes_train_the_run_of_one_process_and_the_first_one_prints(folder):
    assert main(f"{TRAIN} --out one".split()) == 0
    ended = finished(folder, 2, f"{TRAIN} --out two")
    assert largest_difference(folder / "one", folder / "two") < SAME
    assert Run(folder / "two").recipe == Run(folder / "one").recipe
    assert ended.stderr.count("holding out 5 of 53 training examples") == 1
    assert ended.stderr.count("preparing 1 run with 2 processes: a trial step") == 1
    assert ended.stdout.count("test error, two") == 1
    assert (folder / "two" / "report.html").is_file()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.long
def test_a_killed_process_leaves_a_run_that_any_number_of_processes_resumes(folder, rank):
    assert main(f"{TRAIN} --out one".split()) == 0
    ended = started(folder, 2, f"{TRAIN} --out run", SIGNAL=f"{SIGNAL_AT} {rank} 0 {signal.SIGKILL.value}")
    assert ended.returncode != 0
    lost = f"snapens: the process with rank {1 - rank} lost its connection to another process, which has ended"
    assert f"{lost}; the same command" in ended.stderr
    assert "Traceback" not in ended.stderr.partition("torch/distributed/elastic")[0]
    assert Run(folder / "run").state().completed == 12
    shutil.copytree(folder / "run", folder / "copy")
    assert main(f"{TRAIN} --out run --resume".split()) == 0
    finished(folder, 2, f"{TRAIN} --out copy --resume")
    assert largest_difference(folder / "one", folder / "run") < SAME
    assert largest_difference(folder / "one", folder / "copy") < SAME


@pytest.mark.long
def test_torchrun_can_restart_the_processes_by_itself(folder):
    assert main(f"{TRAIN} --out one".split()) == 0
    killed = {"SIGNAL": f"{SIGNAL_AT} 1 0 {signal.SIGKILL.value}", "PET_MAX_RESTARTS": "1"}  # as --max-restarts 1
    ended = finished(folder, 2, f"{TRAIN} --out run --resume", **killed)
    assert "which has ended" in ended.stderr
    assert largest_difference(folder / "one", folder / "run") < SAME


@pytest.mark.parametrize(("target", "number", "acknowledged"), [(1, signal.SIGINT, 1), (0, signal.SIGTERM, 0)])
@pytest.mark.long
def test_ctrl_c_or_a_signal_to_one_process_saves_the_state_after_the_current_step(folder, target, number, acknowledged):
    """torchrun passes Ctrl-C on to all processes, of which the first one acknowledges it."""
    assert main(f"{TRAIN} --out one".split()) == 0
    ended = started(folder, 2, f"{TRAIN} --out run", SIGNAL=f"{SIGNAL_AT} 1 {target} {number.value}")
    assert ended.returncode != 0
    assert ended.stderr.count("snapens: stopping after this step") == acknowledged
    assert ended.stderr.count("snapens: interrupted; the same command with --resume continues") == 1
    assert Run(folder / "run").state().completed == SIGNAL_AT - 1  # without the trial step
    finished(folder, 2, f"{TRAIN} --out run --resume")
    assert largest_difference(folder / "one", folder / "run") < SAME


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (f"{TRAIN} --out run --batch 9", "batch must be divisible by the number of processes, 2, got 9"),
        (TRAIN.replace("tiny.npz", "missing.npz"), "missing.npz"),
        (f"{TRAIN} --epochs none", "invalid"),
        ("paper run resnet110-cifar100-snapshot-0.1 --data nothing --out papers", "nothing"),
        (f"sweep --network signalling:plain {FLAGS} --out run --ray", "ray must not be given under torchrun"),
    ],
)
@pytest.mark.long
def test_an_error_is_printed_once_and_no_process_waits(folder, command, error):
    ended = started(folder, 2, command)
    assert ended.returncode != 0
    ours = [line for line in ended.stderr.splitlines() if error in line]
    assert len(ours) == 1, ended.stderr
    assert not (folder / "run").exists()


@pytest.mark.long
def test_local_batchnorm_makes_the_number_of_processes_part_of_the_recipe(folder, capsys):
    command = f"train --network small {FLAGS} --local-batchnorm --out run"
    finished(folder, 2, command)
    assert Run(folder / "run").recipe.batchnorm_parts == 2
    rule = "recipe must be that of the run in run to resume it, got (old, new) batchnorm_parts: 2, "
    assert main(f"{command} --resume".split()) == 2
    assert f"{rule}1" in capsys.readouterr().err
    ended = started(folder, 4, f"{command} --resume")
    assert ended.returncode != 0
    assert f"{rule}4" in ended.stderr


@pytest.mark.long
def test_a_sweep_trains_each_of_its_packs_with_all_processes(folder):
    sweep = f"sweep --network signalling:plain {FLAGS} --seed 0 1 --pack 1 --out"
    ended = finished(folder, 2, f"{sweep} two")
    assert ended.stderr.count("with 2 processes") == 2
    assert main([*sweep.split(), "one"]) == 0
    runs = list((folder / "one").iterdir())
    assert len(runs) == 2
    assert all(largest_difference(run, folder / "two" / run.name) < SAME for run in runs)
