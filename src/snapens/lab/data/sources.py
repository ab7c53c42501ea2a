"""The sources of the public data sets, and functions that find and check their files."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...errors import DataError, MissingDataError, SnapensError, StoreError
from ...storage import durable

_LARGEST_FILE = 1 << 29  # of the files that are read as a whole


@dataclass(frozen=True)
class Source:
    """A file of a public data set: its address, and its MD5 in hexadecimal."""

    url: str
    md5: str


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers"

SOURCES = {
    # MD5s as printed on https://www.cs.toronto.edu/~kriz/cifar.html
    "cifar-10-binary.tar.gz": Source(f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar-10-python.tar.gz": Source(f"{_TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar-100-binary.tar.gz": Source(f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    "cifar-100-python.tar.gz": Source(f"{_TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    # addresses of http://ufldl.stanford.edu/housenumbers, MD5s of torchvision.datasets.SVHN
    "train_32x32.mat": Source(f"{_HOUSE_NUMBERS}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "test_32x32.mat": Source(f"{_HOUSE_NUMBERS}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    "extra_32x32.mat": Source(f"{_HOUSE_NUMBERS}/extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
    # the course publishes no MD5; avalanche and many other libraries check this one
    "tiny-imagenet-200.zip": Source(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
    ),
}
"""Keyed by file name."""


def cache_folder() -> Path:
    """The folder of the data if none is given."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snapens"


def confirm(path: Path, name: str) -> None:
    """Reject a file whose MD5 differs from that of the source of this name."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != SOURCES[name].md5:
        raise DataError(
            f"{path} must have the MD5 {SOURCES[name].md5}, got {found}: "
            f"remove it and download it again from {SOURCES[name].url}"
        )


def find(root: Path, folder: str, file: str) -> Path | None:
    """The folder that holds the file `file`: `root`/`folder`, or `root` itself."""
    return next((place for place in (root / folder, root) if (place / file).is_file()), None)


def content(path: Path) -> bytes:
    """The bytes of a regular file of limited size: a FIFO would block, and a device or a hole could fill the memory."""
    try:
        return durable.contents(path, _LARGEST_FILE)
    except StoreError as error:
        raise DataError(str(error)) from error


@contextmanager
def parsing(path: Path, form: str, remedy: str) -> Iterator[None]:
    """Turn any error about the content of a file into ours: damage can make a parser raise an exception of any type."""
    try:
        yield
    except SnapensError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # of the disk, not of a parser
            raise
        raise DataError(f"{path} must be {form}, got {type(error).__name__}: {error}: {remedy}") from error


def missing(root: Path, *places: str) -> MissingDataError:
    """The error for a `root` that has none of these files and folders."""
    source = next((place for place in places if place in SOURCES), None)
    download = f", or download it from {SOURCES[source].url}, as --download does" if source else ""
    return MissingDataError(
        f"data must be a folder that holds {' or '.join(places)}, got {root}: put it there, "
        f"or name the folder that holds it with --data or the variable SNAPENS_DATA{download}",
        source,
    )
