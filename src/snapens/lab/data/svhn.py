"""The cropped digits of SVHN, with or without the 531,131 extra images; the paper's recipes hold out 6,000 images.

Only the published files are read: their MD5 is checked each time.
"""

from pathlib import Path

import numpy as np

from ...extras import package
from .images import ImageData, Images
from .sources import confirm, find, missing

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
    confirm(path, path.name)  # one wrong bit can crash SciPy's reader, and the process with it
    content = matlab.loadmat(path, variable_names=("X", "y"))
    labels = content["y"][:, 0].astype(np.int64) % 10  # 10 stands for the digit 0
    return Images(np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2)), labels)
