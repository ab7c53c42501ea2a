"""Labelled images, as every data set provides them: uint8 pixels, integer labels, names."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ..recipe.batch import Transform
from ..recipe.preprocessing import ImagePreprocessing
from .augment import AUGMENTATIONS
from .files import CENTRAL_SHARE, PhotoFiles
from .labels import described, digest, hold_out, require_labels, spread

if TYPE_CHECKING:
    import torch

    from .protocol import Placed

_COUNTED_BYTES = 1 << 22  # at a time: np.bincount makes a copy of eight times this size

Augmentation = Literal["none", "crop-mirror", "crop-mirror-rgb", "imagenet"]
"""The names in `augment.AUGMENTATIONS`: how training images are cropped and transformed by default."""


@dataclass(frozen=True)
class Images:
    """`pixels` is (images, height, width, channels), or files, decoded when they are needed; `labels` is (images,).

    `names` are those of the files, relative to the folder of the data; None for arrays.
    """

    pixels: NDArray[np.uint8] | PhotoFiles
    labels: NDArray[np.int64]
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Distinguishes these images from others: a SHA-256 of the labels and of images spread over all of them."""
        pixels = self.pixels
        return digest(self.labels, spread(pixels) if isinstance(pixels, np.ndarray) else pixels.identity())

    def name(self, index: int) -> str | None:
        """The name of an image's file, relative to the folder of the data; None for arrays."""
        return None if self.names is None else self.names[index]

    def central(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pixels of some images as an evaluation reads them, before normalisation."""
        return self.pixels[indices] if isinstance(self.pixels, np.ndarray) else self.pixels.crops(indices, None)

    def take(self, indices: NDArray[np.int64]) -> "Images":
        """Some of the images; no file is opened."""
        pixels = self.pixels[indices] if isinstance(self.pixels, np.ndarray) else self.pixels.take(indices)
        names = None if self.names is None else [self.names[index] for index in indices]
        return Images(pixels, self.labels[indices], names)


@dataclass(frozen=True)
class ImageData:
    """A data set: images to train on, to hold out and to test on.

    `mean` and `deviation` normalise the images: one number per channel, in units of pixel values. By
    default they are computed from the training images.
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    augmentation: Augmentation
    size: int
    """The height and width of the network's input."""
    channels: int = 3
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    held_out: Images | None = None

    def __post_init__(self) -> None:
        if not all(transform.suits(self.inputs) for transform in self.transforms):
            raise ArgumentError(
                f"augmentation must suit images with {self.channels} channels, got {self.augmentation!r}, "
                "which needs 3: choose 'crop-mirror' or 'none'"
            )
        if self.augmentation == "imagenet" and isinstance(self.train.pixels, np.ndarray):
            raise ArgumentError(
                "augmentation must not crop image files where the images are arrays, got 'imagenet': "
                "choose 'crop-mirror' or 'none'"
            )
        for split, images in (("train", self.train), ("test", self.test)):
            if not len(images.labels) == len(images.pixels) > 0:
                raise ArgumentError(
                    f"{split} must have one label per image and at least one image, "
                    f"got {len(images.pixels)} images and {len(images.labels)} labels in {self.name}"
                )
        require_labels(self.name, self.classes, {"train": self.train.labels, "test": self.test.labels})

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The default transforms, for a recipe that does not specify any."""
        return AUGMENTATIONS[self.augmentation].transforms

    @property
    def inputs(self) -> dict[str, int]:
        """The number of channels."""
        return {"channels": self.channels}

    def pixels(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pixels of some test images, for the report."""
        return self.test.central(indices)

    def file_name(self, index: int) -> str | None:
        """The path of a test image, relative to the folder of the data; None for arrays."""
        return self.test.name(index)

    def place(self, device: "torch.device", padding: int | None = None) -> "Placed":
        """The images on a device."""
        from .placed import PlacedImages

        return PlacedImages(self, device, padding)

    def hold_out(self, count: int, seed: int) -> "ImageData":
        """Move `count` training images, drawn by `seed`, to `held_out`, for later choices."""
        return cast("ImageData", hold_out(self, count, seed))

    def described(self) -> dict[str, Any]:
        """The classes, the preprocessing, and the size and digest of each part, as JSON for the run folder."""
        return described(self)

    @cached_property
    def preprocessing(self) -> ImagePreprocessing:
        """How an image becomes an input of the network in an evaluation."""
        mean, deviation = (tuple(map(float, row)) for row in self.normalisation())
        crop = 1.0 if isinstance(self.test.pixels, np.ndarray) else CENTRAL_SHARE
        return ImagePreprocessing(mean, deviation, self.size, crop)

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and the deviation of each channel, in units of pixel values.

        A computed mean is rounded to a whole number: images are padded with it before normalisation, and
        the padding must be exactly zero afterwards.
        """
        if self.mean is not None and self.deviation is not None:
            return self.mean, self.deviation
        return self._measured

    @cached_property
    def _measured(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if not isinstance(self.train.pixels, np.ndarray):
            raise ArgumentError(f"mean and deviation must be given for {self.name}, because its images are files")
        flat = self.train.pixels.reshape(-1, self.channels)
        counts = np.zeros((self.channels, 256), np.int64)
        for part in np.array_split(flat, 1 + flat.nbytes // _COUNTED_BYTES):
            counts += np.stack([np.bincount(part[:, channel], minlength=256) for channel in range(self.channels)])
        shares, values = counts / len(flat), np.arange(256)
        mean = shares @ values
        deviation = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))
        deviation = deviation.round(2)
        if not deviation.all():
            raise ArgumentError(f"pixels must differ to be normalised, but a channel of {self.name} is constant")
        return tuple(map(float, mean.round())), tuple(map(float, deviation))
