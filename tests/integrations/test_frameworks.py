"""The code of docs/how-to/other-frameworks.md runs; a run that is stopped and resumed has a plain loop's snapshots."""

import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/other-frameworks.md").read_text()
COMMON = re.search(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[1]
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n.*?^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE))
EPOCHS, CYCLES, STEPS_PER_EPOCH, STOP = 3, 3, 5, 8  # cycles of 5 steps; STOP is in mid-cycle and mid-epoch


@pytest.fixture(autouse=True)
def _in_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    if state := sys.modules.get("accelerate.state"):  # it is global, and must not reach other tests
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def names_after(section, changes=None):
    """The names that the code of a section defines, after the code that all sections share."""
    names, code = {"__name__": "page"}, COMMON + SECTIONS[section]
    for old, new in (changes or {}).items():
        assert old in code
        code = code.replace(old, new)
    exec(code, names)
    return names


def run(micro_batches=1):
    """A new network and optimizer, and a loader with several micro-batches per optimizer step."""
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8 // micro_batches)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loader


def snapshots_of_a_plain_loop(micro_batches=1):
    net, optimizer, loader = run(micro_batches)
    rates = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, STEPS_PER_EPOCH * EPOCHS // CYCLES)
    found = []
    for _ in range(EPOCHS):
        for k, (x, y) in enumerate(loader, 1):
            (nn.functional.cross_entropy(net(x), y) / micro_batches).backward()
            if k % micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()
                rates.step()
                if rates.T_cur == 0:
                    found.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
    return found


def assert_snapshots_equal(store, expected):
    members = Ensemble.load(store, run()[0]).members
    for member, tensors in zip(members, expected, strict=True):
        torch.testing.assert_close(member.state_dict(), tensors, rtol=0, atol=0)


def with_fabric(stop=None, resume=False):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer, loader = run()
    model, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(loader)
    schedule = CyclicCosine(EPOCHS * STEPS_PER_EPOCH, CYCLES)
    ensembler = SnapshotEnsembler(net, optimizer, schedule, store="fabric", resume=resume)
    state = {"model": model, "optimizer": optimizer, "ensembler": ensembler}
    if resume:
        fabric.load("fabric.ckpt", state)
        assert ensembler.completed == STOP
    for epoch in range(ensembler.completed // STEPS_PER_EPOCH, EPOCHS):
        for k, (x, y) in enumerate(loader):
            if epoch * STEPS_PER_EPOCH + k < ensembler.completed:
                continue  # used before the run was stopped
            fabric.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            ensembler.step()
            if ensembler.completed == stop:
                fabric.save("fabric.ckpt", state)
                return ensembler.close()
    return None


def with_accelerate(stop=None, resume=False):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(*run(micro_batches=2))
    schedule = CyclicCosine(EPOCHS * STEPS_PER_EPOCH, CYCLES)
    ensembler = SnapshotEnsembler(model, optimizer, schedule, store="accelerate", resume=resume)
    accelerator.register_for_checkpointing(ensembler)
    if resume:
        accelerator.load_state("checkpoint")
        assert ensembler.completed == STOP
    for _ in range(ensembler.completed // STEPS_PER_EPOCH, EPOCHS):
        used = ensembler.completed % STEPS_PER_EPOCH
        for x, y in accelerator.skip_first_batches(loader, 2 * used):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    ensembler.step()
                    if ensembler.completed == stop:
                        accelerator.save_state("checkpoint")
                        return ensembler.close()
    return None


@pytest.mark.parametrize("stopped", [False, True])
def test_fabric_has_the_snapshots_of_a_plain_loop_also_after_a_stop_in_mid_cycle(stopped):
    pytest.importorskip("lightning.fabric")
    if stopped:
        with_fabric(stop=STOP)
    with_fabric(resume=stopped)
    assert_snapshots_equal("fabric", snapshots_of_a_plain_loop())


@pytest.mark.parametrize("stopped", [False, True])
def test_accelerate_has_the_snapshots_of_a_plain_loop_also_after_a_stop_in_mid_cycle(stopped):
    pytest.importorskip("accelerate")
    if stopped:
        with_accelerate(stop=STOP)
    with_accelerate(resume=stopped)
    assert_snapshots_equal("accelerate", snapshots_of_a_plain_loop(micro_batches=2))


def test_the_page_has_a_test_for_each_section():
    assert SECTIONS.keys() == {"Lightning Fabric", "Accelerate", "skorch", "Optuna", "LambdaLR"}


@pytest.mark.parametrize(
    ("section", "package", "steps"),
    [("Lightning Fabric", "lightning.fabric", (24, 48, 72)), ("Accelerate", "accelerate", (12, 24, 36))],
)
def test_the_code_of_the_page_keeps_a_snapshot_per_cycle(section, package, steps):
    pytest.importorskip(package)
    found = names_after(section)
    assert found["ensembler"].completed == found["ensembler"].schedule.total_steps
    assert found["ensemble"].steps == steps
    with torch.no_grad():
        error = (found["ensemble"](found["held_out_x"]).argmax(1) != found["held_out_y"]).double().mean()
    assert error < 0.15  # chance is 0.5


@pytest.mark.long
@pytest.mark.parametrize(
    ("section", "package", "steps"),
    [("Lightning Fabric", "lightning.fabric", (12, 24, 36)), ("Accelerate", "accelerate", (6, 12, 18))],
)
def test_the_code_of_the_page_keeps_a_snapshot_per_cycle_in_two_processes(section, package, steps, tmp_path):
    pytest.importorskip(package)
    code = COMMON + SECTIONS[section].replace("devices=1", "devices=2")
    script = tmp_path / "page.py"
    script.write_text(
        code + f"assert ensembler.snapshots.steps == ensemble.steps == {steps}\nprint('a rank is done')\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", *launcher, str(script)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.count("a rank is done") == 2


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, True),
        ({'output="log_probabilities"': "", "verbose=0": "verbose=0, predict_nonlinearity=None"}, True),
        ({'output="log_probabilities"': ""}, False),  # softmax of probabilities
    ],
)
def test_skorch_predicts_the_mean_of_the_softmax_of_the_members_in_the_two_documented_ways(changes, right):
    pytest.importorskip("skorch")
    found = names_after("skorch", changes)
    members = found["classifier"].module_.members
    assert len(members) == 3
    with torch.no_grad():
        expected = torch.stack([member(found["held_out_x"]).softmax(-1) for member in members]).mean(0)
    assert np.allclose(found["probabilities"], expected, atol=1e-6) == right


