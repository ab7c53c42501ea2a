"""The dense blocks of a DenseNet by Triton's kernels instead of one module after the other, where that is possible.

The numbers are those of the plain modules up to rounding, and the state is the modules' own. A block keeps one matrix
of all its feature maps for its backward pass, and nothing else of that size.
"""

import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .dense_passes import FORWARD, SHARED_BYTES, WIDEST, BackwardPass, Drop, ForwardPass, Norm, Shape
from .dropout import KeyedDropout

if TYPE_CHECKING:
    from .densenet import Layer


def dense_block(x: Tensor, layers: "Sequence[Layer]", closing: nn.BatchNorm2d, factor: int) -> Tensor:
    """The layers, the closing norm, ReLU, and the mean of factor x factor pixels: what the modules would do to x."""
    dtype = _precision(x)
    norms = [*(layer.norm for layer in layers), closing]
    weights = [_channels_last(layer.conv.weight.to(dtype)) for layer in layers]
    shape = Shape(x.shape[0], x.shape[2], x.shape[1], layers[0].conv.out_channels, len(layers), factor)
    x = _channels_last(x.to(dtype))
    if not closing.training:
        return _evaluated(x, shape, norms, weights)
    parameters: list[Tensor] = []
    for norm, weight in zip(norms, [*weights, None], strict=True):
        parameters += [norm.weight, norm.bias] if weight is None else [norm.weight, norm.bias, weight]
    drops = [_drop(layer.dropout) for layer in layers]
    out, statistics = DenseBlock.apply(x, shape, closing.eps, drops, *parameters)  # type: ignore[no-untyped-call]
    _follow(norms, statistics)
    return out  # type: ignore[no-any-return]


class DenseBlock(torch.autograd.Function):
    """Layers, the norm and ReLU that close their block, and pooling: (images, channels, side, side), channels last.

    Parameters are scale, shift and weight of each layer, then scale and shift of the closing norm. The second output,
    (3, channels), is for the running statistics: mean, unbiased variance and 1 / deviation of every channel.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, eps: float, drops: Sequence[Drop | None], *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the block, and keep the buffer."""
        statistics = torch.empty(3, shape.channels, device=x.device, dtype=torch.float32)
        *norms, closing = _norms(parameters, statistics)
        with _device_of(x):
            block = ForwardPass(x, shape, statistics, eps)
            for layer, (norm, weight, drop) in enumerate(zip(norms, parameters[2::3], drops, strict=True)):
                block.layer(layer, norm, weight, drop)
            out = block.close(closing)
        # the keys, so that autograd refuses a backward pass after they have changed
        keys = [tensor for drop in drops if drop for tensor in (drop.key, drop.layer)]
        ctx.save_for_backward(block.buffer, statistics, *keys, *parameters)
        ctx.shape, ctx.drops, ctx.keys = shape, drops, len(keys)
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return out, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """The gradients of x and of the parameters."""
        buffer, statistics, *rest = ctx.saved_tensors
        parameters = rest[ctx.keys :]
        if gradient is None:  # nothing depends on the output
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
    """The block by the running statistics, without dropout."""
    variances = torch.cat([_tracked(norm.running_var) for norm in norms])  # all at once: few launches
    rstds = torch.split(torch.rsqrt(variances + norms[-1].eps), [norm.num_features for norm in norms])
    *inner, closing = [
        Norm(norm.weight, norm.bias, _tracked(norm.running_mean), rstd) for norm, rstd in zip(norms, rstds, strict=True)
    ]
    with _device_of(x):
        block = ForwardPass(x, shape, None, norms[-1].eps)
        for layer, (norm, weight) in enumerate(zip(inner, weights, strict=True)):
            block.layer(layer, norm, weight, None)
        return block.close(closing)


@torch.no_grad()
def _follow(norms: Sequence[nn.BatchNorm2d], statistics: Tensor) -> None:
    """Move the running statistics of all norms of a block towards those of the batch."""
    momentum = norms[-1].momentum
    assert momentum is not None
    running = [_tracked(norm.running_mean) for norm in norms] + [_tracked(norm.running_var) for norm in norms]
    batch = [statistics[row, : norm.num_features] for row in (0, 1) for norm in norms]
    torch._foreach_lerp_(running, batch, momentum)
    if counts := [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]:
        torch._foreach_add_(counts, 1)


def possible(network: nn.Module, images: Tensor) -> bool:
    """Whether the kernels can stand in for the modules of a DenseNet, in the state that these are in."""
    if torch.compiler.is_compiling() or not _can_run(images.device):
        return False
    if images.dim() != 4 or images.shape[2] != images.shape[3] or _precision(images) not in FORWARD:
        return False
    training = network.training
    if torch._C._are_functorch_transforms_active() or len(images) < (2 if training else 1):
        return False
    if not training and torch.is_grad_enabled():  # in eval mode there is no backward pass
        return False
    norms = {(norm.momentum, norm.eps) for norm in network.modules() if isinstance(norm, nn.BatchNorm2d)}
    return len(norms) == 1 and all(m.training == training and _can_stand_in(m) for m in network.modules())


def _can_stand_in(module: nn.Module) -> bool:
    if isinstance(module, nn.BatchNorm2d):
        tracked = module.running_mean is not None and module.running_mean.dtype == torch.float32
        return module.affine and module.weight.dtype == torch.float32 and tracked and module.momentum is not None
    if isinstance(module, nn.Conv2d):
        return module.kernel_size != (3, 3) or 9 * module.out_channels <= WIDEST
    return not (isinstance(module, nn.Dropout) and module.training and module.p)  # whose masks no kernel knows


@cache
def _can_run(device: torch.device) -> bool:
    """From the H100 on, given shared memory enough for the tiles, or in Triton's interpreter; from Triton 3.4 on."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        shared = getattr(properties, "shared_memory_per_block_optin", 0)
        if torch.version.hip or properties.major < 9 or shared < SHARED_BYTES:
            return False
    elif os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        return importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    except ModuleNotFoundError:
        return False


def _precision(x: Tensor) -> torch.dtype:
    """The type in which convolutions are computed now."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _drop(dropout: nn.Module) -> Drop | None:
    return Drop(dropout.key, dropout.layer, dropout.p) if isinstance(dropout, KeyedDropout) and dropout.p else None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _tracked(statistics: Tensor | None) -> Tensor:
    assert statistics is not None
    return statistics


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
