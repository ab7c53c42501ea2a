"""The initial weights of a network."""

from torch import nn


def initialise(network: nn.Module) -> nn.Module:
    """Draw the weights of convolutions from N(0, sqrt(2 / (k * k * out))), as the authors do; set linear biases to 0.

    The weights of linear layers keep torch's own initialisation, which is that of Torch 7.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network
