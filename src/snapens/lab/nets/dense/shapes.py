"""The sizes of a dense block, and of the tiles in which the kernels compute it."""

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """The block of a matrix that one program multiplies at a time."""

    pixels: int
    channels: int
    warps: int
    stages: int
    parts: int = 1  # into which the nine taps are divided
    programs: int = 1  # that fit on a processor


# keyed by the largest number of columns of nine taps; the first tile that keeps 9 of 10 processors busy, else the last
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
SHARED_BYTES = 196_608  # the shared memory that these tiles need at most
WIDEST = 256  # the most columns of nine taps for which a program has registers
ALIGNED = 64  # columns; so each row of a matrix begins a cache line
PIXELS, CHANNELS = 32, 64  # the tile of a program that only moves data
FEW_PIXELS = 16  # the same, for kernels that are faster with many small programs
PARTIALS, COMBINED = 512, 8  # tiles and channels whose statistics a program combines at a time
ELEMENTS = 512  # of a vector that one program handles


class Norm(NamedTuple):
    """The tensors of a BatchNorm: float32, of at least as many elements as it has channels."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    rstd: Tensor


class Drop(NamedTuple):
    """The settings of a `KeyedDropout`. The backward pass reads the key again, so it must not change within a step."""

    key: Tensor
    layer: Tensor
    p: float

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time constants of the kernels."""
        return {"THRESHOLD": round(self.p * 2**32), "SCALE": 1 / (1 - self.p)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a block with input (images, inputs, side, side), whose `layers` add `growth` channels each."""

    images: int
    side: int
    inputs: int
    growth: int
    layers: int
    factor: int  # the side of the output is side / factor

    @property
    def pixels(self) -> int:
        """The number of rows of the buffer."""
        return self.images * self.side**2

    @property
    def channels(self) -> int:
        """The number of columns of the buffer that are used."""
        return self.inputs + self.layers * self.growth

    @property
    def stride(self) -> int:
        """The number of elements from one row of the buffer to the next, aligned."""
        return tiles_in(self.channels, ALIGNED) * ALIGNED

    @property
    def unit(self) -> int:
        """The largest power of two, at most 16, that divides the channels of every layer."""
        return gcd(self.inputs, self.growth, 16)

    @property
    def columns(self) -> int:
        """The columns of the matrix of nine taps in a program, a power of two."""
        return power_of_two(9 * self.growth)

    @property
    def width(self) -> int:
        """The columns of the matrix of nine taps in memory, aligned."""
        return tiles_in(9 * self.growth, ALIGNED) * ALIGNED

    @property
    def tile(self) -> int:
        """The pixels per program that writes a layer's columns: small for many programs, large for few statistics."""
        return 32 if self.pixels <= 8192 else 64 if self.pixels <= 32768 else 128

    def channels_before(self, layer: int) -> int:
        """The number of channels that a layer reads."""
        return self.inputs + layer * self.growth

    def images_of(self, matrix: Tensor) -> Tensor:
        """View a matrix (pixels, channels) as (images, channels, side, side), channels last; it may be pooled."""
        side = round((len(matrix) / self.images) ** 0.5)
        return matrix.view(self.images, side, side, -1).permute(0, 3, 1, 2)


def tiles_in(length: int, tile: int) -> int:
    """The number of tiles that cover a length."""
    return -(-length // tile)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n and at least 16."""
    return max(16, 1 << (n - 1).bit_length())
