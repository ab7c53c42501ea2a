"""The residual networks of He et al., for CIFAR and ImageNet, and the wide ones of Zagoruyko and Komodakis."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn, relu
from torch.nn.functional import pad

from ...errors import ArgumentError
from .initialise import initialise


class Basic(nn.Module):
    """relu(x + two 3x3 convolutions of x), with a shortcut of type A: subsampled, zero-padded, no weights."""

    repeats = True

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.stride = stride
        self.more_channels = outputs - inputs
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = _conv(outputs, outputs, 3)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(images, inputs, height, width) -> (images, outputs, height / stride, width / stride)."""
        y = self.dropout(relu(self.norm1(self.conv1(x))))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Take every stride-th pixel, and append channels of zeros."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return pad(x, (0, 0, 0, 0, 0, self.more_channels)) if self.more_channels else x


class Bottleneck(nn.Module):
    """relu(x + 1x1, 3x3 and 1x1 convolutions of x), with a shortcut of type B: a projection where shapes differ.

    The stride is in the 3x3 convolution, as in fb.resnet.torch, which the authors' ImageNet code follows. He et al.
    have it in the first 1x1 convolution.
    """

    repeats = True

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = _conv(inputs, width, 1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.norm3 = nn.BatchNorm2d(outputs)
        projected = stride > 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if projected else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """(images, inputs, height, width) -> (images, 4 * width, height / stride, width / stride)."""
        y = relu(self.norm1(self.conv1(x)))
        y = relu(self.norm2(self.conv2(y)))
        return relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class PreActivation(nn.Module):
    """x + two 3x3 convolutions, each after BatchNorm and ReLU; where shapes differ, the shortcut is a projection.

    The projection reads the activated input, as in the code of Zagoruyko and Komodakis (2016).
    """

    repeats = True

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = _conv(outputs, outputs, 3)
        self.shortcut = _conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(images, inputs, height, width) -> (images, outputs, height / stride, width / stride)."""
        activated = relu(self.norm1(x))
        y = self.dropout(relu(self.norm2(self.conv1(activated))))
        return self.conv2(y) + (x if self.shortcut is None else self.shortcut(activated))  # type: ignore[no-any-return]


def cifar(
    *,
    blocks_per_stage: int,
    widen: int = 1,
    classes: int,
    channels: int = 3,
    dropout: float = 0.0,
    stem_stride: int = 1,
) -> nn.Module:
    """Build three stages of 16, 32 and 64 times `widen` channels: 6 * blocks_per_stage + 2 layers, for 32x32 images."""
    width = 16 * widen
    stem = [_conv(channels, width, 3, stem_stride), nn.BatchNorm2d(width), nn.ReLU()]
    blocks: list[nn.Module] = []
    for stage, outputs in enumerate((width, 2 * width, 4 * width)):
        for k in range(blocks_per_stage):
            inputs, stride = (outputs // 2, 2) if stage and not k else (outputs, 1)
            blocks.append(Basic(inputs, outputs, stride, dropout))
    return _network(stem, blocks, 4 * width, classes)


def wide(
    *, depth: int, widen: int, classes: int, channels: int = 3, dropout: float = 0.0, stem_stride: int = 1
) -> nn.Module:
    """Build a Wide-ResNet with pre-activation: `depth` convolutions, 16, 32 and 64 times `widen` channels."""
    if depth < 10 or depth % 6 != 4:
        near = max(10, depth // 6 * 6 + 4)
        raise ArgumentError(f"depth must be 6 n + 4 with n of at least 1, got {depth}: use {near}")
    inputs = 16
    stem: list[nn.Module] = [_conv(channels, inputs, 3, stem_stride)]
    blocks: list[nn.Module] = []
    for stage, outputs in enumerate((16 * widen, 32 * widen, 64 * widen)):
        for k in range((depth - 4) // 6):
            blocks.append(PreActivation(inputs, outputs, 2 if stage and not k else 1, dropout))
            inputs = outputs
    return _network(stem, [*blocks, nn.BatchNorm2d(inputs), nn.ReLU()], inputs, classes)


def imagenet(*, blocks_per_stage: Sequence[int], classes: int, channels: int = 3) -> nn.Module:
    """Build a 7x7 stem and stages of bottlenecks of 64, 128, … channels, for 224x224 images."""
    stem = [_conv(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate(blocks_per_stage):
        for k in range(count):
            blocks.append(Bottleneck(inputs, 64 << stage, stride=2 if stage and not k else 1))
            inputs = 4 * (64 << stage)
    return _network(stem, blocks, inputs, classes)


def _network(stem: list[nn.Module], blocks: list[nn.Module], features: int, classes: int) -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))
    return initialise(nn.Sequential(OrderedDict(stem=nn.Sequential(*stem), blocks=nn.Sequential(*blocks), head=head)))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    # BatchNorm follows every convolution, after an addition at most, and would cancel a bias
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
