"""A dense block's way through the kernels of `kernels.py`, forward and backward: matrices, tiles, launches.

Nothing here waits for the device or is chosen by timing, so that a training step can be recorded as a CUDA graph.
"""

from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """What one program multiplies at a time."""

    pixels: int
    channels: int
    warps: int
    stages: int
    parts: int = 1  # into which the nine taps are divided
    programs: int = 1  # that a processor has room for


# by the columns of nine taps, at most; of several, the first with a program for nine in ten processors, else the last
FORWARD = {
    torch.bfloat16: {
        128: [Tile(128, 32, 4, 3), Tile(64, 64, 4, 3)],
        256: [Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3, parts=2)],
    },
    torch.float32: {256: [Tile(64, 32, 8, 2)]},
}
BACKWARD = {
    torch.bfloat16: {128: [Tile(64, 64, 4, 3, programs=2)], 256: [Tile(32, 64, 4, 3, programs=2)]},
    torch.float32: {256: [Tile(32, 64, 8, 1)]},
}
SHARED_BYTES = 196_608  # that these tiles take of a processor, at most
WIDEST = 256  # columns of nine taps that a program has registers for
ALIGNED = 64  # columns: rows of matrices begin with a line of the cache
PIXELS, CHANNELS = 32, 64  # of programs that only move data
FEW_PIXELS = 16  # where many small programs are faster
PARTIALS, COMBINED = 512, 8  # tiles of pixels, and channels, whose statistics a program combines at a time
ELEMENTS = 512  # of vectors in a program