def test_optuna_compares_trials_by_their_completed_steps():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = names_after("Optuna")["study"].trials
    assert len(trials) == 6
    for trial in trials:
        total, cycles = 12 * trial.params["epochs"], trial.params["cycles"]
        ends = [(k + 1) * total // cycles for k in range(cycles)]
        assert list(trial.intermediate_values) == ends[: len(trial.intermediate_values)]
        if trial.state == optuna.trial.TrialState.COMPLETE:
            assert trial.value == trial.intermediate_values[total]


def test_a_trial_that_is_pruned_does_not_warn_of_missing_cycles(caplog):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = names_after("Optuna")
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=-1.0))  # every error is above it
    with caplog.at_level(logging.WARNING, "snapens"):
        study.optimize(names["objective"], n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert len(study.trials[0].intermediate_values) == 1
    assert not [record for record in caplog.records if record.name == "snapens"]


def test_lambda_lr_sets_the_rates_that_the_ensembler_would_set():
    found = names_after("LambdaLR")
    assert found["ensemble"].steps == (24, 48, 72)
    model = nn.Linear(1, 1)
    ours, theirs = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    schedule = CyclicCosine(total_steps=12, cycles=3, warmup_steps=2, min_factor=0.01)
    ensembler = SnapshotEnsembler(model, ours, schedule)
    scheduler = torch.optim.lr_scheduler.LambdaLR(theirs, schedule)
    for _ in range(12):
        assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
        theirs.step()
        scheduler.step()
        ensembler.step()


def test_lambda_lr_restores_its_schedule_from_a_checkpoint():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, CyclicCosine(12, 3))
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    restored = torch.optim.lr_scheduler.LambdaLR(other, CyclicCosine(12, 3))
    restored.load_state_dict(scheduler.state_dict())
    assert restored.get_last_lr() == scheduler.get_last_lr()
