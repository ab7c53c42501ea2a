import copy
import io
import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snapens import (
    CyclicCosine,
    Ensemble,
    Schedule,
    SnapshotEnsembler,
    Snapshots,
    StepDecay,
    fresh_weights,
    reset_momentum,
)
from snapens.errors import ArgumentError, FinishedError, LockedError, MismatchError, NonFiniteError, StoreError
from snapens.weights import tensors

SCHEDULE = CyclicCosine(12, 3)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)


def train(model, optimizer, ensembler, steps):
    """Steps on random data; what step() returned, the rates that were used, and the weights after each."""
    returned, rates, states = [], [], []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append({name: value.clone() for name, value in tensors(model).items()})
        returned.append(ensembler.step())
    return returned, rates, states


def saved(state):
    """The state after a round trip through a file with plain values and tensors only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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
    assert ensembler.ensemble().steps == (4,)
    assert ensembler.completed == 5


def test_a_step_beyond_the_last_is_an_error_and_stores_nothing(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    with pytest.raises(FinishedError, match=r"at most total_steps=12 times: .* not once per micro-batch"):
        ensembler.step()
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_groups_keep_their_own_peaks_and_tensor_rates_stay_the_same_tensor(net):
    tensor_lr = torch.tensor(0.5)
    optimizer = torch.optim.AdamW(
        [
            {"params": [net.module.weight], "lr": 0.01},
            {"params": [net.head.weight], "lr": tensor_lr},
            {"params": [net.head.bias]},
        ],
        lr=1e-3,
        foreach=False,
    )
    held = optimizer.param_groups[1]["lr"]
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    _, rates, _ = train(net, optimizer, ensembler, 12)
    for step, row in enumerate(rates):
        assert row == pytest.approx([peak * SCHEDULE(step) for peak in (0.01, 0.5, 1e-3)], rel=1e-6, abs=1e-12)
    assert optimizer.param_groups[1]["lr"] is held


def test_a_group_that_is_added_later_follows_with_its_own_peak(net):
    optimizer = torch.optim.SGD([net.head.weight], lr=0.1)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 4)
    optimizer.add_param_group({"params": [net.module.weight], "lr": 0.03})
    _, rates, _ = train(net, optimizer, ensembler, 2)
    assert rates[1] == [0.1 * SCHEDULE(5), 0.03 * SCHEDULE(5)]


def test_groups_added_to_an_optimizer_with_one_tensor_for_all_rates_have_their_own_peaks(net):
    optimizer = torch.optim.SGD([net.head.weight], lr=torch.tensor(0.5))
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 2)
    optimizer.add_param_group({"params": [net.module.weight]})
    train(net, optimizer, ensembler, 2)
    optimizer.add_param_group({"params": [net.module.bias]})
    _, rates, _ = train(net, optimizer, ensembler, 2)
    assert rates[1] == pytest.approx([0.5 * SCHEDULE(5)] * 3)


def test_initial_lr_of_an_earlier_run_is_the_peak_as_for_torchs_schedulers(net):
    optimizer = sgd(net)
    train(net, optimizer, SnapshotEnsembler(net, optimizer, SCHEDULE), 12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    SnapshotEnsembler(net, optimizer, SCHEDULE)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_group_with_a_rate_of_0_stays_frozen(net):
    groups = [{"params": [net.module.weight], "lr": 0.0}, {"params": [net.head.weight], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    before = net.module.weight.clone()
    _, rates, _ = train(net, optimizer, SnapshotEnsembler(net, optimizer, SCHEDULE), 12)
    assert [frozen for frozen, _ in rates] == [0.0] * 12
    assert torch.equal(net.module.weight, before)


WARNING = "something else changed it"


def test_a_second_scheduler_is_reported_once(net, caplog):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 2)
    assert WARNING not in caplog.text
    for _ in range(3):
        optimizer.param_groups[0]["lr"] = 0.025
        train(net, optimizer, ensembler, 1)
    assert caplog.text.count(WARNING) == 1
    assert "set to 0.05, but something else changed it to 0.025, and step() will overwrite it: remove" in caplog.text


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_of_torch_is_reported(net, caplog):
    optimizer = sgd(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    for _ in range(12):
        train(net, optimizer, ensembler, 1)
        scheduler.step()
    assert caplog.text.count(WARNING) == 1


def test_checkpoints_new_groups_and_tensor_rates_are_not_mistaken_for_a_second_scheduler(net, caplog):
    optimizer = torch.optim.SGD([{"params": [net.head.weight], "lr": 0.1}, {"params": [net.head.bias], "lr": 0.2}])
    optimizer.param_groups[1]["lr"] = torch.tensor(0.2)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 2)
    saved_state, states = optimizer.state_dict(), ensembler.state_dict()
    train(net, optimizer, ensembler, 1)
    optimizer.load_state_dict(saved_state)  # without the state of the ensembler
    train(net, optimizer, ensembler, 1)
    optimizer.load_state_dict(saved_state)
    ensembler.load_state_dict(states)
    train(net, optimizer, ensembler, 1)
    optimizer.param_groups[0]["lr"] = 0.3  # a checkpoint that is loaded into the groups themselves
    ensembler.load_state_dict(states)
    optimizer.add_param_group({"params": [net.module.weight], "lr": 0.05})
    optimizer.param_groups[1]["lr"].fill_(0.7)
    train(net, optimizer, ensembler, 3)
    assert WARNING not in caplog.text


def test_drive_lr_false_does_not_change_the_rate(net):
    optimizer = sgd(net, lr=0.0)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, drive_lr=False)
    returned, rates, _ = train(net, optimizer, ensembler, 12)
    assert [step for step in returned if step] == [4, 8, 12]
    assert rates == [[0.0]] * 12
    assert "initial_lr" not in optimizer.param_groups[0]


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


# what is stored, and what a restart does


def test_keep_is_the_module_that_is_stored(net, make_net):
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, CyclicCosine(2, 1), keep=ema)
    for _ in range(2):
        net(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        ema.update_parameters(net)
        ensembler.step()
    kept = ensembler.snapshots.load(2)
    assert torch.equal(kept["head.weight"], ema.module.head.weight)
    assert not torch.equal(kept["head.weight"], net.head.weight)
    ema.module.eval()
    assert torch.allclose(
        Ensemble(ensembler.snapshots, make_net())(torch.ones(1, 4)), ema(torch.ones(1, 4)).softmax(-1)
    )


def test_momentum_is_carried_over_a_restart_unless_reset(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 4)
    assert optimizer.state[net.head.weight]["momentum_buffer"].abs().sum() > 0

    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_restart=reset_momentum)
    train(net, optimizer, ensembler, 3)
    assert optimizer.state
    train(net, optimizer, ensembler, 1)
    assert not optimizer.state


def test_fresh_weights_begin_each_cycle_but_never_change_a_snapshot(make_net):
    made = []

    def factory():
        torch.manual_seed(100 + len(made))
        made.append(make_net())
        return made[-1]

    net = make_net()
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_restart=fresh_weights(factory))
    for cycle in range(3):
        _, _, states = train(net, optimizer, ensembler, 4)
        assert torch.equal(ensembler.snapshots.load(4 * cycle + 4)["head.weight"], states[-1]["head.weight"])
        if cycle < 2:
            assert torch.equal(net.head.weight, made[cycle].head.weight)
            assert torch.equal(net.norm.running_mean, torch.zeros(8))
            assert not optimizer.state
    assert len(made) == 2


def averaging(net, optimizer, ensembler, ema, steps):
    for _ in range(steps):
        net(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(net)
        ensembler.step()


@pytest.mark.parametrize("use_buffers", [True, False])
def test_fresh_weights_restart_the_average_that_is_kept(make_net, use_buffers):
    net, fresh = make_net(), make_net()
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    optimizer = sgd(net, lr=1e-9)  # the weights hardly move: the average is that of the start of a cycle
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, keep=ema, on_restart=fresh_weights(lambda: fresh))
    averaging(net, optimizer, ensembler, ema, 4)
    assert ema.n_averaged == 0
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in tensors(ema).items())
    averaging(net, optimizer, ensembler, ema, 4)
    torch.testing.assert_close(ensembler.snapshots.load(8)["head.weight"], fresh.head.weight.detach())


def test_fresh_weights_work_with_a_part_of_the_model_as_keep(make_net):
    net = make_net()
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, keep=net.head, on_restart=fresh_weights(make_net))
    train(net, optimizer, ensembler, 12)
    assert ensembler.snapshots.load(12).keys() == {"weight", "bias"}


def test_fresh_weights_reject_a_kept_module_with_other_tensors(make_net):
    net = make_net()
    optimizer = sgd(net)
    wrapper = nn.ModuleDict({"ema": copy.deepcopy(net)})
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, keep=wrapper, on_restart=fresh_weights(make_net))
    with pytest.raises(MismatchError, match=r"keep must have the tensors of the model .*, such as keep=ema.module"):
        train(net, optimizer, ensembler, 4)


def test_fresh_weights_of_another_architecture_are_rejected(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_restart=fresh_weights(lambda: nn.Linear(1, 1)))
    with pytest.raises(MismatchError, match="factory must build the architecture"):
        train(net, optimizer, ensembler, 4)


def test_on_restart_runs_after_the_commit_and_at_the_peak(net):
    seen = []
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(
        net,
        optimizer,
        SCHEDULE,
        on_restart=lambda e: seen.append((e.completed, e.snapshots.steps[-1], e.optimizer.param_groups[0]["lr"])),
    )
    train(net, optimizer, ensembler, 12)
    assert seen == [(4, 4, 0.1), (8, 8, 0.1)]


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


# resuming


def test_the_state_is_plain_values_and_loads_with_weights_only(net, tmp_path):
    optimizer = sgd(net)
    for store in (None, tmp_path):
        ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=store)
        train(net, optimizer, ensembler, 5)
        state = saved(ensembler.state_dict())
        assert (state["completed"], list(state["store"]["snapshots"])) == (5, [4])
    assert state["held"] == {}


def test_a_checkpoint_contains_a_memory_store_and_tensors_stay_shared(make_net):
    net = make_net()
    net.module.requires_grad_(False)
    optimizer = sgd(net.head)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 9)
    state = saved(ensembler.state_dict())
    again = SnapshotEnsembler(net, optimizer, SCHEDULE)
    again.load_state_dict(state)
    assert again.snapshots.steps == (4, 8)
    assert all(torch.equal(again.snapshots.load(8)[n], t) for n, t in ensembler.snapshots.load(8).items())
    assert again.snapshots.entries(4)["module.weight"] == again.snapshots.entries(8)["module.weight"]


def test_the_rate_and_the_peaks_are_restored_in_any_order_of_loading(make_net):
    net = make_net()
    optimizer = sgd(net, lr=0.2)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 6)
    states = saved({"optimizer": optimizer.state_dict(), "ensembler": ensembler.state_dict()})
    for optimizer_first in (True, False):
        fresh = sgd(net, lr=0.7)  # not the peak of the checkpoint
        if optimizer_first:
            fresh.load_state_dict(states["optimizer"])
        again = SnapshotEnsembler(net, fresh, SCHEDULE)
        if not optimizer_first:
            fresh.load_state_dict(states["optimizer"])
        again.load_state_dict(states["ensembler"])
        assert fresh.param_groups[0]["lr"] == 0.2 * SCHEDULE(6)
        assert again.completed == 6


def test_the_peaks_are_restored_if_the_optimizer_was_loaded_without_them(make_net):
    """As torch.distributed.checkpoint does: it loads only the entries that the optimizer already has."""
    net = make_net()
    first = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, first.optimizer, first, 6)
    optimizer = sgd(net, lr=first.optimizer.param_groups[0]["lr"])  # the rate of step 6, half of the peak
    again = SnapshotEnsembler(net, optimizer, SCHEDULE)
    again.load_state_dict(saved(first.state_dict()))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert train(net, optimizer, again, 3)[1][2] == [0.1]  # the first step of the last cycle


def test_resuming_without_a_checkpoint_replaces_nothing(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    ensembler.snapshots.close()
    again = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path, resume=True)
    with pytest.raises(MismatchError, match=r"holds the snapshots of steps \[4\], but this run is at step 0"):
        again.step()
    assert Snapshots(tmp_path).steps == (4,)


def test_resume_accepts_an_empty_folder(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "new", resume=True)
    train(net, optimizer, ensembler, 12)
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_a_folder_that_holds_another_run_is_rejected(make_net, tmp_path):
    net = make_net()
    states = {}
    for name in ("a", "b"):
        optimizer = sgd(net)
        ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / name)
        train(net, optimizer, ensembler, 5)
        states[name] = ensembler.state_dict()
        ensembler.snapshots.close()
    with pytest.raises(StoreError, match="which holds those of steps 4"):
        SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "a")
    again = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "a", resume=True)
    with pytest.raises(MismatchError, match=f"store must be that of the checkpoint .run {states['b']['store']['run']}"):
        again.load_state_dict(states["b"])
    assert again.snapshots.steps == (4,)


def test_a_checkpoint_of_another_schedule_is_rejected(net):
    state = SnapshotEnsembler(net, sgd(net), SCHEDULE).state_dict()
    other = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 2))
    with pytest.raises(MismatchError, match="schedule must be that of the checkpoint, got cycles=2 instead of 3, "):
        other.load_state_dict(state)


def test_a_folder_that_lost_a_snapshot_of_the_checkpoint_is_rejected(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    state = ensembler.state_dict()
    state["store"]["snapshots"] = {2: "gone", **state["store"]["snapshots"]}
    with pytest.raises(MismatchError, match=r"\[2\] are missing or replaced: restore the folder"):
        ensembler.load_state_dict(state)


def test_a_checkpoint_of_an_abandoned_course_of_training_is_rejected(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 3)
    early = ensembler.state_dict()
    train(net, optimizer, ensembler, 2)
    late = ensembler.state_dict()
    ensembler.load_state_dict(early)
    train(net, optimizer, ensembler, 2)  # stores another snapshot at step 4
    with pytest.raises(MismatchError, match=r"\[4\] are missing or replaced"):
        ensembler.load_state_dict(late)
    assert ensembler.snapshots.steps == (4,)


def test_a_users_own_schedule_resumes_in_another_process(net):
    class Own(Schedule):
        total_steps, snapshot_steps, restart_steps = 4, (2, 4), (2,)

        def __call__(self, step):
            return 1.0

    state = SnapshotEnsembler(net, sgd(net), Own()).state_dict()
    SnapshotEnsembler(net, sgd(net), Own()).load_state_dict(state)


# what is rejected


@pytest.mark.parametrize(
    ("lr", "rule"),
    [
        (-1.0, r"lr must be a finite number of at least 0 in every group, got -1.0: set it, or pass drive_lr=False"),
        (math.nan, "at least 0 in every group, got nan"),
        (math.inf, "at least 0 in every group, got inf"),
        (0.0, "lr must be greater than 0 in at least one group, got 0 in all of them"),
    ],
)
def test_a_rate_that_cannot_train_is_rejected_before_a_folder_is_made(net, tmp_path, lr, rule):
    optimizer = sgd(net)
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(ArgumentError, match=rule):
        SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "initial_lr" not in optimizer.param_groups[0]


def test_weights_that_can_never_be_stored_are_rejected_at_the_start(net, tmp_path):
    net.register_buffer("mask", torch.full((2,), -math.inf))
    with pytest.raises(NonFiniteError, match=r"at step 0 in mask: .*persistent=False"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_snapshot_steps_of_a_users_own_schedule_must_ascend_to_the_end(net):
    class Own(StepDecay):
        snapshot_steps = (2, 6)

        def __init__(self):
            object.__setattr__(self, "total_steps", 4)

    with pytest.raises(ArgumentError, match=r"snapshot_steps must ascend to total_steps=4, got \(2, 6\)"):
        SnapshotEnsembler(net, sgd(net), Own())


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_factors_of_a_users_own_schedule_must_be_finite_and_not_negative(net, factor):
    class Own(Schedule):
        total_steps, snapshot_steps, restart_steps = 2, (2,), ()

        def __call__(self, step):
            return 1.0 if step == 0 else factor

    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, Own())
    with pytest.raises(ArgumentError, match="schedule must return finite factors of at least 0, got"):
        ensembler.step()


def test_arguments_of_the_wrong_kind_are_rejected(net):
    with pytest.raises(ArgumentError, match="model must be an instance of Module, got SGD"):
        SnapshotEnsembler(sgd(net), net, SCHEDULE)
    with pytest.raises(ArgumentError, match="schedule must be an instance of Schedule, got 100"):
        SnapshotEnsembler(net, sgd(net), 100)
    with pytest.raises(MismatchError, match=r"state must be what state_dict\(\) returned, got the keys \['a'\]"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).load_state_dict({"a": 1})


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


def test_a_finished_checkpoint_with_other_cycles_loads_and_an_unfinished_one_is_rejected_with_a_remedy(net):
    """Earlier versions cut the last cycle short where M does not divide T."""
    state = SnapshotEnsembler(net, sgd(net), CyclicCosine(11, 3)).state_dict()
    state["schedule"] = "CyclicCosine(total_steps=11, cycles=3, …, snapshot_steps=(4, 8, 11))"
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(11, 3))
    with pytest.raises(MismatchError, match="cycles of unequal length, finish the run with that version"):
        ensembler.load_state_dict(state)
    ensembler.load_state_dict({**state, "completed": 11})
    assert ensembler.completed == 11


def test_a_checkpoint_written_before_a_parameter_existed_has_its_default(net):
    state = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3)).state_dict()
    del state["schedule"]["first"]
    SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3)).load_state_dict(state)
    with pytest.raises(
        MismatchError, match=r"got first=2 instead of 1\.0, snapshot_steps=\[6, 9, 12\] instead of \[4, 8, 12\]:"
    ):
        SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3, first=2)).load_state_dict(state)


def test_a_checkpoint_of_a_folder_store_survives_json(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), store=tmp_path)
    for _ in range(3):
        ensembler.step()
    state = json.loads(json.dumps(ensembler.state_dict()))
    ensembler.close()
    again = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), store=tmp_path, resume=True)
    again.load_state_dict(state)
    assert again.completed == 3
    assert again.step() == 4


# a checkpoint that knows only the step


def test_rewind_continues_a_folder_at_a_step_and_the_rate_follows(make_net, tmp_path):
    net = make_net()
    first = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, first.optimizer, first, 9)
    first.close()
    net = make_net()
    again = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, resume=True)
    again.rewind(6)
    assert again.completed == 6
    assert again.ensemble().steps == (4,)  # the snapshot of step 8 belongs to the abandoned steps
    returned, rates, states = train(net, again.optimizer, again, 6)
    assert returned == [None, 8, None, None, None, 12]
    assert rates[0] == [0.1 * (math.cos(math.pi * 2 / 4) + 1) / 2]  # two steps into the second cycle
    assert torch.equal(Snapshots(tmp_path).load(8)["head.bias"], states[1]["head.bias"])


def test_rewind_works_for_a_store_in_memory(net):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 8)
    ensembler.rewind(4)
    assert ensembler.snapshots.steps == (4,)


@pytest.mark.parametrize("step", [-1, 13, 2.0, True, None])
def test_rewind_rejects_what_is_not_a_step(net, step):
    with pytest.raises(ArgumentError, match="step must be an integer from 0 to 12, got"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).rewind(step)


def test_rewind_rejects_a_store_that_lacks_a_snapshot(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    with pytest.raises(MismatchError, match=r"snapshots of steps \[4, 8\] to continue at step 9, got \[\]"):
        ensembler.rewind(9)


def test_rewind_rejects_a_store_of_another_schedule(net, tmp_path):
    first = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, first.optimizer, first, 4)
    first.close()
    other = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 2), store=tmp_path, resume=True)
    with pytest.raises(MismatchError, match=r"snapshots of steps \[\] to continue at step 5, got \[4\]"):
        other.rewind(5)


def test_rewind_accepts_a_snapshot_that_was_skipped(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, on_nonfinite="skip")
    ensembler.rewind(5)
    assert train(net, ensembler.optimizer, ensembler, 3)[0] == [None, None, 8]


# a run that ends early


def warnings_of_an_early_end(caplog):
    return [record.getMessage() for record in caplog.records if "without a snapshot of" in record.getMessage()]


def test_a_run_that_ends_early_warns_and_names_the_missing_cycles(net, caplog):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 5)
    del ensembler
    (message,) = warnings_of_an_early_end(caplog)
    assert "ended after step 5 of 12, without a snapshot of cycles 2, 3:" in message


def test_a_process_that_ends_early_warns_even_if_it_took_no_step(tmp_path):
    program = (
        "import torch, snapens; net = torch.nn.Linear(1, 1)\n"
        "e = snapens.SnapshotEnsembler(net, torch.optim.SGD(net.parameters(), 0.1), snapens.CyclicCosine(2, 2))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ended after step 0 of 2, without a snapshot of cycles 1, 2:" in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_the_end_of_a_forked_process_does_not_warn():
    program = (
        "import os, sys, torch, snapens; net = torch.nn.Linear(1, 1)\n"
        "e = snapens.SnapshotEnsembler(net, torch.optim.SGD(net.parameters(), 0.1), snapens.CyclicCosine(1, 1))\n"
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


# keep as a function


def head_of(model):
    return lambda: {name: value for name, value in model.named_parameters() if name.startswith("head.")}


def test_a_function_as_keep_stores_only_its_tensors(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, keep=head_of(net))
    states = train(net, ensembler.optimizer, ensembler, 12)[2]
    assert Snapshots(tmp_path).load(8).keys() == {"head.weight", "head.bias"}
    body, x = {name: value.clone() for name, value in tensors(net).items()}, torch.randn(5, 4)
    expected = []
    for k in (3, 7, 11):  # the heads of the minima over the last body
        net.load_state_dict({**body, **{name: states[k][name] for name in ("head.weight", "head.bias")}})
        expected.append(net.eval()(x).double().softmax(-1))
    torch.testing.assert_close(ensembler.ensemble()(x).double(), sum(expected) / 3)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda: [torch.ones(1)], "keep must return a dict from names to tensors, got list"),
        (lambda: {"head.bias": 1.0}, "keep must return a dict from names to tensors, got dict"),
        (lambda: {"bias": torch.ones(3)}, "by their names in the model, .* got 'bias'"),
        (lambda: {"head.bias": torch.ones(4)}, "shapes that they have there, got 'head.bias'"),
    ],
)
def test_a_function_as_keep_that_returns_something_else_is_rejected_at_the_start(net, tmp_path, keep, words):
    with pytest.raises(ArgumentError, match=words):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run", keep=keep)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resident", [True, False])
def test_a_function_as_keep_may_name_tied_weights_once(resident):
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    net[1].weight = net[0].weight
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), keep=lambda: dict(net.named_parameters()))
    x, expected = torch.arange(5), []
    for _ in range(4):
        ensembler.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), x).backward()
        ensembler.optimizer.step()
        if ensembler.step() is not None:
            expected.append(net(x).detach().softmax(-1))
    torch.testing.assert_close(ensembler.ensemble(resident=resident)(x), torch.stack(expected).mean(0))


def test_fresh_weights_work_with_a_function_as_keep(make_net):
    net = make_net()
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, keep=head_of(net), on_restart=fresh_weights(make_net))
    train(net, ensembler.optimizer, ensembler, 12)
    assert ensembler.ensemble().steps == (4, 8, 12)


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
