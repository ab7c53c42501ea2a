"""The gallery: the test images on which a run's members disagree most, stored with the run for its report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ... import metrics
from ...errors import ArgumentError, DamagedError
from ...outputs import Outputs
from ...quality import blocks
from ...storage import durable, sealed, tensorfile
from ...storage.generations import Generations
from ...storage.manifest import FileRecord
from ...storage.tensorfile import About
from ..recipe.preprocessing import has_rows
from .run import Run

IMAGES = 60
"""The largest number of images that are stored."""
_FORMAT_1 = "gallery.safetensors"
_MOST_PIXELS = 96  # of a side


@dataclass(frozen=True)
class Gallery:
    """Test images: their indices in the test set, uint8 pixels (images, height, width, channels), and optional names.

    A name is the path of the image's file, relative to the folder of the data set.
    """

    indices: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Record(FileRecord):
    """The content of `gallery.json`."""

    indices: tuple[int, ...]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names is not None and len(self.names) != len(self.indices):
            raise ArgumentError(f"names must be one per index ({len(self.indices)}), got {len(self.names)}")


def disputed(outputs: Outputs, count: int = IMAGES) -> NDArray[np.int64]:
    """The examples for which members predict different classes, ordered by decreasing mutual information.

    Ties are ordered by index.
    """
    indices, information = [], []
    for rows, p in blocks(outputs.log_probabilities):
        choices = p.argmax(-1)
        differ = np.flatnonzero((choices != choices[0]).any(0))
        indices.append(rows.start + differ)
        information.append(metrics.mutual_information(p[:, differ]) if len(differ) else np.empty(0))
    order = np.argsort(-np.concatenate(information), kind="stable")[:count]
    return np.concatenate(indices)[order].astype(np.int64)


def keep(
    run: Run,
    pixels: Callable[[NDArray[np.int64]], NDArray[np.uint8] | None],
    name: Callable[[int], str | None] = lambda index: None,
) -> None:
    """Choose test images and store them in the run folder.

    `pixels` reads the images with some indices; if it returns None, because examples are not images, nothing is stored.
    `name` returns the file name of an image, or None for images without files.
    """
    indices = disputed(run.outputs())
    if not len(indices) or (chosen := pixels(indices)) is None:
        return
    names = [name(index) for index in indices.tolist()]
    tensors, identity = {"pixels": torch.from_numpy(_shrunk(chosen))}, str(run.identity)
    files = Generations(run.path / "gallery.json", run.path, "gallery", previous=False)
    path = files.file("gallery")
    with durable.writing(path):
        digest = tensorfile.save(path, tensors, About(identity, "gallery"))
        record = _Record(path.name, digest, tuple(indices.tolist()), None if None in names else tuple(map(str, names)))
        files.commit(sealed.encode("gallery", identity, asdict(record)), [path.name])


def is_intact(run: Run, outputs: Outputs) -> bool:
    """Whether the images of a finished run are stored, if there are any on which its members disagree."""
    try:
        stored = read(run, len(outputs.labels)) is not None
    except DamagedError:
        return False
    return stored or has_rows(run.data) or not len(disputed(outputs, 1))


def read(run: Run, examples: int | None = None) -> Gallery | None:
    """The images stored with a run, which are some of its test `examples`; None if there are none."""
    if not any(durable.exists(run.path / name) for name in ("gallery.json", _FORMAT_1)):
        return None
    indices, names, path = _found(run)
    pixels = tensorfile.header(path)[0].get("pixels")
    if pixels is None or pixels.dtype != torch.uint8 or len(pixels.shape) != 4 or 0 in pixels.shape[1:]:
        raise DamagedError(f"{path} must hold uint8 pixels (images, height, width, channels): remove it")
    if len(indices) != pixels.shape[0]:
        raise DamagedError(f"{path} must hold an image per index ({len(indices)}), got {pixels.shape[0]}: remove it")
    if examples is not None and len(indices) and not 0 <= indices.min() <= indices.max() < examples:
        raise DamagedError(f"{path} must show some of the {examples} test images, got image {indices.max()}: remove it")
    return Gallery(indices, pixels.read().numpy(), names)


def _found(run: Run) -> tuple[NDArray[np.int64], tuple[str, ...] | None, Path]:
    """The indices and names of the images, and the file that holds their pixels."""
    try:
        path = run.path / "gallery.json"
        record = sealed.decode(path, durable.contents(path), "gallery", _Record, run=run.identity).value
    except FileNotFoundError:
        path = run.path / _FORMAT_1
        indices = tensorfile.header(path)[0].get("indices")
        if indices is None or indices.dtype != torch.int64 or len(indices.shape) != 1:
            raise DamagedError(f"{path} must hold int64 indices: remove it") from None
        return indices.read().numpy(), None, path
    path = run.path / record.file
    durable.check(path, record.digest, "gallery.json")
    return np.array(record.indices, np.int64), record.names, path


def _shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Downscale images to thumbnails by means of square blocks; pixels that do not fill a block are cut off."""
    images, height, width, channels = pixels.shape
    side = -(-max(height, width) // _MOST_PIXELS)
    if side == 1:
        return np.ascontiguousarray(pixels)
    side = min(side, height, width)
    rows, columns = height // side, width // side
    blocks = pixels[:, : rows * side, : columns * side].reshape(images, rows, side, columns, side, channels)
    means: NDArray[np.uint8] = blocks.mean((2, 4)).round().astype(np.uint8)
    return means
