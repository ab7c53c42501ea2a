import copy
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loop import SCHEDULE, sgd, train
from torch.optim.swa_utils import AveragedModel

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots, StepDecay
from snapens.errors import ArgumentError, FinishedError, LockedError, MismatchError, NonFiniteError

# the loop


def test_snapshots_are_the_weights_at_the_minima_and_step_returns_their_steps(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    returned, rates, states = train(net, optimizer, ensembler, 12)
    assert returned == [None, None, None, 4, None, None, None, 8, None, None, None, 12]
    assert [rate for (rate,) in rates] == [0.1 * (math.cos(math.pi * (t % 4) / 4) + 1) / 2 for t in range(12)]
    assert ensembler.snapshots.steps == (4, 8, 12)
    for step in (4, 8, 12):
        kept = ensembler.snapshots.load(step)
        assert all(torch.equal(kept[name], value) for name, value in states[step - 1].items())


def test_the_ensemble_of_a_run_is_made_of_its_last_snapshots(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "run")
    train(net, optimizer, ensembler, 12)
    x = torch.randn(5, 4)
    ensemble = ensembler.ensemble(last=2)
    assert ensemble.steps == (8, 12)
    assert net.training
    net.eval()
    newest = net(x).softmax(-1)
    net.load_state_dict(ensembler.snapshots.load(8))
    assert torch.allclose(ensemble(x), (newest + net(x).softmax(-1)) / 2, atol=1e-6)
    assert torch.equal(Ensemble.load(tmp_path / "run", net, last=2)(x), ensemble(x))


def test_an_ensemble_is_available_during_training(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 5)
    for options in ({}, {"last": None}, {"combination": None}):
        assert ensembler.ensemble(**options).steps == (4,)
    with pytest.raises(ArgumentError, match="last must be a whole number of at least 1, got 0"):
        ensembler.ensemble(last=0)
    assert ensembler.completed == 5


def test_a_step_beyond_the_last_is_an_error_and_stores_nothing(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    with pytest.raises(FinishedError, match=r"at most total_steps=12 times: .* not once per micro-batch"):
        ensembler.step()
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_a_step_decay_keeps_equally_spaced_snapshots_and_never_restarts(net):
    optimizer, restarts = sgd(net), []
    ensembler = SnapshotEnsembler(net, optimizer, StepDecay(12, snapshots=3), on_restart=restarts.append)
    train(net, optimizer, ensembler, 12)
    assert ensembler.snapshots.steps == (4, 8, 12)
    assert restarts == []


def test_the_log_says_at_which_steps_snapshots_are_stored(net, caplog):
    with caplog.at_level(logging.INFO, logger="snapens"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE)
    assert "snapshot_steps=(4, 8, 12)" in caplog.text
    assert "peak rates [0.1]" in caplog.text


def test_every_call_counts_also_after_an_update_that_a_grad_scaler_skipped(net):
    optimizer, scaler = sgd(net), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    skipped = 0
    for step in range(12):
        loss = net(torch.randn(6, 4)).square().mean() * (math.inf if step in (0, 5) else 1.0)
        before = net.head.weight.clone()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped += torch.equal(before, net.head.weight)
        ensembler.step()
    assert skipped == 2
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_compiled_models_are_stored_under_their_plain_names(net):
    compiled = torch.compile(net, backend="eager")
    optimizer = sgd(compiled)
    ensembler = SnapshotEnsembler(compiled, optimizer, CyclicCosine(2, 1))
    train(compiled, optimizer, ensembler, 2)
    assert ensembler.snapshots.load(2).keys() == net.state_dict().keys()
    x = torch.randn(3, 4)
    assert torch.allclose(ensembler.ensemble()(x), net.eval()(x).softmax(-1))


# weights that do not change


def test_parameters_that_the_optimizer_does_not_hold_are_named_in_a_warning(caplog):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    optimizer = sgd(net[0])
    SnapshotEnsembler(net, optimizer, SCHEDULE)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("the optimizer does not hold 1.weight, 1.bias, 2.weight, and 1 more: these parameters")


def test_trained_parameters_that_no_snapshot_stores_are_named_in_a_warning(caplog):
    """A head that `keep` leaves out, and a module in a plain list, which is not in the state_dict()."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    net.hidden = [torch.nn.Linear(3, 3)]
    optimizer = sgd(net)
    optimizer.add_param_group({"params": net.hidden[0].parameters()})
    SnapshotEnsembler(net, optimizer, SCHEDULE, keep=lambda: {"0.bias": net[0].bias, "0.weight": net[0].weight})
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    names = "1.bias, 1.weight, a parameter that is not in state_dict()"
    assert warning.startswith(f"no snapshot stores {names}, which the optimizer trains, so they are not part of the")


def test_frozen_parameters_in_the_optimizer_cause_no_warning(caplog):
    """As with AdamW(model.parameters()) and snapshots of the adapters."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    net[0].requires_grad_(False)
    SnapshotEnsembler(net, sgd(net), SCHEDULE, keep=lambda: {"1.bias": net[1].bias, "1.weight": net[1].weight})
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("case", ["all held", "the others are frozen", "the others are not stored"])
def test_parameters_that_are_held_or_frozen_or_not_stored_cause_no_warning(caplog, case):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    keep = None
    if case == "the others are frozen":
        net[0].requires_grad_(False)
    elif case == "the others are not stored":
        keep = lambda: {"1.bias": net[1].bias, "1.weight": net[1].weight}  # noqa: E731
    SnapshotEnsembler(net, sgd(net if case == "all held" else net[1]), SCHEDULE, keep=keep)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("updated", [True, False])
def test_an_average_that_is_never_updated_causes_a_warning(net, caplog, tmp_path, folder, updated):
    ema, optimizer = AveragedModel(net), sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path if folder else None, keep=ema)
    for _ in range(8):
        train(net, optimizer, ensembler, 1)
        if updated:
            ema.update_parameters(net)
    ensembler.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if updated:
        assert not warnings
    else:
        assert len(warnings) == 1
        assert warnings[0].startswith("the snapshot of step 8 is equal to that of step 4: check that")


# weights that are not finite


def poisoned(net, optimizer, ensembler):
    train(net, optimizer, ensembler, 7)
    with torch.no_grad():
        net.head.bias[0] = math.nan
    net(torch.randn(6, 4)).square().mean().backward()


def test_a_nan_stops_the_run_and_loses_nothing(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    poisoned(net, optimizer, ensembler)
    with pytest.raises(NonFiniteError, match=r"at step 8 in head.bias"):
        ensembler.step()
    assert Snapshots(tmp_path).steps == (4,)
    with torch.no_grad():
        net.head.bias[0] = 0.0
    assert ensembler.completed == 7
    assert ensembler.step() == 8  # the call that failed can be repeated


def test_skip_omits_the_snapshot_and_logs_a_warning(net, caplog):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_nonfinite="skip")
    poisoned(net, optimizer, ensembler)
    assert ensembler.step() is None
    assert "no snapshot is stored at step 8" in caplog.text
    assert ensembler.snapshots.steps == (4,)
    assert ensembler.completed == 8


# what is rejected


def test_weights_that_can_never_be_stored_are_rejected_at_the_start(net, tmp_path):
    net.register_buffer("mask", torch.full((2,), -math.inf))
    with pytest.raises(NonFiniteError, match=r"at step 0 in mask: .*persistent=False"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", [True, False])
def test_a_dtype_that_a_folder_cannot_store_is_rejected_at_the_start(net, tmp_path, folder):
    net.register_buffer("rotation", torch.ones(2, dtype=torch.complex128))
    if not folder:
        SnapshotEnsembler(net, sgd(net), SCHEDULE)
        return
    with pytest.raises(ArgumentError, match=r"one of the dtypes .*, got torch\.complex128 for 'rotation'"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_overflow_in_the_dtype_of_the_snapshots_are_rejected_at_the_start(net):
    net.norm.running_var.fill_(1e6)  # the largest float16 is 65504
    with pytest.raises(NonFiniteError, match=r"torch\.float16, .* at step 0 in norm\.running_var: use Snapshots"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=Snapshots(dtype=torch.float16))


def test_a_model_without_values_is_rejected_at_the_start():
    virtual = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(ArgumentError, match="got 'weight' on the meta device: build it on the CPU"):
        SnapshotEnsembler(virtual, sgd(virtual), SCHEDULE)
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3))
    optimizer = sgd(lazy)
    with pytest.raises(ArgumentError, match=r"got '0\.weight' of a lazy module: call the model with one batch first"):
        SnapshotEnsembler(lazy, optimizer, SCHEDULE)
    lazy(torch.ones(1, 2))
    SnapshotEnsembler(lazy, optimizer, SCHEDULE)
    for buffer in (torch.eye(3).to_sparse(), torch.ones(1).expand(3)):
        net = torch.nn.Linear(3, 3)
        net.register_buffer("mask", buffer)
        with pytest.raises(ArgumentError, match=r"got 'mask', which is sparse or expanded: use to_dense\(\) or contig"):
            SnapshotEnsembler(net, sgd(net), SCHEDULE)


def test_snapshot_steps_of_a_users_own_schedule_must_ascend_to_the_end(net):
    class Own(StepDecay):
        snapshot_steps = (2, 6)

        def __init__(self):
            object.__setattr__(self, "total_steps", 4)

    with pytest.raises(ArgumentError, match=r"snapshot_steps must ascend to total_steps=4, got \(2, 6\)"):
        SnapshotEnsembler(net, sgd(net), Own())


def test_arguments_of_the_wrong_kind_are_rejected(net):
    with pytest.raises(ArgumentError, match="model must be an instance of Module, got SGD"):
        SnapshotEnsembler(sgd(net), net, SCHEDULE)
    with pytest.raises(
        ArgumentError, match=r"schedule must be .* Schedule, got SGD: pass the model, the optimizer and Cyclic"
    ):
        SnapshotEnsembler(net, SCHEDULE, sgd(net))
    with pytest.raises(
        ArgumentError, match=r"on_restart must be a function, got 'reset': pass fresh_weights\(build\), "
    ):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, on_restart="reset")
    with pytest.raises(ArgumentError, match=r"keep must be a function, got 'ema': pass a function .*, or a module"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, keep="ema")
    for wrong in (None, [sgd(net)]):
        with pytest.raises(ArgumentError, match=r"optimizer must be one .*Optimizer, got (NoneType|list): pass that"):
            SnapshotEnsembler(net, wrong, SCHEDULE)
    with pytest.raises(ArgumentError, match="path must be the path of a folder, or None for memory, got 3"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=3)
    with pytest.raises(MismatchError, match=r"state must be what state_dict\(\) returned, got the keys \['a'\]"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).load_state_dict({"a": 1})


