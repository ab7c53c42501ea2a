"""Normalisation: the modules that apply a preprocessing to a batch on its device."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PixelNormalisation(nn.Module):
    """Pixels (images, height, width, channels) of any type -> float32 (images, channels, height, width)."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float32))

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalise each channel; the result has its channels last in memory."""
        return ((pixels.float() - self.mean) / self.deviation).permute(0, 3, 1, 2)


class RowNormalisation(nn.Module):
    """Rows (rows, features) of any type -> float32 of the same shape."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Standardise each feature, in float64: a large mean must not cancel the digits of small differences."""
        return ((rows.double() - self.mean) / self.deviation).float()
