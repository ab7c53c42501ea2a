"""A multilayer perceptron for tables of numbers."""

from collections.abc import Sequence

from torch import nn


def mlp(*, classes: int, features: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.0) -> nn.Module:
    """Build hidden layers of these widths, for rows of standardised features: (rows, features) -> (rows, classes).

    Each hidden layer is a linear layer, BatchNorm, ReLU and dropout. Its weights start from N(0, sqrt(2 / inputs)),
    which keeps the size of the activations from layer to layer (He et al.).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip((features, *hidden), hidden, strict=False):
        linear = nn.Linear(inputs, outputs, bias=False)  # BatchNorm follows and would cancel a bias
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        layers += [linear, nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(dropout)]
    head = nn.Linear((features, *hidden)[-1], classes)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, head)
