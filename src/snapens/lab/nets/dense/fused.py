"""The dense blocks of a DenseNet by Triton's kernels instead of one module after the other, where that is possible.

The numbers are those of the plain modules up to rounding, and the state is the modules' own. A block keeps one matrix
of all its feature maps for its backward pass, and nothing else of that size.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..dropout import KeyedDropout
from .passes import FORWARD, SHARED_BYTES, WIDEST, BackwardPass, Drop, ForwardPass, Norm, Shape

if TYPE_CHECKING:
    from .densenet import DenseNet, Layer


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
        parameters += [norm.weight.contiguous(), norm.bias.contiguous()] + ([] if weight is None else [weight])
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
        Norm(norm.weight.contiguous(), norm.bias.contiguous(), _tracked(norm.running_mean).contiguous(), rstd)
        for norm, rstd in zip(norms, rstds, strict=True)
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


def possible(network: "DenseNet", images: Tensor) -> bool:
    """Whether the kernels can stand in for the modules of a DenseNet, in the state that these are in."""
    if torch.compiler.is_compiling() or type(images) not in (Tensor, nn.Parameter) or _is_watched():
        return False
    if not _can_run(images.device) or _precision(images) not in FORWARD:
        return False
    if images.dim() != 4 or images.shape[2] != images.shape[3] or len(images) < (2 if network.training else 1):
        return False
    if not network.training and torch.is_grad_enabled() and _requires_grad(network, images):
        return False  # in eval mode there is no backward pass
    return _is_as_built(network)


def _requires_grad(network: nn.Module, images: Tensor) -> bool:
    return images.requires_grad or any(parameter.requires_grad for parameter in network.parameters())


def _is_watched() -> bool:
    """Whether somebody asks for more than numbers: a trace, derivatives of another kind, or each operation."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
    )


def _is_as_built(network: "DenseNet") -> bool:
    """Whether all that the kernels take for granted is still as `densenet` made it."""
    from .densenet import Layer, Transition

    if [*network._modules] != ["stem", "blocks", "head"]:
        return False
    if type(network.blocks) is not nn.Sequential or type(network.head) is not nn.Sequential:
        return False
    head = [*network.head]
    if [type(module) for module in head] != [nn.BatchNorm2d, nn.ReLU, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]:
        return False
    if any(map(_is_hooked, (network.blocks, network.head, *head))) or not _keeps_squares(network.stem):
        return False
    width, norms, growths, layers = network.stem.out_channels, [], set(), 0
    for block in network.blocks:
        if not (type(block) is Layer or type(block) is Transition):
            return False
        norm, conv, dropout = block.norm, block.conv, block.dropout
        if any(map(_is_hooked, (block, norm, conv, dropout))):
            return False
        norms.append((norm, width))
        if type(block) is Layer:
            if not (_is_convolution(conv, 3, width) and _can_drop(dropout, network.training)):
                return False
            growths.add(conv.out_channels)
            width += conv.out_channels
            layers += 1
        else:
            if not (layers and _is_convolution(conv, 1, width) and type(dropout) in (nn.Dropout, KeyedDropout)):
                return False
            width, layers = conv.out_channels, 0
    if not layers or len(growths) != 1 or 9 * max(growths) > WIDEST or head[2].output_size not in (1, (1, 1)):
        return False
    norms.append((head[0], width))
    if not all(_is_tracked(norm, width) for norm, width in norms):
        return False
    return {(norm.momentum, norm.eps, norm.training) for norm, _ in norms} == {
        (head[0].momentum, head[0].eps, network.training)
    }


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling it does more than `forward`."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return any(hooks)


def _keeps_squares(stem: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(stem) is not nn.Conv2d:
        return False
    return all(len({*pair}) == 1 for pair in (stem.kernel_size, stem.stride, stem.padding, stem.dilation))


def _is_convolution(conv: nn.Module, side: int, inputs: int) -> bool:
    padding = side // 2
    return (
        type(conv) is nn.Conv2d
        and (conv.kernel_size, conv.padding, conv.padding_mode) == ((side, side), (padding, padding), "zeros")
        and (conv.stride, conv.dilation, conv.groups, conv.bias) == ((1, 1), (1, 1), 1, None)
        and conv.in_channels == inputs
    )


def _can_drop(dropout: nn.Module, training: bool) -> bool:
    """An `nn.Dropout`'s masks are known to no kernel."""
    if dropout.training != training:
        return False
    return type(dropout) is KeyedDropout or (type(dropout) is nn.Dropout and not (training and dropout.p))


def _is_tracked(norm: nn.Module, width: int) -> bool:
    if type(norm) is not nn.BatchNorm2d or not norm.track_running_stats or norm.momentum is None:
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return norm.num_features == width and all(one is not None and one.dtype == torch.float32 for one in state)


@cache
def _can_run(device: torch.device) -> bool:
    """From the H100 on, given shared memory enough for the tiles, and with Triton 3.5 or later."""
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
