"""BatchNorm layers that use the statistics of the whole batch, although each rank has only a part of it.

torch's SyncBatchNorm needs a GPU. These layers also run on a CPU, where the tests compare them with one process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ...batchnorm import norms
from ...errors import ArgumentError
from .world import World

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SynchronisedNorms:
    """The BatchNorm layers of a network. Inside `across`, in training mode, their statistics are those of all ranks.

    The layers keep their types and the names of their tensors; outside `across` they are ordinary layers.
    """

    def __init__(self, network: nn.Module) -> None:
        self._world: World | None = None
        for norm in norms(network):
            if type(norm) not in _KINDS:  # such a layer may do more than normalise
                raise ArgumentError(
                    f"network must have BatchNorm layers of torch's own types to synchronise them, got "
                    f"{type(norm).__name__}: use --local-batchnorm, or train with one process"
                )
            norm.forward = partial(self._forward, norm)  # type: ignore[method-assign]

    @contextmanager
    def across(self, world: World) -> Iterator[None]:
        """Synchronise the layers in the forward pass inside, and in its backward pass."""
        self._world = world
        try:
            yield
        finally:
            self._world = None

    def _forward(self, norm: _BatchNorm, x: Tensor) -> Tensor:
        if self._world is None or not norm.training:
            return type(norm).forward(norm, x)
        norm._check_input_dim(x)  # type: ignore[no-untyped-call]
        y, mean, variance = _Normalised.apply(x, norm.weight, norm.bias, norm.eps, self._world)  # type: ignore[no-untyped-call]
        count = x.numel() // x.shape[1] * self._world.count
        _update_running(norm, mean, variance * (count / max(count - 1, 1)))
        return y  # type: ignore[no-any-return]


class _Normalised(torch.autograd.Function):
    """x (batch, channels, ...) normalised, scaled and shifted; and the mean and variance (channels,) of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, world: World
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(values, _other_dimensions(x), correction=0)
        # all ranks have the same number of values; unlike sums of squares, combined variances lose no precision
        means, variances = world.gather(torch.stack([mean, variance])).unbind(1)
        mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
        rstd = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.world = world
        ctx.mark_non_differentiable(mean, variance)
        scale = rstd if weight is None else rstd * weight
        y = (values - _broadcast(mean, x)) * _broadcast(scale, x)
        return (y if bias is None else y + _broadcast(bias, x)).to(x.dtype), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        gradient = gradient.to(mean.dtype)
        normalised = (x - _broadcast(mean, x)) * _broadcast(rstd, x)
        dimensions = _other_dimensions(x)
        sums = torch.stack([gradient.sum(dimensions), (gradient * normalised).sum(dimensions)])
        count = x.numel() // x.shape[1] * ctx.world.count
        shift, slope = ctx.world.add(sums.clone()) / count
        scale = rstd if weight is None else rstd * weight
        to_x = (gradient - _broadcast(shift, x) - normalised * _broadcast(slope, x)) * _broadcast(scale, x)
        _, to_weight, to_bias, *_ = ctx.needs_input_grad
        return to_x.to(x.dtype), sums[1] if to_weight else None, sums[0] if to_bias else None, None, None


@torch.no_grad()
def _update_running(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += 1
    if norm.running_mean is None or norm.running_var is None:
        return
    share: Any = norm.momentum
    if share is None:  # a plain average
        assert norm.num_batches_tracked is not None
        share = 1 / norm.num_batches_tracked.to(mean.dtype)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance, share)


def _other_dimensions(x: Tensor) -> list[int]:
    return [dimension for dimension in range(x.dim()) if dimension != 1]


def _broadcast(values: Tensor, x: Tensor) -> Tensor:
    """(channels,) values in a shape that can be combined with x (batch, channels, ...)."""
    return values.view(1, -1, *[1] * (x.dim() - 2))
