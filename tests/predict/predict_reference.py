"""Networks, ensembles of them, and a naive prediction in float64, for the tests of prediction."""

from copy import deepcopy

import torch
from torch import nn

from snapens import Ensemble, Snapshots
from snapens.combination import Combination
from snapens.weights import tensors


class Residual(nn.Module):
    """Convolutions with BatchNorm, ReLU, a shortcut and a branch of the data flow."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        y = self.dropout(torch.relu(self.norm1(self.conv1(x))))
        return self.head(torch.relu(self.norm2(self.conv2(y)) + x).mean((2, 3)))


class Shaped(Residual):
    """Branches on a shape, which torch.fx cannot trace and a graph can capture."""

    def forward(self, x):
        return super().forward(x if x.shape[-1] > 4 else nn.functional.pad(x, (2, 2, 2, 2)))


class Waiting(Residual):
    """Branches on a value, which neither torch.fx nor a graph can follow."""

    def forward(self, x):
        return super().forward(x if x.mean().item() < 1e6 else x / 1e6)


class Viewed(nn.Module):
    """Works only if its feature maps are contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().view(-1, 4 * 36))


class Centred(Residual):
    """Reads a dtype from a buffer, which is another one in a float64 copy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))

    def forward(self, x):
        return super().forward(x.to(self.mean.dtype) - self.mean)


def varied(network):
    """Give each BatchNorm statistics and weights as if it were trained."""
    for module in network.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor, low, high in (
                (module.running_mean, -0.3, 0.3),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.3, 0.3),
            ):
                nn.init.uniform_(tensor, low, high)
    return network.eval()


def ensemble_of(build, members=3, device=None, sharpness=1.0, noise=0.6, **changes):
    """An ensemble of similar networks; `changes` are those of the combination."""
    snapshots, network = Snapshots(), varied(build())
    for parameter in list(network.parameters())[-2:]:  # the head
        parameter.data *= sharpness
    for step in range(1, members + 1):
        similar = deepcopy(network)
        for parameter in similar.parameters():
            parameter.data *= 1 + noise * torch.randn_like(parameter)
        snapshots.commit(step, tensors(similar))
    ensemble = Ensemble(snapshots, network, device=device)
    ensemble.combination = Combination(ensemble.combination.members, **changes)
    return ensemble


@torch.no_grad()
def naive(ensemble, inputs):
    """Predictions, members used, and margins, one row at a time in float64, as the documentation defines them.

    The margin of a row is the smallest distance of a confidence from the threshold: how sure it is where the row stops.
    """
    combination = ensemble.combination
    weights = combination.weights or (1.0,) * len(combination.members)
    newest_first = [
        (deepcopy(module).double()(inputs.double()).softmax(-1).cpu(), weight)
        for module, weight in zip(ensemble.members, weights, strict=True)
    ][::-1]
    predictions, used, margins = [], [], []
    for row in range(len(inputs)):
        total, weight, count, margin = 0.0, 0.0, 0, 1.0
        for found, share in newest_first:
            total, weight, count = total + share * found[row], weight + share, count + 1
            if combination.exit_threshold is not None and count < len(newest_first):
                confidence = max((total / weight).tolist())
                margin = min(margin, abs(confidence - combination.exit_threshold))
                if confidence >= combination.exit_threshold:
                    break
        powered = (total / weight) ** (1 / combination.temperature)
        predictions.append(powered / powered.sum())
        used.append(count)
        margins.append(margin)
    return torch.stack(predictions), torch.tensor(used), torch.tensor(margins)
