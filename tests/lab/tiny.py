"""Data, networks and recipes small enough to train in a moment; networks are named `tiny:callable` in a recipe."""

import json
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from snapens.lab.data.images import ImageData, Images
from snapens.lab.nets import resnet
from snapens.lab.nets.dense.densenet import densenet
from snapens.lab.recipe import Settings
from snapens.storage import sealed

CLASSES = ("circle", "square", "star", "line")
SIZE = 8
SETTINGS = Settings(network="tiny:net", dataset="tiny", epochs=4, cycles=2, batch=8, lr=0.05)
"""20 steps on 40 images: 5 per epoch, snapshots at 10 and 20."""
RECIPE = SETTINGS.recipe()
FORMAT_1 = {
    "network": "tiny:net",
    "dataset": "tiny",
    "method": "snapshot",
    "epochs": 4,
    "cycles": 2,
    "lr": 0.05,
    "batch": 8,
    "seed": 0,
    "dropout": 0.0,
    "stem_stride": 1,
    "weight_decay": 0.0001,
    "momentum": 0.9,
    "warmup_epochs": 0,
    "pattern": [],
    "held_out": 0,
    "held_out_seed": 0,
}
"""The recipe as format 1 wrote it."""


def images(count, seed, channels=3):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, SIZE, SIZE, channels), np.uint8)
    return Images(pixels, rng.integers(0, len(CLASSES), count))


def data(train=40, test=20, augmentation="crop-mirror", channels=3, **options):
    return ImageData(
        "tiny",
        images(train, 0, channels),
        images(test, 1, channels),
        CLASSES,
        augmentation,
        SIZE,
        channels,
        **options,
    )


def load(recipe):
    """What the engine asks for, whatever the recipe."""
    return data()


class Files:
    """Pixels behind the interface of files: a crop is the image, turned as its draws say."""

    def __init__(self, pixels):
        self.pixels = pixels

    def __len__(self):
        return len(self.pixels)

    def take(self, indices):
        return Files(self.pixels[indices])

    def identity(self):
        yield self.pixels.tobytes()

    def crops(self, indices, draws):
        return np.stack([self.crop(self.pixels[i], None if draws is None else draws[k]) for k, i in enumerate(indices)])

    @staticmethod
    def crop(pixels, draws):
        if draws is None:
            return pixels
        assert draws.shape == (4,)
        down, right = (int(draw * SIZE) for draw in draws[2:])
        return np.roll(pixels, (down, right), (0, 1))


def net(*, classes, channels, dropout=0.0, width=6):
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(channels, width, 3, 2, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            dropout=nn.Dropout(dropout),
            pool=nn.AdaptiveAvgPool2d(2),
            flat=nn.Flatten(),
            head=nn.Linear(4 * width, classes),
        )
    )


def wide(*, classes, channels, dropout=0.0):
    return net(classes=classes, channels=channels, dropout=dropout, width=20)


def head(*, classes, channels):
    """Without BatchNorm: its first step can be worked out by hand."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * SIZE * SIZE, classes))


def plain(*, classes, channels, dropout=0.0):
    """Without BatchNorm, with dropout."""
    layers = nn.Conv2d(channels, 6, 3, 2), nn.ReLU(), nn.Dropout(dropout), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(6 * 3 * 3, classes))


def dense(*, classes, channels, dropout=0.0):
    """Of blocks that a GPU compiles."""
    return densenet(depth=7, growth=4, classes=classes, channels=channels, dropout=dropout)


def residual(*, classes, channels, dropout=0.0):
    """Of blocks that a GPU compiles."""
    return resnet.cifar(blocks_per_stage=2, classes=classes, channels=channels, dropout=dropout)


def preactivated(*, classes, channels, dropout=0.0):
    """A Wide-ResNet, of blocks that a GPU compiles."""
    return resnet.wide(depth=10, widen=1, classes=classes, channels=channels, dropout=dropout)


class Raises(nn.Module):
    """Does nothing three times, then raises, in training."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 3:
            raise RuntimeError("the fourth step is one too many")
        return x


def raising(*, classes, channels):
    return nn.Sequential(Raises(), net(classes=classes, channels=channels))


def recipe(**changes):
    """The recipe of the settings above, with some of them changed."""
    return replace(SETTINGS, **changes).recipe()


def equal(a, b):
    """Whether two mappings hold the same tensors, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def altered(path, change):
    """Change the text of a sealed file, and seal it again."""
    content = json.loads(path.read_text())
    kind, run = content["kind"], content["run"]
    kept = {name: value for name, value in content.items() if name not in ("format", "kind", "run", "sha256")}
    path.write_bytes(sealed.encode(kind, run, json.loads(change(json.dumps(kept)))))
