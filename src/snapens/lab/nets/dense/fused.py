"""The dense blocks of a DenseNet, computed by Triton kernels instead of by one module after the other.

The results equal those of the plain modules up to rounding, and all weights and buffers stay in the modules. For its
backward pass a block keeps one matrix with all its feature maps, and nothing else of that size.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..dropout import KeyedDropout
from .passes import BackwardPass, ForwardPass
from .shapes import FORWARD, SHARED_BYTES, WIDEST, Drop, Norm, Shape

if TYPE_CHECKING:
    from .densenet import DenseNet, Layer


def dense_block(x: Tensor, layers: "Sequence[Layer]", closing: nn.BatchNorm2d, factor: int) -> Tensor:
    """Apply the layers, the closing norm, ReLU, and the mean of each factor x factor pixels, as the modules would."""
    dtype = _precision(x)
    norms = [*(layer.norm for layer in layers), closing]
    weights = [_channels_last(layer.conv.weight.to(dtype)) for layer in layers]
    shape = Shape(x.shape[0], x.shape[2], x.shape[1], layers[0].conv.out_channels, len(layers), factor)
    x = _channels_last(x.to(dtype))
    if not closing.training:
        return _evaluated(x, shape, norms, weights)
    parameters: list[Tensor] = []
    for norm, weight in zip(norms, [*weights, None], strict=True):
        parameters += [norm.weight.contiguous(), norm.bias.contiguous()] + ([] if weight is None else [weight])
    drops = [_drop(layer.dropout) for layer in layers]
    out, statistics = DenseBlock.apply(x, shape, closing.eps, drops, *parameters)  # type: ignore[no-untyped-call]
    _update_running(norms, statistics)
    return out  # type: ignore[no-any-return]


class DenseBlock(torch.autograd.Function):
    """A dense block, its closing norm and ReLU, and pooling: (images, channels, side, side), channels last.

    The parameters are the scale, shift and weight of each layer, then the scale and shift of the closing norm. The
    second output (3, channels) holds the mean, the unbiased variance and 1 / deviation of every channel.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, eps: float, drops: Sequence[Drop | None], *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the block, and keep its buffer for the backward pass."""
        statistics = torch.empty(3, shape.channels, device=x.device, dtype=torch.float32)
        *norms, closing = _norms(parameters, statistics)
        with _device_of(x):
            block = ForwardPass(x, shape, statistics, eps)
            for layer, (norm, weight, drop) in enumerate(zip(norms, parameters[2::3], drops, strict=True)):
                block.layer(layer, norm, weight, drop)
            out = block.close(closing)
        # the keys are saved so that autograd rejects a backward pass after they have changed
        keys = [tensor for drop in drops if drop for tensor in (drop.key, drop.layer)]
        ctx.save_for_backward(block.buffer, statistics, *keys, *parameters)
        ctx.shape, ctx.drops, ctx.keys = shape, drops, len(keys)
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return out, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of the parameters."""
        buffer, statistics, *rest = ctx.saved_tensors
        parameters = rest[ctx.keys :]
        if gradient is None:  # the loss does not depend on the output
            return (None,) * (4 + len(parameters))
        *norms, closing = _norms(parameters, statistics)
        with _device_of(buffer):
            block = BackwardPass(gradient, ctx.shape, buffer)
            found = block.close(closing)
            for layer, weight in reversed([*enumerate(parameters[2::3])]):
                found = block.layer(layer, norms[layer], weight, ctx.drops[layer]) + found
            to_x = block.input(closing) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, *found


def _norms(parameters: Sequence[Tensor], statistics: Tensor) -> list[Norm]:
    mean, _, rstd = statistics
    return [Norm(scale, shift, mean, rstd) for scale, shift in zip(parameters[::3], parameters[1::3], strict=True)]


def _evaluated(x: Tensor, shape: Shape, norms: Sequence[nn.BatchNorm2d], weights: Sequence[Tensor]) -> Tensor:
    """Compute the block with the running statistics, without dropout."""
    variances = torch.cat([_present(norm.running_var) for norm in norms])  # all norms at once, to launch few kernels
    rstds = torch.split(torch.rsqrt(variances + norms[-1].eps), [norm.num_features for norm in norms])
    *inner, closing = [
        Norm(norm.weight.contiguous(), norm.bias.contiguous(), _present(norm.running_mean).contiguous(), rstd)
        for norm, rstd in zip(norms, rstds, strict=True)
    ]
    with _device_of(x):
        block = ForwardPass(x, shape, None, norms[-1].eps)
        for layer, (norm, weight) in enumerate(zip(inner, weights, strict=True)):
            block.layer(layer, norm, weight, None)
        return block.close(closing)


@torch.no_grad()
def _update_running(norms: Sequence[nn.BatchNorm2d], statistics: Tensor) -> None:
    """Update the running statistics of all norms of a block with those of the batch."""
    momentum = norms[-1].momentum
    assert momentum is not None
    running = [_present(norm.running_mean) for norm in norms] + [_present(norm.running_var) for norm in norms]
    batch = [statistics[row, : norm.num_features] for row in (0, 1) for norm in norms]
    torch._foreach_lerp_(running, batch, momentum)
    if counts := [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]:
        torch._foreach_add_(counts, 1)


def supports(layers: "Iterable[Layer]") -> bool:
    """Whether the kernels can compute these layers: the growth rate is at most 28, and dropout, if any, is keyed."""
    return all(
        9 * layer.conv.out_channels <= WIDEST and (isinstance(layer.dropout, KeyedDropout) or layer.dropout.p == 0)
        for layer in layers
    )


def possible(network: "DenseNet", images: Tensor) -> bool:
    """Whether the kernels can compute this call of a network that they support."""
    if torch.compiler.is_compiling() or type(images) not in (Tensor, nn.Parameter) or _is_transformed():
        return False
    closing = network.head[0]
    if not _can_run(images.device) or _precision(images) not in FORWARD or closing.weight.dtype != torch.float32:
        return False
    if images.dim() != 4 or images.shape[2] != images.shape[3] or len(images) < (2 if network.training else 1):
        return False
    if closing.training != network.training:  # only the norms were switched, as when their statistics are re-estimated
        return False
    # in eval mode the kernels have no backward pass
    return network.training or not (torch.is_grad_enabled() and _requires_grad(network, images))


def _requires_grad(network: nn.Module, images: Tensor) -> bool:
    return images.requires_grad or any(parameter.requires_grad for parameter in network.parameters())


def _is_transformed() -> bool:
    """Whether a trace, torch.func, forward-mode differentiation or a dispatch mode needs to see each operation."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


@cache
def _can_run(device: torch.device) -> bool:
    """Whether this is an H100 or later, with enough shared memory for the tiles and with Triton 3.5 or later."""
    if device.type != "cuda" or torch.version.hip:
        return False
    properties = torch.cuda.get_device_properties(device)
    if properties.major < 9 or getattr(properties, "shared_memory_per_block_optin", 0) < SHARED_BYTES:
        return False
    try:
        major, minor = version("triton").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (3, 5)


def _precision(x: Tensor) -> torch.dtype:
    """The dtype in which convolutions are computed here: that of autocast, or that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _drop(dropout: nn.Module) -> Drop | None:
    return Drop(dropout.key, dropout.layer, dropout.p) if isinstance(dropout, KeyedDropout) and dropout.p else None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _present(statistics: Tensor | None) -> Tensor:
    assert statistics is not None
    return statistics


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
