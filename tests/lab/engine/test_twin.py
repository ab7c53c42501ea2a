import copy

import torch
from torch import nn

from snapens.lab.engine.twin import Twin


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.average = nn.BatchNorm2d(3, momentum=None)  # needs its own count of batches
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.table = nn.Embedding(5, 4)
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.table.weight


def pair():
    torch.manual_seed(0)
    original = Net().to(memory_format=torch.channels_last)
    return original, Twin(original, copy.deepcopy(original))


def test_convolutions_and_linear_layers_are_rounded_and_all_else_is_the_originals_own():
    original, twin = pair()
    network = twin.network
    for name in ("conv.weight", "conv.bias", "frozen.weight", "frozen.bias"):
        assert torch.equal(network.get_parameter(name), original.get_parameter(name).to(torch.bfloat16))
    for name in ("norm.weight", "norm.bias", "table.weight", "tied.weight"):  # a tied weight has other uses
        assert network.get_parameter(name) is original.get_parameter(name)
    assert network.norm.running_mean is original.norm.running_mean
    assert network.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not network.frozen.weight.requires_grad


def test_gradients_are_handed_over_in_float32_and_batches_counted():
    original, twin = pair()
    gradient = torch.randn(3, 2, 3, 3).to(torch.bfloat16)
    buffers = set()
    for count in (1, 2):
        twin.network.conv.weight.grad = count * gradient
        twin.hand_over_gradients()
        assert torch.equal(original.conv.weight.grad, (count * gradient).float())
        assert twin.network.conv.weight.grad is None
        assert original.norm.num_batches_tracked == count
        buffers.add(original.conv.weight.grad.data_ptr())
        original.zero_grad()  # the optimizer's, which forgets them
    assert len(buffers) == 1  # a recorded step knows them by their address
    assert original.conv.bias.grad is None  # unused here
    assert original.frozen.weight.grad is None
    assert twin.network.norm.num_batches_tracked is None
    assert twin.network.average.num_batches_tracked is original.average.num_batches_tracked


def test_weights_are_taken_over_in_place():
    original, twin = pair()
    address = twin.network.conv.weight.data_ptr()
    with torch.no_grad():
        original.conv.weight.fill_(1 / 3)
    twin.take_over_weights()
    assert twin.network.conv.weight.data_ptr() == address
    assert (twin.network.conv.weight == torch.tensor(1 / 3).to(torch.bfloat16)).all()
