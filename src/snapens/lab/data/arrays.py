"""Images from arrays in Python or in an .npz file."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArgumentError, DataError, MissingDataError
from .images import Augmentation, ImageData, Images
from .labels import checked_labels, numbered, require_both
from .sources import parsing
from .splits import stratified
from .tables import TableData, from_table


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

    Without a test set, a tenth of every class becomes the test set. By default arrays are not augmented,
    because only their owner knows which changes leave the class of an image unchanged.

    Examples:
        >>> x = np.arange(20 * 8 * 8, dtype=np.uint8).reshape(20, 8, 8)
        >>> data = from_arrays(x, [0, 1] * 10, classes=["even", "odd"])
        >>> len(data.train), len(data.test), data.channels
        (18, 2, 1)
    """
    require_both(x_test, y_test)
    pixels = _pixels("x_train", x_train)
    _, size, _, channels = pixels.shape
    train = Images(pixels, checked_labels("y_train", y_train, len(pixels)))
    names = numbered(train.labels) if classes is None else tuple(map(str, classes))
    if x_test is None or y_test is None:
        trained, tested = stratified(train.labels)
        train, test = train.take(trained), train.take(tested)
    else:
        pixels = _pixels("x_test", x_test)
        if pixels.shape[1:] != (size, size, channels):
            raise ArgumentError(
                f"x_test must have images of the shape of x_train, {(size, size, channels)}, got {pixels.shape[1:]}"
            )
        test = Images(pixels, checked_labels("y_test", y_test, len(pixels)))
    return ImageData(name, train, test, names, augmentation, size, channels)


def read(path: Path) -> ImageData | TableData:
    """Read an .npz file with the arrays `x_train`, `y_train` and, optionally, `x_test`, `y_test` and `classes`.

    A two-dimensional `x_train` is a table of numbers.
    """
    if not path.is_file():
        raise MissingDataError(f"data must be an .npz file for the dataset arrays, got {path}: check the path")
    with (
        parsing(path, "an .npz file without pickled objects", "write it with np.savez"),
        zipfile.ZipFile(path),
        np.load(path, allow_pickle=False) as opened,
    ):
        content: dict[str, Any] = dict(opened)
    known = ("x_train", "y_train", "x_test", "y_test", "classes")
    if not {"x_train", "y_train"} <= content.keys() <= {*known}:
        raise DataError(
            f"{path} must hold x_train and y_train and may hold {', '.join(known[2:])}, got {sorted(content)}"
        )
    classes = content.get("classes")
    if classes is not None and (classes.dtype.kind != "U" or classes.ndim != 1):
        raise DataError(f"classes must be one string per class, got {classes.dtype} of shape {classes.shape} in {path}")
    reader = from_table if content["x_train"].ndim == 2 else from_arrays
    return reader(**content, name=path.stem)


def _pixels(argument: str, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8:
        raise ArgumentError(
            f"{argument} must be uint8, from 0 to 255, got {pixels.dtype}: "
            "convert values from 0 to 1 with (255 * x).round().astype(np.uint8)"
        )
    if pixels.ndim not in (3, 4) or pixels.shape[1] != pixels.shape[2] or 0 in pixels.shape:
        raise ArgumentError(
            f"{argument} must be (images, size, size) or (images, size, size, channels), got {pixels.shape}: "
            "put the channels last, and make the images square"
        )
    return np.ascontiguousarray(pixels if pixels.ndim == 4 else pixels[..., None])
