"""Augmentations: how each data set's training images are cropped, and which transforms follow by default."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..recipe.batch import Transform
from ..recipe.transforms import ColourJitter, Lighting, Mirror

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Crop:
    """A random crop of each training image, from `padding` pixels on each side, or by `boxes`.

    A box is a random part of a photo, which the reader of files cuts and resizes.
    """

    padding: int = 0
    boxes: bool = False

    @property
    def columns(self) -> int:
        """The number of random numbers per image: two for a crop from the padding, four for a box."""
        return 4 if self.boxes else 2 * bool(self.padding)

    def __call__(self, padded: "Tensor", indices: "Tensor", draws: "Tensor") -> "Tensor":
        """Pixels (batch, size, size, channels) cut from padded images (images, size + 2p, size + 2p, channels)."""
        if not self.padding:
            return padded.index_select(0, indices)
        rows, columns = self._places(draws, padded.shape[1] - 2 * self.padding)
        return padded[indices[:, None, None], rows[:, :, None], columns[:, None, :]]

    def inside(self, draws: "Tensor", size: int) -> "Tensor | None":
        """A mask (batch, size, size, 1) of the pixels of a crop that are not padding; None if there is no padding."""
        if not self.padding:
            return None
        rows, columns = ((place >= self.padding) & (place < self.padding + size) for place in self._places(draws, size))
        return (rows[:, :, None] & columns[:, None, :])[..., None]

    def _places(self, draws: "Tensor", size: int) -> "tuple[Tensor, Tensor]":
        """The rows and the columns (batch, size) of the padded image that form a crop."""
        import torch

        offsets = (draws[:, :2] * (2 * self.padding + 1)).long()
        line = torch.arange(size, device=draws.device)
        return offsets[:, :1] + line, offsets[:, 1:] + line


@dataclass(frozen=True)
class Augmentation:
    """A crop and the transforms after it."""

    crop: Crop = Crop()
    transforms: tuple[Transform, ...] = ()


AUGMENTATIONS = {
    "none": Augmentation(),
    "crop-mirror": Augmentation(Crop(padding=4), (Mirror(),)),
    "crop-mirror-rgb": Augmentation(Crop(padding=4), (Mirror(), Lighting(0.1))),
    "imagenet": Augmentation(Crop(boxes=True), (Mirror(), ColourJitter(0.4), Lighting(0.1))),
}
