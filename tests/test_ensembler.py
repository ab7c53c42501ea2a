import copy
import io
import logging
import math

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
    """Through a checkpoint file that may hold plain values and tensors only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# the loop


def test_snapshots_are_the_weights_at_the_minima_and_step_says_so(net):
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


def test_an_ensemble_can_be_had_in_the_middle_of_training(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 5)
    assert ensembler.ensemble().steps == (4,)
    assert ensembler.completed == 5


def test_a_step_beyond_the_last_is_an_error_and_keeps_nothing_twice(net):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    with pytest.raises(FinishedError, match=r"at most total_steps=12 times: .* not once a micro-batch"):
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


def test_a_group_added_on_the_way_follows_with_a_peak_of_its_own(net):
    optimizer = torch.optim.SGD([net.head.weight], lr=0.1)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 4)
    optimizer.add_param_group({"params": [net.module.weight], "lr": 0.03})
    _, rates, _ = train(net, optimizer, ensembler, 2)
    assert rates[1] == [0.1 * SCHEDULE(5), 0.03 * SCHEDULE(5)]


def test_groups_added_to_an_optimizer_with_one_tensor_for_all_rates_have_peaks_of_their_own(net):
    optimizer = torch.optim.SGD([net.head.weight], lr=torch.tensor(0.5))
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 2)
    optimizer.add_param_group({"params": [net.module.weight]})
    train(net, optimizer, ensembler, 2)
    optimizer.add_param_group({"params": [net.module.bias]})
    _, rates, _ = train(net, optimizer, ensembler, 2)
    assert rates[1] == pytest.approx([0.5 * SCHEDULE(5)] * 3)


def test_initial_lr_left_by_an_earlier_run_is_the_peak_as_for_torchs_schedulers(net):
    optimizer = sgd(net)
    train(net, optimizer, SnapshotEnsembler(net, optimizer, SCHEDULE), 12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    SnapshotEnsembler(net, optimizer, SCHEDULE)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_drive_lr_false_leaves_the_rate_alone(net):
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


def test_the_log_says_which_steps_are_kept(net, caplog):
    with caplog.at_level(logging.INFO, logger="snapens"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE)
    assert "snapshot_steps=(4, 8, 12)" in caplog.text
    assert "peak rates [0.1]" in caplog.text


def test_every_call_counts_a_skipped_update_of_a_grad_scaler_too(net):
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


def test_compiled_models_are_kept_under_their_plain_names(net):
    compiled = torch.compile(net, backend="eager")
    optimizer = sgd(compiled)
    ensembler = SnapshotEnsembler(compiled, optimizer, CyclicCosine(2, 1))
    train(compiled, optimizer, ensembler, 2)
    assert ensembler.snapshots.load(2).keys() == net.state_dict().keys()
    x = torch.randn(3, 4)
    assert torch.allclose(ensembler.ensemble()(x), net.eval()(x).softmax(-1))


# what is kept, and what a restart does


def test_keep_names_the_module_whose_state_is_kept(net, make_net):
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


def test_fresh_weights_of_another_architecture_are_refused(net):
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


# weights gone bad


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
    assert ensembler.step() == 8  # the call that failed can be made again


def test_skip_leaves_the_snapshot_out_and_says_so(net, caplog):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_nonfinite="skip")
    poisoned(net, optimizer, ensembler)
    assert ensembler.step() is None
    assert "no snapshot is kept at step 8" in caplog.text
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


def test_a_memory_store_travels_in_the_checkpoint_and_stays_shared(make_net):
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


def test_the_rate_and_peaks_come_back_whatever_is_loaded_first(make_net):
    net = make_net()
    optimizer = sgd(net, lr=0.2)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 6)
    states = saved({"optimizer": optimizer.state_dict(), "ensembler": ensembler.state_dict()})
    for optimizer_first in (True, False):
        fresh = sgd(net, lr=0.7)  # another peak than the checkpoint's
        if optimizer_first:
            fresh.load_state_dict(states["optimizer"])
        again = SnapshotEnsembler(net, fresh, SCHEDULE)
        if not optimizer_first:
            fresh.load_state_dict(states["optimizer"])
        again.load_state_dict(states["ensembler"])
        assert fresh.param_groups[0]["lr"] == 0.2 * SCHEDULE(6)
        assert again.completed == 6


def test_resuming_without_a_checkpoint_replaces_nothing(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    ensembler.snapshots.close()
    again = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path, resume=True)
    with pytest.raises(MismatchError, match=r"holds the snapshots of steps \[4\], but this run is at step 0"):
        again.step()
    assert Snapshots(tmp_path).steps == (4,)


def test_resume_is_fine_with_an_empty_folder(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "new", resume=True)
    train(net, optimizer, ensembler, 12)
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_a_folder_that_holds_another_run_is_refused(make_net, tmp_path):
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


def test_a_checkpoint_of_another_schedule_is_refused(net):
    state = SnapshotEnsembler(net, sgd(net), SCHEDULE).state_dict()
    other = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 2))
    with pytest.raises(MismatchError, match=r"schedule must be .* checkpoint, .*'cycles': 3.*, got .*'cycles': 2"):
        other.load_state_dict(state)


def test_a_folder_that_lost_a_snapshot_of_the_checkpoint_is_refused(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    state = ensembler.state_dict()
    state["store"]["snapshots"] = {2: "gone", **state["store"]["snapshots"]}
    with pytest.raises(MismatchError, match=r"lost or replaced \[2\]: restore the folder"):
        ensembler.load_state_dict(state)


def test_a_checkpoint_of_a_path_that_was_left_is_refused(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 3)
    early = ensembler.state_dict()
    train(net, optimizer, ensembler, 2)
    late = ensembler.state_dict()
    ensembler.load_state_dict(early)
    train(net, optimizer, ensembler, 2)  # keeps step 4 of another path
    with pytest.raises(MismatchError, match=r"lost or replaced \[4\]"):
        ensembler.load_state_dict(late)
    assert ensembler.snapshots.steps == (4,)


def test_a_schedule_of_your_own_resumes_in_another_process(net):
    class Own(Schedule):
        total_steps, snapshot_steps, restart_steps = 4, (2, 4), (2,)

        def __call__(self, step):
            return 1.0

    state = SnapshotEnsembler(net, sgd(net), Own()).state_dict()
    SnapshotEnsembler(net, sgd(net), Own()).load_state_dict(state)


# what is refused


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_not_positive_and_finite_is_refused_before_anything_is_made(net, tmp_path, lr):
    optimizer = sgd(net)
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(
        ArgumentError, match=r"lr must be a finite number greater than 0 in every group, got .*drive_lr=False"
    ):
        SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "initial_lr" not in optimizer.param_groups[0]


def test_weights_that_could_never_be_kept_are_refused_at_the_start(net, tmp_path):
    net.register_buffer("mask", torch.full((2,), -math.inf))
    with pytest.raises(NonFiniteError, match=r"at step 0 in mask: .*persistent=False"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_snapshot_steps_of_your_own_must_ascend_to_the_end(net):
    class Own(StepDecay):
        snapshot_steps = (2, 6)

        def __init__(self):
            object.__setattr__(self, "total_steps", 4)

    with pytest.raises(ArgumentError, match=r"snapshot_steps must ascend to total_steps=4, got \(2, 6\)"):
        SnapshotEnsembler(net, sgd(net), Own())


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_factors_of_your_own_must_be_finite_and_not_negative(net, factor):
    class Own(Schedule):
        total_steps, snapshot_steps, restart_steps = 2, (2,), ()

        def __call__(self, step):
            return 1.0 if step == 0 else factor

    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, Own())
    with pytest.raises(ArgumentError, match="schedule must give finite factors of at least 0, got"):
        ensembler.step()


def test_arguments_of_the_wrong_kind_are_refused(net):
    with pytest.raises(ArgumentError, match="model must be an instance of Module, got SGD"):
        SnapshotEnsembler(sgd(net), net, SCHEDULE)
    with pytest.raises(ArgumentError, match="schedule must be an instance of Schedule, got 100"):
        SnapshotEnsembler(net, sgd(net), 100)
    with pytest.raises(MismatchError, match=r"state must be what state_dict\(\) returned, got the keys \['a'\]"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).load_state_dict({"a": 1})


def test_a_finished_run_lets_go_of_its_folder_and_can_still_be_taken_back(net, tmp_path):
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


def test_a_run_that_is_closed_can_be_begun_anew_in_the_same_process(net, tmp_path):
    SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path).close()
    SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)


def test_an_optimizer_of_another_model_is_refused(net):
    with pytest.raises(ArgumentError, match="optimizer must hold parameters of model"):
        SnapshotEnsembler(net, sgd(copy.deepcopy(net)), SCHEDULE)


def test_an_unknown_on_nonfinite_is_refused(net):
    with pytest.raises(ArgumentError, match="on_nonfinite must be 'raise' or 'skip', got 'ignore'"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, on_nonfinite="ignore")
