"""A small network for small images, quick to train on a CPU."""

from torch import nn

from .initialise import initialise


def small(*, classes: int, channels: int = 1, dropout: float = 0.0, stem_stride: int = 1) -> nn.Module:
    """Three 3x3 convolutions of 16, 32 and 64 channels, for images of 8x8 to 32x32 pixels."""
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, stride in ((16, stem_stride), (32, 2), (64, 2)):
        if layers:
            layers.append(nn.Dropout(dropout))
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
        inputs = outputs
    return initialise(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)))
