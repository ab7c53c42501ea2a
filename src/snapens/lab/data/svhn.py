"""The cropped digits of SVHN, with or without the 531,131 extra images; the paper's recipes hold out 6,000 images."""

from pathlib import Path

import numpy as np

from ...errors import DataError
from ...extras import package
from .images import ImageData, Images
from .sources import find, missing

TRAIN = ("train_32x32.mat",)
TRAIN_AND_EXTRA = ("train_32x32.mat", "extra_32x32.mat")
TEST = "test_32x32.mat"


def read(name: str, train: tuple[str, ...], root: Path) -> ImageData:
    """Read the files `train` and the test file."""
    *parts, test = [_images(path) for path in [_found(root, file) for file in (*train, TEST)]]
    return ImageData(
        name,
        Images(np.concatenate([part.pixels for part in parts]), np.concatenate([part.labels for part in parts])),
        test,
        classes=tuple("0123456789"),
        augmentation="none",
        size=32,
        mean=(0.0, 0.0, 0.0),
        deviation=(255.0, 255.0, 255.0),
    )


def _found(root: Path, file: str) -> Path:
    folder = find(root, "svhn", file)
    if folder is None:
        raise missing(root, file)
    return folder / file


def _images(path: Path) -> Images:
    matlab = package("scipy.io", "data")
    try:
        content = matlab.loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # a damaged file can raise an exception of any type
        raise DataError(
            f"{path} must be a MATLAB file, got {type(error).__name__}: {error}: remove it, and use --download"
        ) from error
    pixels, digits = content.get("X", np.empty(0)), content.get("y", np.empty(0))
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3) or digits.shape != (*pixels.shape[3:], 1):
        raise DataError(
            f"{path} must hold X (32, 32, 3, images) of uint8 and y (images, 1), "
            f"got X {pixels.shape} of {pixels.dtype} and y {digits.shape}: remove it, and use --download"
        )
    if not np.isin(digits, np.arange(1, 11)).all():
        raise DataError(
            f"{path} must have labels from 1 to 10, got {digits.min()} to {digits.max()}: download it again"
        )
    labels = digits[:, 0].astype(np.int64) % 10  # 10 stands for the digit 0
    return Images(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), labels)
