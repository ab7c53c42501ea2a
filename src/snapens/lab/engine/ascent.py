"""Ascent: the weights of a network, moved in the direction of their gradient for one backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LEAST_NORM = 1e-12  # of a gradient; a smaller one moves the weights less


class Ascent:
    """Moves the weights of a network by `radius`, and back."""

    def __init__(self, network: nn.Module, radius: float) -> None:
        self._parameters, self._radius = list(network.parameters()), radius
        self._live: dict[torch.dtype, list[Tensor]] = {}
        for tensor in (*self._parameters, *network.buffers()):
            self._live.setdefault(tensor.dtype, []).append(tensor.detach())
        self._before = {dtype: [torch.empty_like(tensor) for tensor in live] for dtype, live in self._live.items()}

    @contextmanager
    def uphill(self) -> Iterator[None]:
        """Inside, the weights are moved along their gradients, which are then removed.

        Afterwards, weights and buffers are as before: BatchNorm statistics are those of the weights themselves.
        """
        for dtype, live in self._live.items():
            torch._foreach_copy_(self._before[dtype], live)
        pairs = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        gradients = [gradient for _, gradient in pairs]
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            moves = torch._foreach_mul(gradients, self._radius / norm.clamp(min=_LEAST_NORM))
            torch._foreach_add_([parameter for parameter, _ in pairs], moves)
        for parameter, _ in pairs:
            parameter.grad = None
        yield
        for dtype, live in self._live.items():
            torch._foreach_copy_(live, self._before[dtype])
