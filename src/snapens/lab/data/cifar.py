"""CIFAR-10 and CIFAR-100, from the binary or the Python version, unpacked or as an archive.

A file must be a whole number of records. In an unpacked folder, a file that was cut exactly between two
records is not detected; an archive is checked by its MD5.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from . import pickles
from .archives import unpack
from .images import ImageData, Images
from .sources import content, find, missing, parsing

_PIXELS = 3 * 32 * 32
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Version:
    """A published form of the images: an archive with one folder, and its files."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    pickled: bool = False


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets; `labels` and `names` are keys of the Python version."""

    name: str
    classes: tuple[str, ...]
    label_bytes: int
    labels: str
    names: str
    versions: tuple[Version, ...]


_BATCHES = tuple(f"data_batch_{batch}" for batch in range(1, 6))
_BINARY_BATCHES = tuple(f"{name}.bin" for name in _BATCHES)
CIFAR10 = Cifar(
    "cifar10",
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    label_bytes=1,
    labels="labels",
    names="label_names",
    versions=(
        Version(
            "cifar-10-binary.tar.gz", "cifar-10-batches-bin", _BINARY_BATCHES, "test_batch.bin", "batches.meta.txt"
        ),
        Version("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", pickled=True),
    ),
)
CIFAR100 = Cifar(
    "cifar100",
    tuple(_FINE.split()),
    label_bytes=2,  # the coarse label, then the fine label, which is used
    labels="fine_labels",
    names="fine_label_names",
    versions=(
        Version("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt"),
        Version("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", "meta", pickled=True),
    ),
)


def read(cifar: Cifar, root: Path) -> ImageData:
    """Read the version that `root` holds; an archive is unpacked there first."""
    version, folder = _found(cifar, root)
    for name in (*version.train, version.test):
        if not (folder / name).is_file():
            raise DataError(f"{folder} must hold {name}, which is missing: unpack {version.archive} again")
    batches = [_images(cifar, version, folder / name) for name in version.train]
    train = Images(np.concatenate([b.pixels for b in batches]), np.concatenate([b.labels for b in batches]))
    test = _images(cifar, version, folder / version.test)
    return ImageData(cifar.name, train, test, _classes(cifar, version, folder), "crop-mirror", size=32)


def _found(cifar: Cifar, root: Path) -> tuple[Version, Path]:
    for version in cifar.versions:
        folder = find(root, version.folder, version.train[0])
        if folder is not None:
            return version, folder
    for version in cifar.versions:
        if (root / version.archive).is_file():
            return version, unpack(root / version.archive, version.folder)
    raise missing(root, *(version.folder for version in cifar.versions), *(v.archive for v in cifar.versions))


def _images(cifar: Cifar, version: Version, path: Path) -> Images:
    planes, labels = _pickled(path, cifar.labels) if version.pickled else _binary(path, cifar.label_bytes)
    if labels.min() < 0 or labels.max() >= len(cifar.classes):
        raise DataError(
            f"{path} must have labels between 0 and {len(cifar.classes) - 1}, "
            f"got {labels.min()} to {labels.max()}: download {version.archive} again"
        )
    # the files hold a red, a green and a blue plane; the lab has the channels last
    return Images(np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels)


def _binary(path: Path, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    record, flat = label_bytes + _PIXELS, np.frombuffer(content(path), np.uint8)
    if not len(flat) or len(flat) % record:
        raise DataError(
            f"{path} must be a whole number of records of {record} bytes, got {len(flat)} bytes: "
            "it is incomplete or another file; download it again"
        )
    records = flat.reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _pickled(path: Path, key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = pickles.read(path)
    planes, labels = batch.get("data"), batch.get(key)
    if not (
        isinstance(planes, np.ndarray)
        and isinstance(labels, list)
        and planes.shape == (len(labels), _PIXELS)
        and all(type(label) is int and abs(label) < 1 << 31 for label in labels)
        and labels
    ):
        raise DataError(f"{path} must hold (images, {_PIXELS}) uint8 'data' and as many {key!r}: download it again")
    return planes, np.array(labels, np.int64)


def _classes(cifar: Cifar, version: Version, folder: Path) -> tuple[str, ...]:
    path = folder / version.names
    if not path.is_file():
        return cifar.classes
    with parsing(path, "a list of class names", "download it again"):
        found = pickles.read(path).get(cifar.names, []) if version.pickled else content(path).split()
        names = tuple(name if isinstance(name, str) else name.decode() for name in found)
    if len(names) != len(cifar.classes):
        raise DataError(f"{path} must name {len(cifar.classes)} classes, got {len(names)}: download it again")
    return names
