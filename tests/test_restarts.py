"""What begins with a new cycle: `fresh_weights`, `noisy_weights`, `reset_momentum`, or a function of the user."""

import copy
import math

import pytest
import torch
from loop import SCHEDULE, sgd, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snapens import CyclicCosine, SnapshotEnsembler, fresh_weights, noisy_weights, reset_momentum
from snapens.errors import ArgumentError, MismatchError
from snapens.weights import tensors


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 60))


def trained(steps, on_restart, model=None):
    """A network after some steps without gradients: only `on_restart` changes its weights."""
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(12, 3), on_restart=on_restart)
    for _ in range(steps):
        optimizer.step()
        ensembler.step()
    ensembler.close()
    return model


@torch.no_grad()
def test_noise_is_normal_and_relative_to_the_size_of_each_weight_tensor():
    before, after = network(), trained(4, noisy_weights(0.1))
    for name, weights in before.named_parameters():
        change = after.get_parameter(name) - weights
        if weights.dim() < 2:
            assert not change.any()
            continue
        size = float(weights.square().mean().sqrt())
        assert float(change.std()) == pytest.approx(0.1 * size, rel=4 / (2 * change.numel()) ** 0.5)
        assert abs(float(change.mean())) < 4 * 0.1 * size / change.numel() ** 0.5
        assert float((change.abs() < 0.1 * size).float().mean()) == pytest.approx(0.683, abs=0.04)
    assert all(torch.equal(one, other) for one, other in zip(before.buffers(), after.buffers(), strict=True))


def test_noise_comes_at_each_restart_only_and_is_a_function_of_the_seed_and_the_step():
    def weights(steps, seed=0, model=None):
        return trained(steps, noisy_weights(0.1, seed), model)[0].weight.detach()

    assert weights(3).equal(network()[0].weight)
    torch.manual_seed(5)
    first = weights(4)
    assert first.equal(weights(7))
    assert not first.equal(weights(4, seed=1))
    second = weights(8)
    noises = (first - network()[0].weight, second - first)
    assert abs(torch.cosine_similarity(*(noise.detach().flatten() for noise in noises), dim=0)) < 0.2
    assert second.equal(weights(12))  # the last minimum begins no cycle


def test_frozen_weights_get_no_noise():
    model = network()
    model[0].requires_grad_(False)
    before = [parameter.clone() for parameter in model.parameters()]
    after = list(trained(4, noisy_weights(0.5), model).parameters())
    assert [not one.equal(other) for one, other in zip(before, after, strict=True) if one.dim() > 1] == [
        other.requires_grad for other in after if other.dim() > 1
    ]


def test_a_snapshot_is_taken_before_the_noise_and_the_random_state_is_left_alone():
    model = network()
    before = copy.deepcopy(model[0].weight.detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(2, 2), on_restart=noisy_weights(0.5))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    optimizer.step()
    ensembler.step()
    assert torch.rand(3).equal(expected)
    assert ensembler.snapshots.load(1)["0.weight"].equal(before)
    assert not model[0].weight.equal(before)
    ensembler.close()


@pytest.mark.parametrize("scale", [0, -1, math.inf, math.nan])
def test_a_scale_that_is_no_positive_number_is_rejected(scale):
    with pytest.raises(ArgumentError, match="scale must be a finite number greater than 0, got"):
        noisy_weights(scale)


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
    wrapper = nn.ModuleDict({"ema": copy.deepcopy(net), "other": nn.Linear(1, 1)})
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, keep=wrapper, on_restart=fresh_weights(make_net))
    with pytest.raises(MismatchError, match=r"keep must have the tensors of the model .*, such as keep=ema.module"):
        train(net, optimizer, ensembler, 4)


@pytest.mark.parametrize("factory", [nn.Linear(1, 1), "Net"])
def test_fresh_weights_need_a_function_that_builds_a_model(factory):
    with pytest.raises(
        ArgumentError, match=r"factory must be a function or class that builds a new model, got .*: pass Net"
    ):
        fresh_weights(factory)


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


def test_a_step_whose_on_restart_fails_is_counted_and_only_the_function_is_repeated(net):
    calls = []

    def flaky(ensembler):
        calls.append(ensembler.completed)
        if len(calls) == 1:
            raise OSError("no weights")

    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, on_restart=flaky)
    with pytest.raises(OSError, match="no weights"):
        train(net, optimizer, ensembler, 4)
    assert (ensembler.completed, ensembler.snapshots.steps, optimizer.param_groups[0]["lr"]) == (4, (4,), 0.1)
    flaky(ensembler)
    train(net, optimizer, ensembler, 8)
    assert calls == [4, 4, 8]
    assert ensembler.snapshots.steps == (4, 8, 12)
