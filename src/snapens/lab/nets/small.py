"""A small network for small images, which trains quickly on a CPU."""

from torch import nn

from .initialise import initialise

# the channels, kernel size and stride of each convolution
_STAGES = ((16, 5, 2), (32, 3, 2), (64, 3, 1))


def small(*, classes: int, channels: int = 1, dropout: float = 0.0) -> nn.Module:
    """Build three convolutions of 16, 32 and 64 channels, for images of 8x8 to 32x32 pixels."""
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, kernel, stride in _STAGES:
        if layers:
            layers.append(nn.Dropout(dropout))
        layers += [
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)))
