"""Images that are arrays already: in Python, or in an .npz file."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArgumentError, DataError, MissingDataError
from .images import Augmentation, ImageData, Images
from .splits import stratified


def from_arrays(
    x_train: NDArray[np.uint8],
    y_train: ArrayLike,
    x_test: NDArray[np.uint8] | None = None,
    y_test: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "arrays",
    augmentation: Augmentation = "none",
) -> ImageData:
    """Data of (images, size, size) or (images, size, size, channels) uint8 pixels and labels from 0.

    Without a test set, a tenth of every class is set aside as one. Arrays are not augmented unless
    `augmentation` says so: what leaves a class unchanged is known to their owner alone.

    Examples:
        >>> x = np.arange(20 * 8 * 8, dtype=np.uint8).reshape(20, 8, 8)
        >>> data = from_arrays(x, [0, 1] * 10, classes=["even", "odd"])
        >>> len(data.train), len(data.test), data.channels
        (18, 2, 1)
    """
    if (x_test is None) != (y_test is None):
        raise ArgumentError("x_test and y_test must be given together or not at all, got one of them: pass both")
    pixels = _pixels("x_train", x_train)
    _, size, _, channels = pixels.shape
    train = Images(pixels, _labels("y_train", y_train, len(pixels)))
    names = _numbered(train.labels) if classes is None else tuple(map(str, classes))
    if x_test is None or y_test is None:
        rest, aside = stratified(train.labels)
        train, test = train.take(rest), train.take(aside)
    else:
        pixels = _pixels("x_test", x_test)
        if pixels.shape[1:] != (size, size, channels):
            raise ArgumentError(
                f"x_test must have images like x_train's, of shape {(size, size, channels)}, got {pixels.shape[1:]}"
            )
        test = Images(pixels, _labels("y_test", y_test, len(pixels)))
    return ImageData(name, train, test, names, augmentation, size, channels)


def read(path: Path) -> ImageData:
    """The arrays `x_train`, `y_train`, and where there are `x_test`, `y_test` and `classes`, of an .npz file."""
    if not path.is_file():
        raise MissingDataError(f"data must be an .npz file for the dataset arrays, got {path}: check the path")
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as opened:
            content: dict[str, Any] = dict(opened)
    except (ValueError, EOFError, TypeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} must be an .npz file without pickled objects, got {error}: np.savez it") from error
    known = ("x_train", "y_train", "x_test", "y_test", "classes")
    if not {"x_train", "y_train"} <= content.keys() <= {*known}:
        raise DataError(
            f"{path} must hold x_train and y_train, and may hold {', '.join(known[2:])}, got {sorted(content)}"
        )
    classes = content.get("classes")
    if classes is not None and (classes.dtype.kind != "U" or classes.ndim != 1):
        raise DataError(f"classes must be one text a class, got {classes.dtype} of shape {classes.shape} in {path}")
    return from_arrays(**content, name=path.stem)


def _pixels(argument: str, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8:
        raise ArgumentError(
            f"{argument} must be uint8, from 0 to 255, got {pixels.dtype}: "
            "for values from 0 to 1, (255 * x).round().astype(np.uint8)"
        )
    if pixels.ndim not in (3, 4) or pixels.shape[1] != pixels.shape[2] or 0 in pixels.shape:
        raise ArgumentError(
            f"{argument} must be (images, size, size) or (images, size, size, channels), got {pixels.shape}: "
            "channels go last, and images are square"
        )
    return np.ascontiguousarray(pixels if pixels.ndim == 4 else pixels[..., None])


def _labels(argument: str, labels: ArrayLike, images: int) -> NDArray[np.int64]:
    found = np.asarray(labels)
    if found.dtype.kind not in "iu" or found.shape != (images,):
        raise ArgumentError(
            f"{argument} must be {images} whole numbers, one an image, got {found.dtype} of shape {found.shape}"
        )
    return found.astype(np.int64)


def _numbered(labels: NDArray[np.int64]) -> tuple[str, ...]:
    found = np.unique(labels)
    if not np.array_equal(found, np.arange(len(found))):
        raise ArgumentError(
            f"y_train must count classes from 0 without gaps, got {len(found)} labels from {found[0]} to {found[-1]}: "
            "number them anew, y = np.unique(y, return_inverse=True)[1], or pass classes"
        )
    return tuple(map(str, found))
