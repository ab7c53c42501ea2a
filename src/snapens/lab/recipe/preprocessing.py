"""Preprocessing: how a raw example becomes an input of the network, without the transforms of training.

It is stored with a run, so that every later prediction prepares examples as the run's evaluation did.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from .value import Value, require, require_at_least

if TYPE_CHECKING:
    from torch import Tensor, nn

_CROPS_IN_WORDS = {"none": 1.0, "the middle 7/8": 7 / 8}


@dataclass(frozen=True)
class Preprocessing(Value, ABC):
    """A mean is subtracted, and the result is divided by a deviation: one per channel of an image, or per feature."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def check(self) -> None:
        """There is one deviation per mean, and deviations are positive."""
        count = len(self.mean)
        require(0 < count == len(self.deviation), "deviation", f"have one number per mean ({count})", self.deviation)
        require(all(number > 0 for number in self.deviation), "deviation", "be greater than 0", self.deviation)

    @property
    @abstractmethod
    def inputs(self) -> dict[str, int]:
        """The inputs of a network, for its factory: `channels` of an image, or `features` of a row."""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of the network."""

    @abstractmethod
    def check_examples(self, examples: NDArray[Any]) -> None:
        """Raise an ArgumentError unless these are raw examples."""

    @abstractmethod
    def module(self) -> "nn.Module":
        """A module from a tensor of raw examples to the inputs of the network; it can be exported with the network."""

    def __call__(self, examples: NDArray[Any]) -> "Tensor":
        """The inputs of the network, from an array of raw examples."""
        import torch

        examples = np.asarray(examples)
        self.check_examples(examples)
        prepared: Tensor = self.module()(torch.from_numpy(np.ascontiguousarray(examples)))
        return prepared


@dataclass(frozen=True)
class ImagePreprocessing(Preprocessing):
    """Raw examples are uint8 pixels (images, size, size, channels); inputs are (images, channels, size, size).

    An image of another size is first cropped to the square in its centre whose side is the share `crop` of the shorter
    side, and then resized to `size` with bilinear interpolation.

    Examples:
        >>> preprocessing = ImagePreprocessing((100.0,), (50.0,), size=1)
        >>> preprocessing(np.array([[[[200]]]], np.uint8))
        tensor([[[[2.]]]])
    """

    size: int
    crop: float = 1.0

    def check(self) -> None:
        """The size is at least 1 pixel, and the crop is a share."""
        super().check()
        require_at_least(1, size=self.size)
        require(0 < self.crop <= 1, "crop", "be more than 0 and at most 1", self.crop)

    @property
    def inputs(self) -> dict[str, int]:
        """The number of channels."""
        return {"channels": len(self.mean)}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(channels, size, size)."""
        return len(self.mean), self.size, self.size

    def check_examples(self, examples: NDArray[Any]) -> None:
        """Require uint8 pixels of the right size."""
        wanted = (self.size, self.size, len(self.mean))
        if examples.dtype != np.uint8 or examples.ndim != 4 or examples.shape[1:] != wanted:
            raise ArgumentError(
                f"pixels must be uint8 of shape (images, {str(wanted)[1:]}, got {examples.dtype} of {examples.shape}"
            )

    def module(self) -> "nn.Module":
        """Normalises pixels, and moves the channels to the front."""
        from .normalisation import PixelNormalisation

        return PixelNormalisation(self.mean, self.deviation)


@dataclass(frozen=True)
class RowPreprocessing(Preprocessing):
    """Raw examples are rows of numbers (rows, features); inputs are standardised rows.

    Examples:
        >>> RowPreprocessing((1.0, 2.0), (1.0, 4.0))(np.array([[3, 4]]))
        tensor([[2.0000, 0.5000]])
    """

    @property
    def inputs(self) -> dict[str, int]:
        """The number of features."""
        return {"features": len(self.mean)}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(features,)."""
        return (len(self.mean),)

    def check_examples(self, examples: NDArray[Any]) -> None:
        """Require numbers, with the right number of features."""
        if examples.ndim != 2 or examples.shape[1] != len(self.mean) or examples.dtype.kind not in "fiub":
            raise ArgumentError(
                f"rows must be numbers (rows, {len(self.mean)}), got {examples.dtype} of shape {examples.shape}"
            )

    def module(self) -> "nn.Module":
        """Standardises rows."""
        from .normalisation import RowNormalisation

        return RowNormalisation(self.mean, self.deviation)


PREPROCESSINGS: dict[str, type[Preprocessing]] = {"images": ImagePreprocessing, "rows": RowPreprocessing}
Preprocessing.kinds = PREPROCESSINGS


def from_flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """A data description with its preprocessing as one value; earlier versions stored its fields separately."""
    if "preprocessing" in data:
        Preprocessing.of(data["preprocessing"])
    if "preprocessing" in data or "mean" not in data:
        return dict(data)
    flat = ("size", "channels", "features", "crop", "mean", "deviation")
    content = {"mean": data["mean"], "deviation": data["deviation"]}
    if "features" in data:
        value = Preprocessing.of({"kind": "rows", **content})
    else:
        crop = _CROPS_IN_WORDS[data["crop"]]
        value = Preprocessing.of({"kind": "images", "size": data["size"], "crop": crop, **content})
    for name, count in value.inputs.items():
        require(data[name] == count, name, f"be the number of means ({count})", data[name])
    others = {name: data[name] for name in data if name not in flat}
    return {**others, "preprocessing": value.written()}


def has_rows(data: Mapping[str, Any]) -> bool:
    """Whether the examples of a data description are the rows of a table."""
    return bool(data.get("preprocessing", {}).get("kind") == "rows")