class Norm(NamedTuple):
    """What a BatchNorm does to its channels; all (channels,), or longer, and float32."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    rstd: Tensor


class Drop(NamedTuple):
    """What a `KeyedDropout` does. The backward pass reads the key again: it changes between steps, not within one."""

    key: Tensor
    layer: Tensor
    p: float

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernels are compiled for."""
        return {"THRESHOLD": round(self.p * 2**32), "SCALE": 1 / (1 - self.p)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a block: (images, inputs, side, side), and `layers` that add `growth` channels each."""

    images: int
    side: int
    inputs: int
    growth: int
    layers: int
    factor: int  # by which a side of the output is shorter

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
        return _tiles(self.channels, ALIGNED) * ALIGNED

    @property
    def unit(self) -> int:
        """Divides the channels of every layer, as far as it matters for alignment."""
        return gcd(self.inputs, self.growth, 16)

    @property
    def columns(self) -> int:
        """Of the matrix of nine taps, in a program."""
        return _power_of_two(9 * self.growth)

    @property
    def width(self) -> int:
        """Of the matrix of nine taps, in memory: aligned."""
        return _tiles(9 * self.growth, ALIGNED) * ALIGNED

    @property
    def tile(self) -> int:
        """Pixels of a program that moves a layer's columns: many programs, but not many more partial statistics."""
        return 32 if self.pixels <= 8192 else 64 if self.pixels <= 32768 else 128

    def channels_before(self, layer: int) -> int:
        """That a layer reads."""
        return self.inputs + layer * self.growth

    def images_of(self, matrix: Tensor) -> Tensor:
        """A matrix (pixels, channels) as (images, channels, side, side), channels last; of whatever side it has."""
        side = round((len(matrix) / self.images) ** 0.5)
        return matrix.view(self.images, side, side, -1).permute(0, 3, 1, 2)


class ForwardPass:
    """A block that is being computed: `buffer` (pixels, stride) fills up from the left.

    With `statistics` (3, channels), these receive mean, unbiased variance and 1 / deviation of each channel as it is
    written; without, there are none.
    """

    def __init__(self, x: Tensor, shape: Shape, statistics: Tensor | None, eps: float) -> None:
        self.shape, self.eps = shape, eps
        self.statistics = None if statistics is None else statistics.unbind()
        self.buffer = x.new_empty(shape.pixels, shape.stride)
        # float16 is finer than the bfloat16 that the sum of nine is rounded to, but ends at 65,504
        kind = torch.float16 if x.dtype == torch.bfloat16 else torch.float32
        self._tapped = x.new_empty(shape.pixels, shape.width, dtype=kind)
        self._arranged = x.new_empty(9 * shape.growth, shape.stride)
        self._linear = x.new_empty(2, shape.stride, dtype=torch.float32).unbind()  # a norm as factor and offset
        self._tiles = _tiles(shape.pixels, shape.tile)
        partial = max(shape.inputs, shape.growth) * self._tiles if statistics is not None else 1
        self._partial = x.new_empty(2, partial, dtype=torch.float32).unbind()
        self._product = _tile(FORWARD, shape, x)
        self._take_in(x)

    def _take_in(self, x: Tensor) -> None:
        from .kernels import take_in

        shape = self.shape
        take_in[(self._tiles, _tiles(shape.inputs, CHANNELS))](
            x, self.buffer, *self._partial, shape.pixels, shape.inputs // shape.unit, shape.stride,
            UNIT=shape.unit, STATISTICS=self.statistics is not None, PIXELS=shape.tile, CHANNELS=CHANNELS,
        )  # fmt: skip

    def layer(self, layer: int, norm: Norm, weight: Tensor, drop: Drop | None) -> None:
        """Norm, ReLU, convolution and dropout of one layer; `weight` (growth, channels, 3, 3) is channels last."""
        from .kernels import gather, matrix, taps

        shape, product = self.shape, self._product
        channels, k = shape.channels_before(layer), shape.growth
        self._prepare(norm, channels, weight)
        columns = shape.columns // product.parts
        taps[(_tiles(shape.pixels, product.pixels), _tiles(9 * k, columns))](
            matrix(self.buffer, channels, product.pixels, product.channels),
            matrix(self._arranged, channels, columns, product.channels), *self._linear,
            matrix(self._tapped, 9 * k, product.pixels, columns), channels, COLUMNS=columns, PRECISION=precision(),
            PIXELS=product.pixels, CHANNELS=product.channels, num_warps=product.warps, num_stages=product.stages,
        )  # fmt: skip
        drop = drop or Drop(self.buffer, self.buffer, 0.0)
        gather[(self._tiles,)](
            self._tapped, self.buffer, *self._partial, drop.key, drop.layer,
            shape.pixels, channels // shape.unit, shape.stride, SIDE=shape.side,
            UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=_power_of_two(k), WIDTH=shape.width, **drop.constants,
            STATISTICS=self.statistics is not None, PIXELS=shape.tile,
        )  # fmt: skip

    def _prepare(self, norm: Norm, channels: int, weight: Tensor | None = None) -> None:
        """All that depends on statistics: those of new channels, and what a layer's product needs."""
        from .kernels import prepare

        shape = self.shape
        mean, variance, rstd = (norm.mean, norm.mean, norm.rstd) if self.statistics is None else self.statistics
        new = 0 if self.statistics is None else shape.growth if channels > shape.inputs else channels
        programs = _tiles(new, COMBINED)
        if weight is not None:
            programs += _tiles(shape.stride, ELEMENTS) + _tiles(9 * shape.growth * channels, ELEMENTS)
        if programs:
            prepare[(programs,)](
                *self._partial, mean, variance, rstd, norm.scale, norm.shift,
                self._arranged if weight is None else weight, *self._linear, self._arranged,
                shape.pixels, self._tiles, channels - new, channels, shape.stride, self.eps,
                GROWTH=shape.growth, LAYER=weight is not None, PIXELS=shape.tile,
                TILES=min(_power_of_two(self._tiles), PARTIALS), CHANNELS=COMBINED, ELEMENTS=ELEMENTS,
            )  # fmt: skip

    def close(self, norm: Norm) -> Tensor:
        """The norm and ReLU that end the block, and pooling: (images, channels, side / factor, side / factor)."""
        from .kernels import close

        shape = self.shape
        self._prepare(norm, shape.channels)
        out = self.buffer.new_empty(shape.pixels // shape.factor**2, shape.channels)
        close[(_tiles(len(out), FEW_PIXELS), _tiles(shape.channels, CHANNELS))](
            self.buffer, *norm, out, len(out), shape.channels // shape.unit, shape.stride, shape.side, shape.factor,
            UNIT=shape.unit, PIXELS=FEW_PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return shape.images_of(out)


class BackwardPass:
    """A block whose gradients are being computed, from `gradient`, that of its output, and from its last layer on."""

    def __init__(self, gradient: Tensor, shape: Shape, buffer: Tensor) -> None:
        self.shape, self.buffer = shape, buffer
        self._gradient = gradient.to(buffer.dtype).contiguous(memory_format=torch.channels_last)
        self._arriving = torch.empty_like(buffer)
        self._means = buffer.new_empty(2, shape.channels, dtype=torch.float32).unbind()  # P mean(g) and P mean(g z)
        # zeros stay where a tap of a pixel leads out of the image
        self._views = buffer.new_zeros(shape.pixels, shape.width)

    def close(self, norm: Norm) -> list[Tensor]:
        """The gradients of the closing scale and shift."""
        from .kernels import close_backward

        shape = self.shape
        columns = _tiles(shape.channels, CHANNELS)
        each, ranges = self._ranges(PIXELS, 16, columns)
        sums = norm.scale.new_empty(ranges, 4, shape.channels)
        close_backward[(columns, ranges)](
            self.buffer, self._gradient, self._arriving, *norm, sums,
            shape.pixels, shape.channels // shape.unit, shape.stride, shape.side, shape.factor, each,
            UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return self._combine(norm, sums)

    def layer(self, layer: int, norm: Norm, weight: Tensor, drop: Drop | None) -> list[Tensor]:
        """The gradients of a layer's scale, shift and weight."""
        from .kernels import layer_backward, matrix, outgoing

        shape, k, product = self.shape, self.shape.growth, _tile(BACKWARD, self.shape, self.buffer)
        channels = shape.channels_before(layer)
        drop = drop or Drop(self.buffer, self.buffer, 0.0)
        outgoing[(_tiles(shape.pixels, FEW_PIXELS),)](
            self.buffer, self._arriving, norm.mean, norm.rstd, *self._means, self._views, drop.key, drop.layer,
            shape.pixels, channels // shape.unit, shape.stride, SIDE=shape.side,
            UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=_power_of_two(k), WIDTH=shape.width, **drop.constants,
            PIXELS=FEW_PIXELS,
        )  # fmt: skip
        columns = _tiles(channels, product.channels)
        each, ranges = self._ranges(product.pixels, product.programs, columns)
        weight_sums = norm.scale.new_empty(ranges, 9 * k, channels)
        sums = norm.scale.new_empty(ranges, 2, channels)
        layer_backward[(columns, ranges)](
            matrix(self.buffer, channels, product.pixels, product.channels),
            matrix(self._arriving, channels, product.pixels, product.channels),
            matrix(self._views, 9 * k, product.pixels, shape.columns),
            weight, *norm, weight_sums, sums, shape.pixels, channels // shape.unit, each,
            UNIT=shape.unit, GROWTH=k, COLUMNS=shape.columns, PRECISION=precision(),
            PIXELS=product.pixels, CHANNELS=product.channels, STAGES=product.stages, num_warps=product.warps,
        )  # fmt: skip
        return self._combine(norm, sums, weight, weight_sums)

    def _combine(
        self, norm: Norm, sums: Tensor, weight: Tensor | None = None, weight_sums: Tensor | None = None
    ) -> list[Tensor]:
        from .kernels import combine

        shape = self.shape
        found = [torch.empty_like(norm.scale), torch.empty_like(norm.shift)]
        if weight is not None:
            found.append(torch.empty_like(weight))
        rows, channels = 0 if weight is None else 9 * shape.growth, len(norm.scale)
        many = rows * channels >= ELEMENTS * processors(self.buffer.device)
        at_a_time, elements = (8, ELEMENTS) if many else (32, 64)
        combine[(_tiles(rows * channels, elements) + _tiles(channels, elements),)](
            sums if weight_sums is None else weight_sums, sums, norm.scale, found[-1], found[1], found[0],
            *self._means, channels // shape.unit, len(sums),
            UNIT=shape.unit, GROWTH=shape.growth, ROWS=rows, RANGES=at_a_time, ELEMENTS=elements,
        )  # fmt: skip
        return found

    def input(self, norm: Norm) -> Tensor:
        """The gradient of the block's input; of the norm, only the statistics are read."""
        from .kernels import incoming

        shape = self.shape
        out = self.buffer.new_empty(shape.pixels, shape.inputs)
        incoming[(_tiles(shape.pixels, PIXELS), _tiles(shape.inputs, CHANNELS))](
            self.buffer, self._arriving, norm.mean, norm.rstd, *self._means, out,
            shape.pixels, shape.inputs // shape.unit, shape.stride,
            UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return shape.images_of(out)

    def _ranges(self, tile: int, programs_each: int, columns: int) -> tuple[int, int]:
        """Pixels of a range, whole tiles, and the number of ranges: so many programs for each processor, or fewer."""
        ranges = max(1, programs_each * processors(self.buffer.device) // columns)
        each = _tiles(self.shape.pixels, ranges * tile) * tile
        return each, _tiles(self.shape.pixels, each)


def precision() -> str:
    """How float32 is multiplied on tensor cores; three products of TF32 numbers are as good as float32."""
    cudnn: Any = torch.backends.cudnn
    tf32 = cudnn.conv.fp32_precision == "tf32" if hasattr(cudnn, "conv") else cudnn.allow_tf32  # torch 2.9, and before
    return "tf32" if tf32 else "tf32x3"


@cache
def processors(device: torch.device) -> int:
    """Of a GPU; the interpreter has a few, so that its tests have several ranges."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _tile(tiles: dict[torch.dtype, dict[int, list[Tile]]], shape: Shape, x: Tensor) -> Tile:
    by_columns = tiles[x.dtype]
    for tile in by_columns[min(most for most in by_columns if shape.columns <= most)]:
        if _tiles(shape.pixels, tile.pixels) * tile.parts > 0.9 * processors(x.device):
            break
    return tile


def _tiles(length: int, tile: int) -> int:
    """How many it takes to cover a length."""
    return -(-length // tile)


def _power_of_two(n: int) -> int:
    """At least n, and 16."""
    return max(16, 1 << (n - 1).bit_length())
