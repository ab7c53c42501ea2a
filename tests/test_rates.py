"""The learning rates that an ensembler sets."""

import math

import pytest
import torch
from loop import SCHEDULE, saved, sgd, train

from snapens import Schedule, SnapshotEnsembler
from snapens.errors import ArgumentError


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


def test_an_optimizer_without_a_rate_is_rejected_unless_the_rates_are_left_unchanged(net):
    optimizer = sgd(net)
    optimizer.param_groups[0]["lr"] = None  # as in Adafactor(relative_step=True)
    with pytest.raises(ArgumentError, match=r"lr must be a finite .*, got None: set it, or pass drive_lr=False"):
        SnapshotEnsembler(net, optimizer, SCHEDULE)
    SnapshotEnsembler(net, optimizer, SCHEDULE, drive_lr=False)
