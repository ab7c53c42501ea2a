"""The densely connected networks of Huang et al. without bottlenecks or compression."""

from collections import OrderedDict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn, relu
from torch.nn.functional import avg_pool2d

from ....errors import ArgumentError
from ..initialise import initialise
from .fused import dense_block, possible, supports

STEM_CHANNELS = 16


class Layer(nn.Module):
    """BatchNorm, ReLU and a 3x3 convolution to `growth` new channels, which are appended to the input."""

    repeats = True

    def __init__(self, inputs: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(images, inputs, height, width) -> (images, inputs + growth, height, width)."""
        return torch.cat([x, self.dropout(self.conv(relu(self.norm(x))))], dim=1)


class Transition(nn.Module):
    """BatchNorm, ReLU, a 1x1 convolution that keeps the number of channels, and the mean of each 2x2 pixels."""

    repeats = True

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(images, channels, height, width) -> (images, channels, height / 2, width / 2)."""
        return avg_pool2d(self.dropout(self.conv(relu(self.norm(x)))), 2)


class DenseNet(nn.Sequential):
    """A stem, `Layer`s with `Transition`s between them, and a head.

    After `accelerate`, the Triton kernels of `fused.py` compute each dense block on a GPU that can run them; the
    results are the same up to rounding. They do not look at the modules again, so the modules must stay as `densenet`
    built them: not replaced, hooked, pruned or changed in their settings, and all in the mode of the network.
    """

    stem: nn.Module
    blocks: nn.Sequential
    head: nn.Sequential
    accelerable: ClassVar[bool] = True  # False makes `accelerate` do nothing, for comparisons
    _accelerated = False

    def accelerate(self) -> bool:
        """Switch the kernels on if they support this network, and return whether they do."""
        layers = (block for block in self.blocks if isinstance(block, Layer))
        self._accelerated = self.accelerable and supports(layers)
        return self._accelerated

    def __getstate__(self) -> dict[str, Any]:
        """Leave the switch out of copies and pickles, because the modules of a copy may be changed."""
        return {name: value for name, value in self.__dict__.items() if name != "_accelerated"}

    def forward(self, x: Tensor) -> Tensor:
        """(images, channels, height, width) -> (images, classes)."""
        if not (self._accelerated and possible(self, x)):
            return super().forward(x)  # type: ignore[no-untyped-call,no-any-return]
        x = self.stem(x)
        layers: list[Layer] = []
        for block in self.blocks:
            if isinstance(block, Layer):
                layers.append(block)
            else:
                assert isinstance(block, Transition)  # as `densenet` builds them
                x, layers = _fused_transition(x, layers, block), []
        norm, *_, linear = self.head
        assert isinstance(norm, nn.BatchNorm2d)
        return linear(dense_block(x, layers, norm, factor=x.shape[2]).flatten(1))  # type: ignore[no-any-return]


def _fused_transition(x: Tensor, layers: list[Layer], transition: Transition) -> Tensor:
    """Apply the layers by the kernels, and then the transition."""
    if x.shape[2] % 2 or (transition.dropout.training and transition.dropout.p):
        x = dense_block(x, layers, transition.norm, factor=1)
        return avg_pool2d(transition.dropout(transition.conv(x)), 2)
    # a mean and a 1x1 convolution commute if nothing is between them: pooling first needs a quarter of the operations
    return transition.conv(dense_block(x, layers, transition.norm, factor=2))  # type: ignore[no-any-return]


def densenet(
    *, depth: int, growth: int, classes: int, channels: int = 3, dropout: float = 0.0, stem_stride: int = 1
) -> nn.Module:
    """Build three dense blocks of (depth - 4) / 3 layers, for 32x32 images.

    The other four layers are the stem, two transitions and the head.
    """
    if depth < 7 or depth % 3 != 1:
        raise ArgumentError(f"depth must be 3 n + 4 with n >= 1 layers per block, got {depth}: use 40 or 100")
    width = STEM_CHANNELS
    blocks: list[nn.Module] = []
    for block in range(3):
        if block:
            blocks.append(Transition(width, dropout))
        for _ in range((depth - 4) // 3):
            blocks.append(Layer(width, growth, dropout))
            width += growth
    stem = nn.Conv2d(channels, STEM_CHANNELS, 3, stem_stride, padding=1, bias=False)
    head = nn.Sequential(
        nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    )
    return initialise(DenseNet(OrderedDict(stem=stem, blocks=nn.Sequential(*blocks), head=head)))
