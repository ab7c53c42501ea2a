"""The weights a network starts from."""

from torch import nn


def initialise(network: nn.Module) -> nn.Module:
    """Draw convolutions as the authors do, N(0, sqrt(2 / (k * k * out))), and zero the biases of linear layers.

    BatchNorm already starts at 1 and 0; a linear layer's weights stay as torch draws them, as Torch 7 did.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return network
