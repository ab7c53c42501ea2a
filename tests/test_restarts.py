import copy
import math

import pytest
import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler, noisy_weights
from snapens.errors import ArgumentError


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), nn.Linear(50, 60))


def trained(steps, on_restart, model=None):
    """A network after some steps without gradients: only `on_restart` changes its weights."""
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(12, 3), on_restart=on_restart)
    for _ in range(steps):
        optimizer.step()
        ensembler.step()
    ensembler.close()
    return model


@torch.no_grad()
def test_noise_is_normal_and_relative_to_the_size_of_each_weight_tensor():
    before, after = net(), trained(4, noisy_weights(0.1))
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

    assert weights(3).equal(net()[0].weight)
    torch.manual_seed(5)
    first = weights(4)
    assert first.equal(weights(7))
    assert not first.equal(weights(4, seed=1))
    second = weights(8)
    assert not (second - first).equal(first - net()[0].weight)
    assert second.equal(weights(12))  # the last minimum begins no cycle


def test_a_snapshot_is_taken_before_the_noise_and_the_random_state_is_left_alone():
    model = net()
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