def test_an_ensemble_before_the_first_snapshot_is_rejected_with_its_step(net):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 3)
    with pytest.raises(ArgumentError, match=r"after the first snapshot, that of step 4, got step 3 of 12: train to"):
        ensembler.ensemble()
    ensembler.close()


def test_an_ensembler_shows_its_progress_and_its_store(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    assert repr(ensembler) == f"SnapshotEnsembler(step=5, total_steps=12, store=Snapshots({str(tmp_path)!r}))"


def test_a_finished_run_releases_its_folder_and_can_return_to_a_checkpoint(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 9)
    state = ensembler.state_dict()
    train(net, optimizer, ensembler, 3)
    other = Snapshots(tmp_path)
    other.open_to_write(resume=True)
    with pytest.raises(LockedError):
        ensembler.load_state_dict(state)
    other.close()
    ensembler.load_state_dict(state)
    train(net, optimizer, ensembler, 3)
    assert ensembler.ensemble().steps == Snapshots(tmp_path).steps == (4, 8, 12)


def test_a_run_that_was_closed_can_start_again_in_the_same_process(net, tmp_path):
    SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path).close()
    SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)


def test_an_optimizer_of_another_model_is_rejected(net):
    with pytest.raises(ArgumentError, match="optimizer must hold parameters of model"):
        SnapshotEnsembler(net, sgd(copy.deepcopy(net)), SCHEDULE)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("url", ["memory://b/x", "s3://bucket/run", "file:///tmp/run", "HTTPS://host/run"])
