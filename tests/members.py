"""Ensembles whose members are known, for the tests."""

import copy

import torch
from torch import nn

from snapens import Combination, Snapshots
from snapens.weights import tensors


def weighted(steps, weights):
    return Combination(tuple(("memory", step) for step in steps), tuple(weights))


def trained(make, steps=(4, 8, 12), path=None, **options):
    """A store of differing networks, and those networks in evaluation mode."""
    store = Snapshots(path, **options)
    store.open_to_write()
    networks = []
    for step in steps:
        network = make()
        for value in network.state_dict().values():  # no two tensors are equal
            value.add_(torch.rand_like(value, dtype=torch.float32)) if value.is_floating_point() else value.add_(step)
        store.commit(step, tensors(network))
        networks.append(network.eval())
    return store, networks


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))


def mean_of(networks, x=X):
    with torch.no_grad():
        return torch.stack([network.double()(x.double()).softmax(-1) for network in copy.deepcopy(networks)]).mean(0)


class Shaped(nn.Module):
    """Returns its only weight, in the shape and the wrapper that a test needs."""

    def __init__(self, value, wrap=lambda t: t):
        super().__init__()
        self.value, self.wrap = nn.Parameter(value), wrap

    def forward(self, x=None, *, scale=1.0):
        return self.wrap(self.value * scale)


def pair(a, b):
    store = Snapshots()
    store.commit(1, {"value": a})
    store.commit(2, {"value": b})
    return store


A = torch.randn(2, 5, 4, 4)


B = torch.randn(2, 5, 4, 4)
