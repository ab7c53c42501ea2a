"""Ascent: the weights of a network, moved in the direction of their gradient for one backward pass."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...errors import ArgumentError
from ..recipe.batch import Batch
from ..recipe.sharpness import SAM

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_LEAST_NORM = 1e-12  # of a gradient; a smaller one moves the weights less


class Ascent:
    """Moves the weights of a network by the radius of SAM, and back."""

    def __init__(self, network: nn.Module, sharpness: SAM) -> None:
        self._parameters, self._sharpness = list(network.parameters()), sharpness
        self._moved = self._parameters if sharpness.moves == "all" else _of_norms(network)
        if not self._moved:
            raise ArgumentError("sam_moves must be 'all' for a network without normalisation layers, got 'norms'")
        self._weights, self._buffers = _Kept(self._moved), _Kept(network.buffers())

    @contextmanager
    def uphill(self, find: Callable[[Batch], object], batch: Batch) -> Iterator[None]:
        """Inside, the weights are moved along the gradients that `find` computes; afterwards they are as before.

        The gradients are those of every n-th example of the batch, so BatchNorm statistics do not change.
        """
        self._buffers.save()
        find(batch.every(self._sharpness.every))
        self._buffers.restore()
        self._weights.save()
        pairs = [(parameter, parameter.grad) for parameter in self._moved if parameter.grad is not None]
        gradients = [gradient for _, gradient in pairs]
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            torch._foreach_mul_(gradients, self._sharpness.radius / norm.clamp(min=_LEAST_NORM))
            torch._foreach_add_([parameter for parameter, _ in pairs], gradients)
        for parameter in self._parameters:
            parameter.grad = None
        try:
            yield
        finally:
            self._weights.restore()


def _of_norms(network: nn.Module) -> list[nn.Parameter]:
    norms = (module for module in network.modules() if isinstance(module, _NORMS))
    return list(dict.fromkeys(parameter for norm in norms for parameter in norm.parameters(recurse=False)))


class _Kept:
    """Tensors and copies of them; one kernel copies all tensors of a type."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._live: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            self._live.setdefault(tensor.dtype, []).append(tensor.detach())
        self._copies = {dtype: [torch.empty_like(tensor) for tensor in live] for dtype, live in self._live.items()}

    def save(self) -> None:
        """Copy the tensors."""
        for dtype, live in self._live.items():
            torch._foreach_copy_(self._copies[dtype], live)

    def restore(self) -> None:
        """Set the tensors to their copies."""
        for dtype, live in self._live.items():
            torch._foreach_copy_(live, self._copies[dtype])
