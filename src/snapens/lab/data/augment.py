"""What is done to training images, a batch at a time and on their device: the paper's scheme for each data set."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

# principal components of ImageNet's colours in units of [0, 1], as fb.resnet.torch publishes them
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@dataclass(frozen=True)
class Scheme:
    """Which of the steps are taken, each driven by its own columns of numbers drawn in [0, 1).

    Geometry: `padding` pixels on each side and a random crop back; or `boxes`, random boxes that the
    reader of files cuts and resizes. Then mirrors, colour jitter, lighting.
    """

    padding: int = 0
    boxes: bool = False
    mirror: bool = False
    jitter: float = 0.0
    lighting: float = 0.0

    @property
    def columns(self) -> int:
        """How many numbers are drawn for an image; the first `geometry` of them place its crop."""
        return self.geometry + self.mirror + 4 * bool(self.jitter) + 3 * bool(self.lighting)

    @property
    def geometry(self) -> int:
        """Two for a crop out of the padding, four for a box."""
        return 4 if self.boxes else 2 * bool(self.padding)

    def crop(self, padded: Tensor, indices: Tensor, draws: Tensor) -> Tensor:
        """Pixels (batch, size, size, channels) cut from padded images (images, size + 2p, size + 2p, channels)."""
        if not self.padding:
            return padded.index_select(0, indices)
        size = padded.shape[1] - 2 * self.padding
        rows, columns = self._places(draws, size)
        return padded[indices[:, None, None], rows[:, :, None], columns[:, None, :]]

    def finish(self, pixels: Tensor, draws: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Normalised images (batch, channels, size, size), channels last in memory, from cropped uint8 pixels."""
        column = self.geometry
        if self.mirror:
            pixels = torch.where(draws[:, column, None, None, None] < 0.5, pixels, pixels.flip(2))
            column += 1
        images = pixels.float()
        if self.jitter:
            images = _jittered(images, draws[:, column : column + 4], self.jitter)
            column += 4
        if self.lighting:
            shift = 255 * _lit(draws[:, column : column + 3], self.lighting)[:, None, None, :]
            images = images + (shift * self._inside(draws, images.shape[1]) if self.padding else shift)
        return ((images - mean) / deviation).permute(0, 3, 1, 2)

    def _places(self, draws: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Rows and columns (batch, size) of the padded image that a crop consists of."""
        offsets = (draws[:, :2] * (2 * self.padding + 1)).long()
        line = torch.arange(size, device=draws.device)
        return offsets[:, :1] + line, offsets[:, 1:] + line

    def _inside(self, draws: Tensor, size: int) -> Tensor:
        """Which pixels (batch, size, size, 1) of a crop, mirrored or not, are no padding: that stays zero."""
        rows, columns = ((place >= self.padding) & (place < self.padding + size) for place in self._places(draws, size))
        if self.mirror:
            columns = torch.where(draws[:, 2, None] < 0.5, columns, columns.flip(1))
        return (rows[:, :, None] & columns[:, None, :])[..., None]


AUGMENTATIONS = {
    "none": Scheme(),
    "crop-mirror": Scheme(padding=4, mirror=True),
    # "RGB intensity scaling" of the paper is AlexNet's: shifts along the principal components
    "crop-mirror-rgb": Scheme(padding=4, mirror=True, lighting=0.1),
    "imagenet": Scheme(boxes=True, mirror=True, jitter=0.4, lighting=0.1),
}


def _jittered(images: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Brightness, contrast and saturation, each blended by up to `strength`, in an order drawn for each image."""
    orders = _constant(_ORDERS, images.device)[(draws[:, 3] * len(_ORDERS)).long()]
    blends = 1 + strength * (2 * draws[:, :3] - 1)
    for turn in range(3):
        kind = orders[:, turn, None]
        share = blends.gather(1, kind)[:, :, None, None]
        grey = (images * _constant((0.299, 0.587, 0.114), images.device)).sum(3, keepdim=True)
        choice = kind[:, :, None, None]
        target = torch.where(choice == 0, 0.0, torch.where(choice == 1, grey.mean((1, 2), keepdim=True), grey))
        images = share * images + (1 - share) * target
    return images


def _lit(draws: Tensor, strength: float) -> Tensor:
    """Shifts (batch, 3) along the principal components, normally distributed with deviation `strength`."""
    normal = torch.erfinv((2 * draws - 1).clamp(-1 + 2**-23, 1 - 2**-23)) * 2**0.5
    scaled = strength * normal * _constant(_EIGENVALUES, draws.device)
    return scaled @ _constant(_EIGENVECTORS, draws.device).T


@cache
def _constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    # made once and kept: while a step is being captured nothing can be copied from the host
    return torch.tensor(values, device=device)
