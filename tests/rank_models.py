"""The models, optimizers and checks that the scenarios of `two_ranks.py` share."""

import pytest
import torch
import torch.distributed as dist
from conftest import Net
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from snapens import CyclicCosine
from snapens.weights import tensors

SCHEDULE = CyclicCosine(4, 2)


def train(model, ensembler, inputs):
    """One step for each input, or a number of steps with random inputs."""
    for x in torch.randn(inputs, 6, 4) if isinstance(inputs, int) else inputs:
        model(x).square().mean().backward()
        ensembler.optimizer.step()
        ensembler.optimizer.zero_grad()
        ensembler.step()


def rejected(error, action, words=None):
    with pytest.raises(error, match=words):
        action()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def mesh():
    return init_device_mesh("cpu", (2,))


def sharded(model=None, **options):
    """A model in two groups of shards: the first layer, and the rest. Of 5 classes, rank 0 has 3 and rank 1 has 2."""
    model = model or same(Net(classes=5))
    options = {"mesh": mesh(), **options}
    fully_shard(model.module, **options)
    return fully_shard(model, **options)


def mlp():
    """A network without buffers, which would differ between ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batches():
    """4 steps of 12 examples."""
    return torch.randn(4, 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def same(model):
    """The model with the weights of rank 0 on both ranks."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    return model


def whole(model):
    """The state dict that torch gathers itself, on all ranks."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: state[name].clone() for name in model.state_dict()}


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype, name
        assert torch.equal(found[name], expected[name]), name


def fill(model, name, value, rows=slice(None)):
    """Set rows of a tensor; each rank sets those that it holds."""
    with torch.no_grad():
        tensors(model)[name].to_local()[rows] = value
