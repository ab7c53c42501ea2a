"""Prepare the members of an ensemble for prediction: copies that are folded, rounded and laid out for the device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from .folding import folded
from .fusing import available

_ROUNDED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)  # what autocast would round in every call

Accelerate = Callable[[nn.Module], object]
"""Switches on the kernels of a network, and returns whether it has any; such a network is not folded."""

Precision = Callable[[], AbstractContextManager[Any]]
"""Opens the context in which members are evaluated: autocast, or no change."""


def prepared(member: nn.Module, example: Tensor, dtype: torch.dtype, accelerate: Accelerate | None) -> nn.Module:
    """A copy of a member that computes the same scores in `dtype` with autocast; the member is not changed."""
    network = deepcopy(member).float()
    if accelerate is None or not accelerate(network):
        network = folded(network, example, kernels=available(example.device))
    for module in network.modules():
        if isinstance(module, _ROUNDED) and dtype != torch.float32:
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.to(dtype), requires_grad=False))
    return network


def set_channels_last(networks: Sequence[nn.Module], example: Tensor, precision: Precision) -> bool:
    """Store the weights of two-dimensional convolutions as channels last, and return whether the network supports it.

    A network that calls `view` on its feature maps does not support it.
    """
    convolutions = [layer for network in networks for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    if example.ndim != 4 or not convolutions:
        return False
    _store(convolutions, torch.channels_last)
    try:
        with precision():
            networks[0](example.clone(memory_format=torch.channels_last))
    except RuntimeError:
        _store(convolutions, torch.contiguous_format)
        return False
    return True


def _store(convolutions: Sequence[nn.Conv2d], memory_format: torch.memory_format) -> None:
    for layer in convolutions:
        layer.weight.data = layer.weight.data.contiguous(memory_format=memory_format)


def layout_of(example: Tensor) -> torch.memory_format:
    """The memory format of inputs like the example."""
    return torch.contiguous_format if example.is_contiguous() else torch.channels_last