def test_a_url_is_rejected_as_a_store_and_no_folder_is_made(net, tmp_path, monkeypatch, url, kind):
    monkeypatch.chdir(tmp_path)
    for use in (Snapshots, lambda store: SnapshotEnsembler(net, sgd(net), SCHEDULE, store=store)):
        with pytest.raises(
            ArgumentError, match=r"path must be a local folder, got the URL '.*': choose a local folder"
        ):
            use(kind(url))
    assert not list(tmp_path.iterdir())
    Snapshots("runs:a/b")  # a colon alone does not make a URL


def test_an_unknown_on_nonfinite_is_rejected(net):
    with pytest.raises(ArgumentError, match="on_nonfinite must be 'raise' or 'skip', got 'ignore'"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, on_nonfinite="ignore")


# a run that ends early


def warnings_of_an_early_end(caplog):
    return [record.getMessage() for record in caplog.records if "without a snapshot of" in record.getMessage()]


def test_a_run_that_ends_early_warns_and_names_the_missing_cycles(net, caplog):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 5)
    del ensembler
    (message,) = warnings_of_an_early_end(caplog)
    assert "the run in memory ended after step 5 of 12, without a snapshot of cycles 2, 3:" in message


@pytest.mark.parametrize(("steps", "cycles"), [(0, None), (1, "cycle 2")])
def test_a_process_that_ends_early_warns_if_it_took_a_step(tmp_path, steps, cycles):
    program = (
        "import sys, torch, snapens; net = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "e = snapens.SnapshotEnsembler(net, optimizer, snapens.CyclicCosine(2, 2), store=sys.argv[1])\n"
        "for _ in range(int(sys.argv[2])): e.step()"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(steps)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = f"the run in {tmp_path} ended after step {steps} of 2, without a snapshot of {cycles}:"
    assert expected in ended.stderr if cycles else ended.stderr == ""


@pytest.mark.parametrize("repeated", [False, True])
def test_after_weights_were_rejected_only_a_run_that_continued_warns(net, caplog, repeated):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    for _ in range(3):
        ensembler.step()
    good = [parameter.detach().clone() for parameter in net.parameters()]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        ensembler.step()
    if repeated:
        with torch.no_grad():
            for parameter, before in zip(net.parameters(), good, strict=True):
                parameter.copy_(before)
        ensembler.step()
    del ensembler
    assert len(warnings_of_an_early_end(caplog)) == repeated


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_the_end_of_a_forked_process_does_not_warn():
    program = (
        "import os, sys, torch, snapens; net = torch.nn.Linear(1, 1)\n"
        "e = snapens.SnapshotEnsembler(net, torch.optim.SGD(net.parameters(), 0.1), snapens.CyclicCosine(2, 1))\n"
        "e.step()\n"
        "if os.fork() == 0: sys.exit()\n"
        "os.wait(); e.step()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ended after step" not in ended.stderr


@pytest.mark.parametrize("end", ["finished", "closed", "only read"])
def test_a_run_that_ends_as_intended_does_not_warn(net, caplog, tmp_path, end):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, ensembler.optimizer, ensembler, 12 if end == "finished" else 5)
    if end != "finished":
        ensembler.close()
    if end == "only read":
        ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, resume=True)
        assert ensembler.ensemble().steps == (4,)
    del ensembler
    assert not warnings_of_an_early_end(caplog)


def test_a_run_that_returns_to_a_checkpoint_after_its_end_warns_again(net, caplog):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 12)
    ensembler.rewind(8)
    del ensembler
    assert "without a snapshot of cycle 3:" in warnings_of_an_early_end(caplog)[0]


def test_a_process_group_of_another_kind_is_rejected(net):
    with pytest.raises(ArgumentError, match=r"process_group must be a torch.distributed process group or None, got 2"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, process_group=2)


def test_an_ensemble_can_be_built_from_another_instance(net, make_net):
    ensembler = SnapshotEnsembler(net, torch.optim.SGD(net.parameters(), lr=0.1), CyclicCosine(2, 1))
    ensembler.step()
    ensembler.step()
    other, x = make_net().double(), torch.ones(2, 4)
    found = ensembler.ensemble(model=other, last=1)(x.double())
    assert found.dtype == torch.float64  # the copies are those of the given instance
    torch.testing.assert_close(found, net.eval()(x).softmax(-1), check_dtype=False)
