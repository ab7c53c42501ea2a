"""The dense blocks of a DenseNet by the kernels of `dense_kernels`: one function for a block, forward and backward.

The numbers are those of the plain modules up to rounding, the state is the modules' own. A block keeps for its backward
pass one matrix of all its feature maps, and nothing else of that size.
"""

import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .dropout import KeyedDropout

if TYPE_CHECKING:
    from .densenet import Layer


class Tile(NamedTuple):
    """What one program multiplies; chosen by hand, never by timing, so that any step can be recorded."""

    pixels: int
    channels: int
    warps: int
    stages: int
    parts: int = 1  # into which the nine taps are divided


# the first with a program for every processor, else the last
FORWARD = {
    torch.bfloat16: [Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3, parts=2)],
    torch.float32: [Tile(64, 32, 8, 2)],
}
BACKWARD = {torch.bfloat16: Tile(64, 64, 8, 3), torch.float32: Tile(64, 32, 8, 1)}
WIDEST = 256  # columns of nine taps that a program has registers for
PIXELS, CHANNELS = 32, 64  # of programs that only move data
PARTIALS_AT_ONCE = 512  # tiles of pixels whose statistics one program holds
RANGES_AT_ONCE, ELEMENTS = 8, 512  # of gradients that one program adds up


class Norm(NamedTuple):
    """What a BatchNorm does to its channels; all (channels,), float32."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    rstd: Tensor


class Drop(NamedTuple):
    """What a `KeyedDropout` does; without one nothing is read of the tensors."""

    key: Tensor
    layer: Tensor
    p: float

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        return {"THRESHOLD": round(self.p * 2**32), "SCALE": 1 / (1 - self.p)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a block: (images, inputs, side, side), with `layers` more layers of `growth` channels."""

    images: int
    side: int
    inputs: int
    growth: int
    layers: int
    factor: int  # a side of the output is this much shorter

    @property
    def pixels(self) -> int:
        """Rows of the buffer."""
        return self.images * self.side**2

    @property
    def channels(self) -> int:
        """Columns of the buffer."""
        return self.inputs + self.layers * self.growth

    @property
    def stride(self) -> int:
        """From one row of the buffer to the next: aligned."""
        return -(-self.channels // 16) * 16

    @property
    def unit(self) -> int:
        """Divides the channels of every layer, as far as it matters for alignment."""
        return gcd(self.inputs, self.growth, 16)

    @property
    def width(self) -> int:
        """Columns of the matrix of nine taps, aligned."""
        return -(-9 * self.growth // 16) * 16

    def channels_before(self, layer: int) -> int:
        """That a layer reads."""
        return self.inputs + layer * self.growth


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
        statistics = torch.empty(3, shape.channels, device=x.device)
        buffer, out = forward(x, shape, _norms(parameters, statistics), parameters[2::3], drops, statistics, eps)
        ctx.save_for_backward(buffer, statistics, *parameters)
        ctx.shape, ctx.drops = shape, drops
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return out, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """The gradients of x and of the parameters."""
        buffer, statistics, *parameters = ctx.saved_tensors
        norms = _norms(parameters, statistics)
        to_x, found = backward(gradient, ctx.shape, buffer, norms, parameters[2::3], ctx.drops, ctx.needs_input_grad[0])
        return to_x, None, None, None, *found


def _norms(parameters: Sequence[Tensor], statistics: Tensor) -> list[Norm]:
    mean, _, rstd = statistics
    return [Norm(scale, shift, mean, rstd) for scale, shift in zip(parameters[::3], parameters[1::3], strict=True)]


def forward(
    x: Tensor,
    shape: Shape,
    norms: Sequence[Norm],
    weights: Sequence[Tensor],
    drops: Sequence[Drop | None],
    statistics: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The buffer (pixels, stride) and the block's output; batch statistics go into `statistics`, if there are any."""
    from . import dense_kernels as kernels

    k, pixels, stride = shape.growth, shape.pixels, shape.stride
    product = _product(x, pixels)
    columns = _power_of_two(9 * k) // product.parts
    buffer = x.new_empty(pixels, stride)
    tapped = x.new_empty(pixels, shape.width, dtype=torch.float16 if x.dtype == torch.bfloat16 else torch.float32)
    tile = _tile(pixels)
    count = -(-pixels // tile)
    keep = statistics is not None
    partial = x.new_empty(2, max(shape.inputs, k), count, dtype=torch.float32) if keep else norms[0].mean.expand(2, -1)

    def combine_statistics(first: int, channels: int) -> None:
        if statistics is not None:
            kernels.combine_statistics[(-(-channels // 8),)](
                *partial, *statistics, pixels, count, first, channels, eps,
                PIXELS=tile, TILES=min(_power_of_two(count), PARTIALS_AT_ONCE), CHANNELS=8, num_warps=4,
            )  # fmt: skip

    with _device_of(x):
        kernels.take_in[(count, -(-shape.inputs // CHANNELS))](
            x, buffer, *partial, pixels, shape.inputs // shape.unit, stride,
            UNIT=shape.unit, STATISTICS=keep, PIXELS=tile, CHANNELS=CHANNELS,
        )  # fmt: skip
        combine_statistics(0, shape.inputs)
        for layer in range(shape.layers):
            channels = shape.channels_before(layer)
            kernels.taps[(-(-pixels // product.pixels), -(-9 * k // columns))](
                buffer, weights[layer], *norms[layer], tapped, pixels, channels // shape.unit, stride,
                UNIT=shape.unit, GROWTH=k, COLUMNS=columns, WIDTH=shape.width, PRECISION=_precision(),
                PIXELS=product.pixels, CHANNELS=product.channels, num_warps=product.warps, num_stages=product.stages,
            )  # fmt: skip
            drop = drops[layer] or Drop(buffer, buffer, 0.0)
            kernels.gather[(count,)](
                tapped, buffer, *partial, drop.key, drop.layer, pixels, channels // shape.unit, stride, shape.side,
                UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=_power_of_two(k), WIDTH=shape.width, **drop.constants,
                STATISTICS=keep, PIXELS=tile,
            )  # fmt: skip
            combine_statistics(channels, k)
        out_side = shape.side // shape.factor
        outputs = shape.images * out_side**2
        out = x.new_empty(outputs, shape.channels)
        kernels.close[(-(-outputs // 16), -(-shape.channels // CHANNELS))](
            buffer, *norms[-1], out, outputs, shape.channels // shape.unit, stride, shape.side, shape.factor,
            UNIT=shape.unit, PIXELS=16, CHANNELS=CHANNELS,
        )  # fmt: skip
    return buffer, out.view(shape.images, out_side, out_side, shape.channels).permute(0, 3, 1, 2)


def backward(
    gradient: Tensor,
    shape: Shape,
    buffer: Tensor,
    norms: Sequence[Norm],
    weights: Sequence[Tensor],
    drops: Sequence[Drop | None],
    needs_input: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """The gradients of the input and of scale, shift and weight of each layer, then of the closing scale and shift."""
    from . import dense_kernels as kernels

    product, k, pixels, stride = BACKWARD[buffer.dtype], shape.growth, shape.pixels, shape.stride
    gradient = gradient.to(buffer.dtype).contiguous(memory_format=torch.channels_last)
    arriving = torch.empty_like(buffer)
    means = norms[-1].scale.new_empty(2, shape.channels)  # P mean(g) and P mean(g z)
    programs = _processors(buffer.device)
    found: list[Tensor] = []

    def combine(norm: Norm, sums: Tensor, weight: Tensor | None = None, weight_sums: Tensor | None = None) -> None:
        of_norm = torch.empty_like(norm.shift), torch.empty_like(norm.scale)
        of_weight = None if weight is None else torch.empty_like(weight)
        rows, channels = 0 if weight is None else 9 * k, len(norm.scale)
        kernels.combine[(-(-rows * channels // ELEMENTS) - (-channels // ELEMENTS),)](
            sums if weight_sums is None else weight_sums, sums, norm.scale, sums if of_weight is None else of_weight,
            *of_norm, *means, channels // shape.unit, len(sums),
            UNIT=shape.unit, GROWTH=k, ROWS=rows, RANGES=RANGES_AT_ONCE, ELEMENTS=ELEMENTS, num_warps=4,
        )  # fmt: skip
        found[:0] = [*of_norm[::-1], *([] if of_weight is None else [of_weight])]

    with _device_of(buffer):
        columns = -(-shape.channels // CHANNELS)
        each, ranges = _ranges(pixels, PIXELS, 4 * programs // columns)
        sums = means.new_empty(ranges, 2, shape.channels)
        kernels.close_backward[(columns, ranges)](
            buffer, gradient, arriving, *norms[-1], sums, pixels, shape.channels // shape.unit, stride, shape.side,
            shape.factor, each, UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        combine(norms[-1], sums)
        rimmed = buffer.new_zeros(shape.images * (shape.side + 2) ** 2, k)
        tile = _tile(pixels)
        for layer in reversed(range(shape.layers)):
            channels = shape.channels_before(layer)
            drop = drops[layer] or Drop(buffer, buffer, 0.0)
            kernels.outgoing[(-(-pixels // tile),)](
                buffer, arriving, *norms[-1][2:], *means, rimmed, drop.key, drop.layer, pixels, channels // shape.unit,
                stride, shape.side, UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=_power_of_two(k), **drop.constants,
                PIXELS=tile,
            )  # fmt: skip
            columns = -(-channels // product.channels)
            each, ranges = _ranges(pixels, product.pixels, programs // columns)
            weight_sums = means.new_empty(ranges, 9 * k, channels)
            sums = means.new_empty(ranges, 2, channels)
            kernels.layer_backward[(columns, ranges)](
                buffer, arriving, rimmed, weights[layer], *norms[layer], weight_sums, sums,
                pixels, channels // shape.unit, stride, shape.side, each,
                UNIT=shape.unit, GROWTH=k, COLUMNS=_power_of_two(9 * k), VECTOR=gcd(k, 8),
                PRECISION=_precision(), PIXELS=product.pixels, CHANNELS=product.channels,
                STAGES=product.stages, num_warps=product.warps,
            )  # fmt: skip
            combine(norms[layer], sums, weights[layer], weight_sums)
        if not needs_input:
            return None, found
        out = buffer.new_empty(pixels, shape.inputs)
        kernels.incoming[(-(-pixels // PIXELS), -(-shape.inputs // CHANNELS))](
            buffer, arriving, *norms[-1][2:], *means, out, pixels, shape.inputs // shape.unit, stride,
            UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
    return out.view(shape.images, shape.side, shape.side, shape.inputs).permute(0, 3, 1, 2), found


def dense_block(x: Tensor, layers: "Sequence[Layer]", closing: nn.BatchNorm2d, factor: int) -> Tensor:
    """The layers, the closing norm, ReLU, and the mean of factor x factor pixels: what the modules would do to x."""
    training, dtype = closing.training, precision(x)
    norms = [*(layer.norm for layer in layers), closing]
    weights = [_last(layer.conv.weight.to(dtype)) for layer in layers]
    shape = Shape(x.shape[0], x.shape[2], x.shape[1], layers[0].conv.out_channels, len(layers), factor)
    x = _last(x.to(dtype))
    if not training:
        # one launch for all norms, not one each
        deviations = torch.rsqrt(torch.cat([_of(norm.running_var) for norm in norms]) + closing.eps)
        rstds = torch.split(deviations, [norm.num_features for norm in norms])
        running = [
            Norm(norm.weight, norm.bias, _of(norm.running_mean), rstd) for norm, rstd in zip(norms, rstds, strict=True)
        ]
        return forward(x, shape, running, weights, [None] * len(layers))[1]
    drops = [_drop(layer.dropout) for layer in layers]
    parameters = [
        tensor
        for norm, weight in zip(norms, [*weights, None], strict=True)
        for tensor in (norm.weight, norm.bias, weight)
        if tensor is not None
    ]
    out, statistics = DenseBlock.apply(x, shape, closing.eps, drops, *parameters)  # type: ignore[no-untyped-call]
    _follow(norms, statistics)
    return out  # type: ignore[no-any-return]


@torch.no_grad()
def _follow(norms: Sequence[nn.BatchNorm2d], statistics: Tensor) -> None:
    """Move the running statistics of all norms of a block towards those of the batch."""
    momentum = norms[-1].momentum
    assert momentum is not None
    running = [_of(norm.running_mean) for norm in norms] + [_of(norm.running_var) for norm in norms]
    batch = [statistics[row, : norm.num_features] for row in (0, 1) for norm in norms]
    torch._foreach_lerp_(running, batch, momentum)
    if counts := [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]:
        torch._foreach_add_(counts, 1)


def possible(network: nn.Module, images: Tensor) -> bool:
    """Whether the kernels can stand in for the modules of a DenseNet, in the state that these are in."""
    if not (images.is_cuda or _interpreted()) or torch.compiler.is_compiling() or not _has_triton():
        return False
    if images.dim() != 4 or images.shape[2] != images.shape[3] or precision(images) not in FORWARD:
        return False
    training = network.training
    if len(images) < 2 if training else torch.is_grad_enabled():  # in eval mode there is no backward pass
        return False
    norms = {(norm.momentum, norm.eps) for norm in network.modules() if isinstance(norm, nn.BatchNorm2d)}
    return len(norms) == 1 and all(m.training == training and _can_stand_in(m) for m in network.modules())


def _can_stand_in(module: nn.Module) -> bool:
    if isinstance(module, nn.BatchNorm2d):
        return module.affine and module.running_mean is not None and module.momentum is not None
    if isinstance(module, nn.Conv2d):
        return module.kernel_size != (3, 3) or 9 * module.out_channels <= WIDEST
    return not (isinstance(module, nn.Dropout) and module.training and module.p)  # whose masks no kernel knows


def precision(x: Tensor) -> torch.dtype:
    """The type in which convolutions are computed now."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _drop(dropout: nn.Module) -> Drop | None:
    return Drop(dropout.key, dropout.layer, dropout.p) if isinstance(dropout, KeyedDropout) and dropout.p else None


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _of(buffer: Tensor | None) -> Tensor:
    assert buffer is not None
    return buffer


def _tile(pixels: int) -> int:
    """Pixels of a program that moves a layer's few columns: many programs, but not many more partial statistics."""
    return 32 if pixels <= 8192 else 64 if pixels <= 32768 else 128


def _product(x: Tensor, pixels: int) -> Tile:
    for tile in FORWARD[x.dtype]:
        if -(-pixels // tile.pixels) * tile.parts > 0.9 * _processors(x.device):
            break
    return tile


def _ranges(pixels: int, tile: int, ranges: int) -> tuple[int, int]:
    """Pixels of a range, whole tiles, and the number of ranges, about as many as asked for."""
    each = -(-pixels // (max(ranges, 1) * tile)) * tile
    return each, -(-pixels // each)


def _precision() -> str:
    """How float32 is multiplied on tensor cores; three products of TF32 numbers are as good as float32."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
