"""Images and tables on a device, where all runs of a pack read them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ArgumentError
from ..recipe.batch import Batch
from .ahead import read_ahead
from .augment import AUGMENTATIONS, Crop
from .images import ImageData, Images
from .protocol import Part
from .tables import Rows, TableData

_RESIDENT_SHARE = 0.4  # of the memory that is free when the first run is prepared
_EVALUATION_ROWS = 1 << 16
_EVALUATION_PIXELS = {"cuda": 1 << 20, "cpu": 1 << 19}  # in a batch: few kernels, or little memory


@dataclass(eq=False)
class PlacedImages:
    """Images on a device, as uint8 and padded for their crops; files, and arrays that do not fit, are streamed."""

    data: ImageData
    device: torch.device
    padding: int | None = None
    """The padding of the recipe; None: the default of the data set."""

    def __post_init__(self) -> None:
        if self.padding is not None and AUGMENTATIONS[self.data.augmentation].crop.boxes:
            raise ArgumentError(f"padding must be left out for photos, which are cropped by boxes, got {self.padding}")
        if self.padding is not None and self.padding > self.data.size:
            raise ArgumentError(f"padding must be at most the {self.data.size} pixels of a side, got {self.padding}")
        self._normalise = self.data.preprocessing.module().to(self.device)
        self.mean = cast(Tensor, self._normalise.mean)

    @cached_property
    def crop(self) -> Crop:
        """The crop of training images."""
        return AUGMENTATIONS[self.data.augmentation].crop if self.padding is None else Crop(self.padding)

    @property
    def evaluation_batch(self) -> int:
        """The number of images per batch of an evaluation."""
        return max(1, _EVALUATION_PIXELS[self.device.type] // self.data.size**2)

    @cached_property
    def resident(self) -> bool:
        """Whether the device holds all training images."""
        pixels = self.data.train.pixels
        if not isinstance(pixels, np.ndarray):
            return False
        if self.device.type != "cuda":
            return True
        grown = (1 + 2 * self.crop.padding / self.data.size) ** 2
        return pixels.nbytes * grown < _RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]

    @cached_property
    def rows(self) -> Tensor:
        """Padded pixels (images, size + 2p, size + 2p, channels)."""
        return torch.from_numpy(self._padded(cast(NDArray[np.uint8], self.data.train.pixels))).to(self.device)

    @cached_property
    def labels(self) -> Tensor:
        """Class indices (images,)."""
        return torch.from_numpy(self.data.train.labels).to(self.device)

    def buffer(self, batch: int) -> Tensor:
        """An empty tensor for the padded pixels of one batch."""
        side = self.data.size + 2 * self.crop.padding
        return torch.zeros(batch, side, side, self.data.channels, dtype=torch.uint8, device=self.device)

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Padded pixels of some images; files are cropped to random boxes."""
        pixels = self.data.train.pixels
        if isinstance(pixels, np.ndarray):
            return self._padded(pixels[indices])
        return self._padded(pixels.crops(indices, draws[:, : self.crop.columns] if self.crop.boxes else None))

    def take(self, rows: Tensor, indices: Tensor, targets: Tensor, draws: Tensor, inside: bool) -> Batch:
        """Cropped images, with pixel values from 0 to 255."""
        images = self.crop(rows, indices, draws).float()
        belongs = self.crop.inside(draws, self.data.size) if inside else None
        return Batch(images, targets, self.mean, belongs, classes=len(self.data.classes))

    def finish(self, inputs: Tensor) -> Tensor:
        """Normalised images (batch, channels, size, size), channels last in memory."""
        return cast(Tensor, self._normalise(inputs))

    def batches(self, part: Part) -> Iterator[Tensor]:
        """All images in order, normalised."""
        images, batch = cast(Images, part), self.evaluation_batch
        parts = (np.arange(begin, min(begin + batch, len(images))) for begin in range(0, len(images), batch))
        for pixels in read_ahead(images.central, parts):
            yield self.finish(torch.from_numpy(pixels).to(self.device))

    def _padded(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Add the padding of the crop on each side; it becomes zero when images are normalised."""
        padding = self.crop.padding
        if not padding:
            return pixels
        side = self.data.size + 2 * padding
        padded = np.empty((len(pixels), side, side, self.data.channels), np.uint8)
        padded[:] = self.data.normalisation()[0]
        padded[:, padding:-padding, padding:-padding] = pixels
        return padded


@dataclass(eq=False)
class PlacedTable:
    """Standardised rows on a device, as float32."""

    data: TableData
    device: torch.device
    crop = Crop()
    resident = True
    evaluation_batch = _EVALUATION_ROWS

    @cached_property
    def rows(self) -> Tensor:
        """All training rows (rows, features)."""
        return self._standardised(self.data.train.values)

    @cached_property
    def labels(self) -> Tensor:
        """Class indices (rows,)."""
        return torch.from_numpy(self.data.train.labels).to(self.device)

    def buffer(self, batch: int) -> Tensor:
        """An empty tensor for the standardised rows of one batch."""
        return torch.zeros(batch, *self.rows.shape[1:], device=self.device)

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Some standardised rows."""
        return self._standardised(self.data.train.values[indices]).cpu().numpy()

    def take(self, rows: Tensor, indices: Tensor, targets: Tensor, draws: Tensor, inside: bool) -> Batch:
        """Some standardised rows; rows are not cropped."""
        return Batch(rows.index_select(0, indices), targets, classes=len(self.data.classes))

    def finish(self, inputs: Tensor) -> Tensor:
        """The rows, which are already standardised."""
        return inputs

    def batches(self, part: Part) -> Iterator[Tensor]:
        """All rows in order, standardised."""
        values = cast(Rows, part).values
        for begin in range(0, len(values), _EVALUATION_ROWS):
            yield self._standardised(values[begin : begin + _EVALUATION_ROWS])

    def _standardised(self, values: NDArray[np.float64]) -> Tensor:
        return self.data.preprocessing(values).to(self.device)
