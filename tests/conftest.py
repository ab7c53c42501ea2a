import numpy as np
import pytest
import torch
from torch import nn

from snapens import Snapshots
from snapens.outputs import Outputs


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


@pytest.fixture
def folder(tmp_path):
    """Snapshots in a folder, open to write."""
    opened = Snapshots(tmp_path / "run")
    opened.open_to_write()
    return opened


@pytest.fixture(params=[True, False], ids=["resident", "streamed"])
def resident(request):
    """Whether all members of an ensemble are in memory, or one at a time."""
    return request.param


@pytest.fixture(params=["memory", "folder"])
def path(request, tmp_path):
    """Where snapshots are stored; None for memory."""
    return None if request.param == "memory" else tmp_path / "run"


@pytest.fixture
def make_outputs():
    def make(members=4, examples=60, classes=5, seed=0, *, member_noise=1.0, scale=1.0, runs=1, part="held_out"):
        """Outputs of random classifiers that are better than chance; members differ by noise."""
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, classes, examples)
        logits = rng.normal(size=(1, examples, classes)) + member_noise * rng.normal(size=(members, examples, classes))
        logits[:, np.arange(examples), labels] += 1.5
        logits *= scale
        names = tuple((f"run {k % runs}", 10 * (k // runs + 1)) for k in range(members))
        return Outputs(names, (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float16), labels, part)

    return make


def score(means, labels):
    """Error, NLL and ECE of (examples, classes), one example at a time."""
    wrong, nll, bins = 0, 0.0, {}
    for p, label in zip(means, labels, strict=True):
        wrong += int(np.argmax(p) != label)
        nll -= np.log(p[label])
        place = min(max(int(np.ceil(p.max() * 15)) - 1, 0), 14)
        bins.setdefault(place, []).append((np.argmax(p) == label) - p.max())
    return wrong / len(labels), nll / len(labels), sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium."""
    from browser import Browser  # only where a test needs one: it uses POSIX files

    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
