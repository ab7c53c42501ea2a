"""The forward and the backward pass of a dense block: the matrices and the launches of the kernels.

Nothing here waits for the device, and nothing is chosen by timing, so a CUDA graph can record a training step.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from .shapes import (
    BACKWARD,
    CHANNELS,
    COMBINED,
    ELEMENTS,
    FEW_PIXELS,
    FORWARD,
    PARTIALS,
    PIXELS,
    Drop,
    Norm,
    Shape,
    Tile,
    power_of_two,
    tiles_in,
)


class ForwardPass:
    """The forward pass of a block; `buffer` (pixels, stride) is filled from the left.

    `statistics` (3, channels), if given, receives the mean, the unbiased variance and 1 / deviation of each channel
    when the channel is written.
    """

    def __init__(self, x: Tensor, shape: Shape, statistics: Tensor | None, eps: float) -> None:
        self.shape, self.eps = shape, eps
        self.statistics = None if statistics is None else statistics.unbind()
        self.buffer = x.new_empty(shape.pixels, shape.stride)
        # float16 is finer than bfloat16, to which the sum of nine is rounded; its largest value is 65,504
        kind = torch.float16 if x.dtype == torch.bfloat16 else torch.float32
        self._tapped = x.new_empty(shape.pixels, shape.width, dtype=kind)
        self._arranged = x.new_empty(9 * shape.growth, shape.stride)
        self._linear = x.new_empty(2, shape.stride, dtype=torch.float32).unbind()  # a norm, as factor and offset
        self._tiles = tiles_in(shape.pixels, shape.tile)
        partial = max(shape.inputs, shape.growth) * self._tiles if statistics is not None else 1
        self._partial = x.new_empty(2, partial, dtype=torch.float32).unbind()
        self._product = _tile(FORWARD, shape, x)
        self._take_in(x)

    def _take_in(self, x: Tensor) -> None:
        from .kernels import take_in

        shape = self.shape
        take_in[(self._tiles, tiles_in(shape.inputs, CHANNELS))](
            x, self.buffer, *self._partial, shape.pixels, shape.inputs // shape.unit, shape.stride,
            UNIT=shape.unit, STATISTICS=self.statistics is not None, PIXELS=shape.tile, CHANNELS=CHANNELS,
        )  # fmt: skip

    def layer(self, layer: int, norm: Norm, weight: Tensor, drop: Drop | None) -> None:
        """Apply norm, ReLU, convolution and dropout of a layer; `weight` (growth, channels, 3, 3) is channels last."""
        from .kernels import gather, matrix, taps

        shape, product = self.shape, self._product
        channels, k = shape.channels_before(layer), shape.growth
        self._prepare(norm, channels, weight)
        columns = shape.columns // product.parts
        taps[(tiles_in(shape.pixels, product.pixels), tiles_in(9 * k, columns))](
            matrix(self.buffer, channels, product.pixels, product.channels),
            matrix(self._arranged, channels, columns, product.channels), *self._linear,
            matrix(self._tapped, 9 * k, product.pixels, columns), channels, COLUMNS=columns, PRECISION=precision(),
            PIXELS=product.pixels, CHANNELS=product.channels, num_warps=product.warps, num_stages=product.stages,
        )  # fmt: skip
        drop = drop or Drop(self.buffer, self.buffer, 0.0)
        gather[(self._tiles,)](
            self._tapped, self.buffer, *self._partial, drop.key, drop.layer,
            shape.pixels, channels // shape.unit, shape.stride, SIDE=shape.side,
            UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=power_of_two(k), WIDTH=shape.width, **drop.constants,
            STATISTICS=self.statistics is not None, PIXELS=shape.tile,
        )  # fmt: skip

    def _prepare(self, norm: Norm, channels: int, weight: Tensor | None = None) -> None:
        """Compute the statistics of new channels, and the norm and the weights for the product of a layer."""
        from .kernels import prepare

        shape = self.shape
        mean, variance, rstd = (norm.mean, norm.mean, norm.rstd) if self.statistics is None else self.statistics
        new = 0 if self.statistics is None else shape.growth if channels > shape.inputs else channels
        programs = tiles_in(new, COMBINED)
        if weight is not None:
            programs += tiles_in(shape.stride, ELEMENTS) + tiles_in(9 * shape.growth * channels, ELEMENTS)
        if programs:
            prepare[(programs,)](
                *self._partial, mean, variance, rstd, norm.scale, norm.shift,
                self._arranged if weight is None else weight, *self._linear, self._arranged,
                shape.pixels, self._tiles, channels - new, channels, shape.stride, self.eps,
                GROWTH=shape.growth, LAYER=weight is not None, PIXELS=shape.tile,
                TILES=min(power_of_two(self._tiles), PARTIALS), CHANNELS=COMBINED, ELEMENTS=ELEMENTS,
            )  # fmt: skip

    def close(self, norm: Norm) -> Tensor:
        """Apply the closing norm, ReLU and pooling: (images, channels, side / factor, side / factor)."""
        from .kernels import close

        shape = self.shape
        self._prepare(norm, shape.channels)
        out = self.buffer.new_empty(shape.pixels // shape.factor**2, shape.channels)
        close[(tiles_in(len(out), FEW_PIXELS), tiles_in(shape.channels, CHANNELS))](
            self.buffer, *norm, out, len(out), shape.channels // shape.unit, shape.stride, shape.side, shape.factor,
            UNIT=shape.unit, PIXELS=FEW_PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return shape.images_of(out)


class BackwardPass:
    """The backward pass of a block, from the gradient of its output; the last layer comes first."""

    def __init__(self, gradient: Tensor, shape: Shape, buffer: Tensor) -> None:
        self.shape, self.buffer = shape, buffer
        self._gradient = gradient.to(buffer.dtype).contiguous(memory_format=torch.channels_last)
        self._arriving = torch.empty_like(buffer)
        self._means = buffer.new_empty(2, shape.channels, dtype=torch.float32).unbind()  # P mean(g) and P mean(g z)
        # a tap of a pixel that leads out of the image stays zero
        self._views = buffer.new_zeros(shape.pixels, shape.width)

    def close(self, norm: Norm) -> list[Tensor]:
        """Return the gradients of the closing scale and shift."""
        from .kernels import close_backward

        shape = self.shape
        columns = tiles_in(shape.channels, CHANNELS)
        each, ranges = self._ranges(PIXELS, 16, columns)
        sums = norm.scale.new_empty(ranges, 4, shape.channels)
        close_backward[(columns, ranges)](
            self.buffer, self._gradient, self._arriving, *norm, sums,
            shape.pixels, shape.channels // shape.unit, shape.stride, shape.side, shape.factor, each,
            UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return self._combine(norm, sums)

    def layer(self, layer: int, norm: Norm, weight: Tensor, drop: Drop | None) -> list[Tensor]:
        """Return the gradients of a layer's scale, shift and weight."""
        from .kernels import layer_backward, matrix, outgoing

        shape, k, product = self.shape, self.shape.growth, _tile(BACKWARD, self.shape, self.buffer)
        channels = shape.channels_before(layer)
        drop = drop or Drop(self.buffer, self.buffer, 0.0)
        outgoing[(tiles_in(shape.pixels, FEW_PIXELS),)](
            self.buffer, self._arriving, norm.mean, norm.rstd, *self._means, self._views, drop.key, drop.layer,
            shape.pixels, channels // shape.unit, shape.stride, SIDE=shape.side,
            UNIT=shape.unit, GROWTH=k, GROWTH_PADDED=power_of_two(k), WIDTH=shape.width, **drop.constants,
            PIXELS=FEW_PIXELS,
        )  # fmt: skip
        columns = tiles_in(channels, product.channels)
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
        combine[(tiles_in(rows * channels, elements) + tiles_in(channels, elements),)](
            sums if weight_sums is None else weight_sums, sums, norm.scale, found[-1], found[1], found[0],
            *self._means, channels // shape.unit, len(sums),
            UNIT=shape.unit, GROWTH=shape.growth, ROWS=rows, RANGES=at_a_time, ELEMENTS=elements,
        )  # fmt: skip
        return found

    def input(self, norm: Norm) -> Tensor:
        """Return the gradient of the block's input; of the norm, only the statistics are used."""
        from .kernels import incoming

        shape = self.shape
        out = self.buffer.new_empty(shape.pixels, shape.inputs)
        incoming[(tiles_in(shape.pixels, PIXELS), tiles_in(shape.inputs, CHANNELS))](
            self.buffer, self._arriving, norm.mean, norm.rstd, *self._means, out,
            shape.pixels, shape.inputs // shape.unit, shape.stride,
            UNIT=shape.unit, PIXELS=PIXELS, CHANNELS=CHANNELS,
        )  # fmt: skip
        return shape.images_of(out)

    def _ranges(self, tile: int, programs_each: int, columns: int) -> tuple[int, int]:
        """The pixels per range (whole tiles) and the number of ranges, for `programs_each` programs per processor."""
        ranges = max(1, programs_each * processors(self.buffer.device) // columns)
        each = tiles_in(self.shape.pixels, ranges * tile) * tile
        return each, tiles_in(self.shape.pixels, each)


def precision() -> str:
    """The precision with which tensor cores multiply float32; three products of TF32 are as accurate as float32."""
    cudnn: Any = torch.backends.cudnn
    # torch 2.9 has replaced allow_tf32
    tf32 = cudnn.conv.fp32_precision == "tf32" if hasattr(cudnn, "conv") else cudnn.allow_tf32
    return "tf32" if tf32 else "tf32x3"


@cache
def processors(device: torch.device) -> int:
    """The number of processors of a GPU; 4 in the interpreter, so that its tests have several ranges."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _tile(tiles: dict[torch.dtype, dict[int, list[Tile]]], shape: Shape, x: Tensor) -> Tile:
    by_columns = tiles[x.dtype]
    for tile in by_columns[min(most for most in by_columns if shape.columns <= most)]:
        if tiles_in(shape.pixels, tile.pixels) * tile.parts > 0.9 * processors(x.device):
            break
    return tile
