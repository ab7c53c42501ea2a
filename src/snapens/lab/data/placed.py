"""Data on a device, where every run of a pack reads it: images and tables."""

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
    """Images on a device: arrays as uint8, padded for their crops; files, and what is too large, are streamed."""

    data: ImageData
    device: torch.device
    padding: int | None = None
    """That of the recipe; None: as the data set has it."""

    def __post_init__(self) -> None:
        if self.padding is not None and AUGMENTATIONS[self.data.augmentation].crop.boxes:
            raise ArgumentError(f"padding must be left out for photos, which are cropped by boxes, got {self.padding}")
        if self.padding is not None and self.padding > self.data.size:
            raise ArgumentError(f"padding must be at most the {self.data.size} pixels of a side, got {self.padding}")
        self._normalise = self.data.preprocessing.module().to(self.device)
        self.mean = cast(Tensor, self._normalise.mean)

    @cached_property
    def crop(self) -> Crop:
        """How training images are cropped."""
        return AUGMENTATIONS[self.data.augmentation].crop if self.padding is None else Crop(self.padding)

    @property
    def evaluation_batch(self) -> int:
        """How many images are evaluated at once."""
        return max(1, _EVALUATION_PIXELS[self.device.type] // self.data.size**2)

    @cached_property
    def resident(self) -> bool:
        """Whether the training images lie on the device."""
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
        """(images,)."""
        return torch.from_numpy(self.data.train.labels).to(self.device)

    def buffer(self, batch: int) -> Tensor:
        """Room for padded pixels."""
        side = self.data.size + 2 * self.crop.padding
        return torch.zeros(batch, side, side, self.data.channels, dtype=torch.uint8, device=self.device)

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Padded pixels, of files those of random boxes."""
        pixels = self.data.train.pixels
        if isinstance(pixels, np.ndarray):
            return self._padded(pixels[indices])
        return self._padded(pixels.crops(indices, draws[:, : self.crop.columns] if self.crop.boxes else None))

    def take(self, rows: Tensor, indices: Tensor, targets: Tensor, draws: Tensor, inside: bool) -> Batch:
        """Crops in units of the pixels."""
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
        """Pixels with as many more on each side as their crop needs, zero once they are normalised."""
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
        """(rows,)."""
        return torch.from_numpy(self.data.train.labels).to(self.device)

    def buffer(self, batch: int) -> Tensor:
        """Room for standardised rows."""
        return torch.zeros(batch, *self.rows.shape[1:], device=self.device)

    def read(self, indices: NDArray[np.int64], draws: NDArray[np.float32]) -> NDArray[Any]:
        """Standardised rows."""
        return self._standardised(self.data.train.values[indices]).cpu().numpy()

    def take(self, rows: Tensor, indices: Tensor, targets: Tensor, draws: Tensor, inside: bool) -> Batch:
        """Some rows."""
        return Batch(rows.index_select(0, indices), targets, classes=len(self.data.classes))

    def finish(self, inputs: Tensor) -> Tensor:
        """Rows are standardised already."""
        return inputs

    def batches(self, part: Part) -> Iterator[Tensor]:
        """All rows in order."""
        values = cast(Rows, part).values
        for begin in range(0, len(values), _EVALUATION_ROWS):
            yield self._standardised(values[begin : begin + _EVALUATION_ROWS])

    def _standardised(self, values: NDArray[np.float64]) -> Tensor:
        return self.data.preprocessing(values).to(self.device)
