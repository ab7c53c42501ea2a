"""BatchNorm statistics of weights that were not trained, such as an average of weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def norms(module: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def estimated_statistics(module: nn.Module) -> Iterator[None]:
    """Set the BatchNorm statistics of a module to plain averages over the batches that are evaluated inside.

    All other layers are in evaluation mode, so dropout is off. The modes and momenta of before are restored.

    Examples:
        >>> norm = nn.BatchNorm1d(1)
        >>> with estimated_statistics(norm):
        ...     for batch in ([[1.0], [3.0]], [[4.0], [8.0]]):
        ...         _ = norm(torch.tensor(batch))
        >>> norm.running_mean, norm.running_var  # the means of 2 and 6, and of 2 and 8
        (tensor([4.]), tensor([5.]))
    """
    layers, modes = norms(module), [(child, child.training) for child in module.modules()]
    momenta = [layer.momentum for layer in layers]
    module.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # for torch, this means a plain average
            layer.train()
        with torch.no_grad():
            yield
    finally:
        for child, mode in modes:
            child.training = mode
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
