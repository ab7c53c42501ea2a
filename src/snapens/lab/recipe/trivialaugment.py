"""TrivialAugment: one random operation of Pillow per image (Müller and Hutter, 2021), for a whole batch on its device.

Operations and strengths are those of torchvision's `TrivialAugmentWide`, and every pixel equals Pillow's (tested on a
CPU with all strengths). A step computes one gather for shears, shifts and rotations, one blend for colour, contrast and
sharpness, and one table per image and channel for the rest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .batch import Batch, Transform, constant

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BINS = 31  # strengths of an operation; each has two signs
# operation -> the strength of the last bin; the first is 0
_STRONGEST = {
    "identity": 0.0,
    "shear_x": 0.99,
    "shear_y": 0.99,
    "translate_x": 32.0,
    "translate_y": 32.0,
    "rotate": 135.0,
    "brightness": 0.99,
    "colour": 0.99,
    "contrast": 0.99,
    "sharpness": 0.99,
    "posterize": 6.0,
    "solarize": 255.0,
    "autocontrast": 0.0,
    "equalize": 0.0,
}
OPERATIONS = tuple(_STRONGEST)
_COLOUR, _CONTRAST = OPERATIONS.index("colour"), OPERATIONS.index("contrast")
_AUTOCONTRAST, _EQUALIZE = OPERATIONS.index("autocontrast"), OPERATIONS.index("equalize")
_GREY = (19595.0, 38470.0, 7471.0)  # Pillow's luminance, in units of 1 / 65536: sums are exact in float32


@dataclass(frozen=True)
class TrivialAugment(Transform):
    """Apply one of 14 operations to each image, with one of 31 strengths and a random sign.

    Pixels of padding are treated as pixels of the image: they change their colour with it and count in its statistics,
    as in torchvision. What a shear, shift or rotation uncovers has the colour of padding (torchvision's is black).
    Values that are not whole numbers are rounded first.
    """

    columns = 3

    def suits(self, inputs: Mapping[str, int]) -> bool:
        """Grey images and colour images."""
        return inputs.get("channels") in (1, 3)

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """The numbers are the operation, its strength and its sign."""
        images = batch.inputs.round().clamp(0, 255)
        operation = (draws[:, 0] * len(OPERATIONS)).long()
        row = (operation * _BINS + (draws[:, 1] * _BINS).long()) * 2 + (draws[:, 2] * 2).long()
        tables = _tables(images.shape[1], images.shape[2], images.device)
        shaped = operation[:, None, None, None]
        images = _blended(images, shaped, tables.factors[row][:, None, None, None])
        images = _looked_up(images, shaped, tables.values[row])
        return _moved(batch._replace(inputs=images), tables.matrices[row])


class _Tables(NamedTuple):
    """Everything that depends on the operation, the strength and the sign only: one row for each."""

    matrices: "Tensor"
    """(rows, 6): where the pixel at (x, y) comes from, in units of 1 / 65536 pixel."""
    factors: "Tensor"
    """(rows,): the share of the image in a blend; 1 for all operations that are no blends."""
    values: "Tensor"
    """(rows, 256): the new value of each pixel value."""


@cache
def _tables(height: int, width: int, device: "torch.device") -> _Tables:
    import torch

    rows = [
        (name, most * k / (_BINS - 1), sign)
        for name, most in _STRONGEST.items()
        for k in range(_BINS)
        for sign in (1, -1)
    ]
    blends = ("colour", "contrast", "sharpness")
    factors = [1 + sign * strength if name in blends else 1.0 for name, strength, sign in rows]
    return _Tables(
        torch.tensor([_matrix(name, sign * strength, height, width) for name, strength, sign in rows], device=device),
        torch.tensor(factors, dtype=torch.float32, device=device),
        torch.from_numpy(np.stack([_values(*row) for row in rows])).to(device),
    )


def _matrix(operation: str, strength: float, height: int, width: int) -> tuple[int, ...]:
    """The affine map from a pixel to its source, in Pillow's fixed-point numbers; (0, 0) is the centre of a pixel."""
    a, b, c, d, e, f = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    if operation == "shear_x":
        b = strength
    elif operation == "shear_y":
        d = strength
    elif operation == "translate_x":
        c = -float(int(strength))
    elif operation == "translate_y":
        f = -float(int(strength))
    elif operation == "rotate":  # about the centre of the image
        angle = -math.radians(strength % 360)
        a = e = round(math.cos(angle), 15)
        b, d = round(math.sin(angle), 15), round(-math.sin(angle), 15)
        c = a * -width / 2 + b * -height / 2 + width / 2
        f = d * -width / 2 + e * -height / 2 + height / 2
    return tuple(
        math.floor(value * 65536 + 0.5) for value in (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    )


def _values(operation: str, strength: float, sign: int) -> NDArray[np.float32]:
    """The table of an operation that maps every pixel value by itself; the others map a value to itself."""
    values = np.arange(256, dtype=np.float32)
    if operation == "brightness":
        values = np.floor(np.float32(1 + sign * strength) * values).clip(0, 255)
    elif operation == "posterize":
        values -= values % 2 ** round(strength)  # the lowest bits
    elif operation == "solarize":
        values = np.where(values < 255 - strength, values, 255 - values)
    return values


def _blended(images: "Tensor", operation: "Tensor", factor: "Tensor") -> "Tensor":
    """Colour, contrast and sharpness: blend with grey, with the mean grey, or with a smooth image."""
    import torch

    grey = images
    if images.shape[3] == 3:
        grey = (((images * constant(_GREY, images.device)).sum(3, keepdim=True) + 32768) / 65536).floor()
    pixels = images.shape[1] * images.shape[2]
    mean = ((2 * grey.long().sum((1, 2), keepdim=True) + pixels) // (2 * pixels)).float()
    target = torch.where(operation == _COLOUR, grey, torch.where(operation == _CONTRAST, mean, _smooth(images)))
    return (target + factor * (images - target)).clamp(0, 255).floor()


def _smooth(images: "Tensor") -> "Tensor":
    """Pillow's SMOOTH: the mean of 3x3 pixels, the middle one counted five times; the border stays as it is."""
    rows = images[:, :-2] + images[:, 1:-1] + images[:, 2:]
    total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * images[:, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, 1:-1, 1:-1] = (total / 13 + 0.5).floor()
    return smooth


def _looked_up(images: "Tensor", operation: "Tensor", values: "Tensor") -> "Tensor":
    """Replace pixel values by those of a table (batch, 256), or of one for each channel that depends on the image."""
    import torch

    count, channels = images.shape[0], images.shape[3]
    # position of a pixel's value in the tables of all images and channels
    place = images.long() + 256 * torch.arange(count * channels, device=images.device).view(count, 1, 1, channels)
    histogram = torch.zeros(count * channels * 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(0, place.flatten(), torch.ones_like(place).flatten())
    low, high = images.amin((1, 2)), images.amax((1, 2))
    chosen = torch.where(
        operation[:, 0] == _AUTOCONTRAST,
        _autocontrast(low.double()[:, :, None], high.double()[:, :, None]),
        torch.where(
            operation[:, 0] == _EQUALIZE,
            _equalize(histogram.view(count, channels, 256), high.long()[:, :, None]),
            values[:, None, :],
        ),
    )
    return chosen.take(place)


def _autocontrast(low: "Tensor", high: "Tensor") -> "Tensor":
    """(batch, channels, 256): stretch the values from `low` to `high` (batch, channels, 1) to 0 … 255, in float64."""
    import torch

    values = torch.arange(256, dtype=torch.float64, device=low.device)
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # `255 / tensor` would round twice
    stretched = (values * scale + -low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, values).float()


def _equalize(histogram: "Tensor", high: "Tensor") -> "Tensor":
    """(batch, channels, 256): spread the values so that their histogram becomes flat; `high` is the largest value."""
    import torch

    total = histogram.cumsum(2)
    step = (total[:, :, -1:] - histogram.gather(2, high)) // 255
    spread = ((step // 2 + total - histogram) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, torch.arange(256, device=high.device)).float()


def _moved(batch: Batch, matrices: "Tensor") -> Batch:
    """Take every pixel from where its matrix (batch, 6) says, or from the padding: the nearest, as Pillow does."""
    import torch

    images, inside, device = batch.inputs, batch.inside, batch.inputs.device
    count, height, width, _ = images.shape
    x, y = torch.arange(width, device=device), torch.arange(height, device=device)[:, None]
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    columns, rows = a * x + b * y + c >> 16, d * x + e * y + f >> 16
    known = ((columns >= 0) & (columns < width) & (rows >= 0) & (rows < height))[..., None]
    source = torch.arange(count, device=device)[:, None, None], rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    assert batch.fill is not None
    return batch._replace(
        inputs=torch.where(known, images[source], batch.fill), inside=None if inside is None else inside[source] & known
    )
