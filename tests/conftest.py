import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Net(nn.Module):
    """Small, with all that is easily forgotten: float and integer buffers, a tied weight, a child named `module`."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.module = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Linear(width, width, bias=False)
        self.again = nn.Linear(width, width, bias=False)
        self.again.weight = self.mix.weight
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.again(torch.relu(self.mix(torch.relu(self.norm(self.module(x)))))))


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def make_net():
    return Net
