"""The gallery: the test images on which a run's members disagree most, kept with the run for its report."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ... import metrics
from ...errors import DamagedError
from ...outputs import Outputs
from ...storage import tensorfile
from .run import Run, publish

IMAGES = 60
"""How many are kept."""
_MOST_PIXELS = 96  # of a side
_CHUNK = 1000  # examples at a time: ImageNet's outputs fill the memory once, not five times


@dataclass(frozen=True)
class Gallery:
    """Test images: where they stand among all, and uint8 pixels (images, height, width, channels)."""

    indices: NDArray[np.int64]
    pixels: NDArray[np.uint8]


def disputed(outputs: Outputs, count: int = IMAGES) -> NDArray[np.int64]:
    """The examples with the most mutual information between members and answer, the most first; ties by index."""
    p = outputs.probabilities
    information = [metrics.mutual_information(p[:, k : k + _CHUNK]) for k in range(0, p.shape[1], _CHUNK)]
    return np.argsort(-np.concatenate(information), kind="stable")[:count].astype(np.int64)


def keep(run: Run, pixels: Callable[[NDArray[np.int64]], NDArray[np.uint8]]) -> None:
    """Choose among the test images and store them in the run folder; `pixels` reads those of some indices."""
    indices = disputed(run.outputs())
    tensors = {"indices": torch.from_numpy(indices), "pixels": torch.from_numpy(_shrunk(pixels(indices)))}
    publish(run.path / "gallery.safetensors", tensorfile.encode(tensors))


def read(run: Run) -> Gallery | None:
    """The images kept with a run, if some were."""
    path = run.path / "gallery.safetensors"
    if not path.exists():
        return None
    stored = {name: entry.read().numpy() for name, entry in tensorfile.entries(path).items()}
    try:
        indices, pixels = stored["indices"], stored["pixels"]
        sound = (indices.dtype.name, pixels.dtype.name) == ("int64", "uint8") and indices.shape == pixels.shape[:1]
        if not sound or pixels.ndim != 4 or 0 in pixels.shape[1:]:
            raise ValueError(f"{indices.dtype} {indices.shape}, {pixels.dtype} {pixels.shape}")
    except (KeyError, ValueError) as error:
        raise DamagedError(f"{path} must hold indices, and uint8 pixels for each, got {error}: remove it") from error
    return Gallery(indices, pixels)


def _shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Means of square blocks, so that no side is longer than a thumbnail's; what does not fill a block is cut off."""
    images, height, width, channels = pixels.shape
    side = -(-max(height, width) // _MOST_PIXELS)
    if side == 1:
        return np.ascontiguousarray(pixels)
    side = min(side, height, width)
    rows, columns = height // side, width // side
    blocks = pixels[:, : rows * side, : columns * side].reshape(images, rows, side, columns, side, channels)
    means: NDArray[np.uint8] = blocks.mean((2, 4)).round().astype(np.uint8)
    return means
