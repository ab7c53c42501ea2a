"""Labelled images as every data set hands them over: uint8 pixels, integer labels, names."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError

Augmentation = Literal["none", "crop-mirror", "crop-mirror-rgb", "imagenet"]
"""What is done to a training image: names of `augment.AUGMENTATIONS`."""


class ImageFiles(Protocol):
    """Images too many to hold: decoded when they are asked for, by as many threads as ask."""

    def __len__(self) -> int:
        """How many there are."""

    def crops(self, indices: NDArray[np.int64], draws: NDArray[np.float32] | None) -> NDArray[np.uint8]:
        """Crops of (size, size, 3) pixels: at random by `draws` (images, columns) in [0, 1), or central without."""


@dataclass(frozen=True)
class Images:
    """`pixels` is (images, height, width, channels), or files to decode; `labels` is (images,)."""

    pixels: NDArray[np.uint8] | ImageFiles
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Tells these images from others: a SHA-256 of the labels and of pixels spread over all of them."""
        found = hashlib.sha256(np.ascontiguousarray(self.labels).tobytes())
        if isinstance(self.pixels, np.ndarray):
            found.update(np.ascontiguousarray(self.pixels[:: max(1, len(self) // 1000)]).tobytes())
        return found.hexdigest()

    def central(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pixels of some images as an evaluation sees them, before they are normalised."""
        return self.pixels[indices] if isinstance(self.pixels, np.ndarray) else self.pixels.crops(indices, None)

    def take(self, indices: NDArray[np.int64]) -> "Images":
        """These images only; files are not opened."""
        if not isinstance(self.pixels, np.ndarray):
            return Images(_Subset(self.pixels, indices), self.labels[indices])
        return Images(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageData:
    """A data set: what is trained on, what is held out of it, what is tested on.

    `mean` and `deviation`, one number a channel in units of the pixels, normalise; where they are
    None they are those of the training images.
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    augmentation: Augmentation
    size: int
    """Height and width of what the network sees."""
    channels: int = 3
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    held_out: Images | None = None

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ArgumentError(f"data must have at least 2 classes, got {list(self.classes)} in {self.name}")
        if self.augmentation in ("crop-mirror-rgb", "imagenet") and self.channels != 3:
            raise ArgumentError(f"augmentation must be one for {self.channels} channels, got {self.augmentation!r}")
        if self.augmentation == "imagenet" and isinstance(self.train.pixels, np.ndarray):
            raise ArgumentError("augmentation must be another one for arrays, got 'imagenet', which crops image files")
        for split, images in (("train", self.train), ("test", self.test)):
            labels = images.labels
            if not len(labels) == len(images.pixels) > 0:
                raise ArgumentError(
                    f"{split} must have one label an image and at least one image, "
                    f"got {len(images.pixels)} images and {len(labels)} labels in {self.name}"
                )
            if labels.min() < 0 or labels.max() >= len(self.classes):
                raise ArgumentError(
                    f"{split} labels must be between 0 and {len(self.classes) - 1}, "
                    f"got {labels.min()} to {labels.max()} in {self.name}"
                )

    def hold_out(self, count: int, seed: int) -> "ImageData":
        """Set `count` training images aside, drawn by `seed`: whatever is chosen later is chosen on them."""
        if not 0 <= count < len(self.train):
            raise ArgumentError(
                f"held_out must be at least 0 and less than the {len(self.train)} training images, got {count}"
            )
        if count == 0:
            return self
        if self.held_out is not None:
            raise ArgumentError(f"held_out must be 0 where the data set holds out images of its own, got {count}")
        # raw output of the generator: the same with every NumPy
        order = np.argsort(np.random.Philox(key=[seed, 0x5E1D]).random_raw(len(self.train)), kind="stable")
        aside, rest = np.sort(order[:count]), np.sort(order[count:])
        return replace(self, train=self.train.take(rest), held_out=self.train.take(aside))

    def described(self) -> dict[str, Any]:
        """What a later reader of the run needs to prepare an image and to name its class."""
        mean, deviation = self.normalisation()
        parts = {"train": self.train, "test": self.test} | ({"held_out": self.held_out} if self.held_out else {})
        return {
            "classes": list(self.classes),
            "size": self.size,
            "channels": self.channels,
            "crop": "none" if isinstance(self.test.pixels, np.ndarray) else "the middle 7/8",
            "mean": list(mean),
            "deviation": list(deviation),
            "images": {part: {"count": len(images), "sha256": images.digest} for part, images in parts.items()},
        }

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each channel, in units of the pixels.

        The mean is rounded to a whole number: images are padded with it before they are normalised,
        and padding is to be exactly zero afterwards.
        """
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        return self._measured

    @cached_property
    def _measured(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if not isinstance(self.train.pixels, np.ndarray):
            raise ArgumentError(f"mean and deviation must be given for {self.name}, whose images are files")
        flat = self.train.pixels.reshape(-1, self.channels)
        counts = np.stack([np.bincount(flat[:, channel], minlength=256) for channel in range(self.channels)])
        shares, values = counts / len(flat), np.arange(256)
        mean = shares @ values
        deviation = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))
        deviation = deviation.round(2)
        if not deviation.all():
            raise ArgumentError(f"pixels must differ to be normalised, but a channel of {self.name} is constant")
        return tuple(map(float, mean.round())), tuple(map(float, deviation))


@dataclass(frozen=True)
class _Subset:
    files: ImageFiles
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def crops(self, indices: NDArray[np.int64], draws: NDArray[np.float32] | None) -> NDArray[np.uint8]:
        return self.files.crops(self.indices[indices], draws)
