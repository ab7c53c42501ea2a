"""A training loop with an ensembler, for the tests."""

import io

import torch

from snapens import CyclicCosine
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
