"""Data sets by name; each is read from its files into `ImageData` or `TableData`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import ArgumentError, DataError, MissingDataError
from ..recipe.value import look_up
from . import arrays, cifar, folder, glyphs, imagenet, svhn, tinyimagenet
from .protocol import Data
from .sources import cache_folder


@dataclass(frozen=True)
class Reader:
    """How a data set is read from a folder; `own` says what the user must provide, "" for public data sets."""

    read: Callable[[Path], Data]
    own: str = ""
    holds_out: bool = False
    """Whether `snapens train` holds out a tenth of the training examples by default."""


DATASETS = {
    "arrays": Reader(arrays.read, own="an .npz file with x_train and y_train", holds_out=True),
    "cifar10": Reader(partial(cifar.read, cifar.CIFAR10)),
    "cifar100": Reader(partial(cifar.read, cifar.CIFAR100)),
    "folder": Reader(folder.read, own="a folder with one sub-folder of images per class", holds_out=True),
    "glyphs": Reader(lambda _: glyphs.load()),
    "imagenet": Reader(imagenet.read, own="a folder with train/WNID/*.JPEG and val/WNID/*.JPEG"),
    "svhn": Reader(partial(svhn.read, "svhn", svhn.TRAIN)),
    "svhn-extra": Reader(partial(svhn.read, "svhn-extra", svhn.TRAIN_AND_EXTRA)),
    "tinyimagenet": Reader(tinyimagenet.read),
}


def load(
    name: str, root: Path | None, *, download: bool = False, progress: Callable[[int, int], object] | None = None
) -> Data:
    """Read a data set from `root`, by default the cache folder; with `download`, missing files are downloaded first.

    `progress` is called with the number of bytes that have arrived and the size of the file.
    """
    reader = look_up("dataset", name, DATASETS)
    if root is None and reader.own:
        raise ArgumentError(f"data must be {reader.own}, got none: pass it with --data or the variable SNAPENS_DATA")
    place = cache_folder() if root is None else Path(root).expanduser()
    try:
        return _downloaded(reader, place, progress) if download else reader.read(place)
    except MissingDataError as error:
        if reader.own or (own := _own(place)) is None:
            raise
        raise MissingDataError(
            f"{error}. {place} looks like your own data: use --dataset {own}", error.source
        ) from error
    except ArgumentError as error:
        raise DataError(f"{place}: {error}") from error
    except OSError as error:
        raise DataError(
            f"{name} must be readable in {place}, got {error}: check the files and their permissions"
        ) from error


def _own(place: Path) -> str | None:
    """The data set of a user's own that a path looks like."""
    if place.suffix == ".npz" and place.is_file():
        return "arrays"
    with suppress(OSError):
        return "folder" if folder.holds_classes(place) else None
    return None


def _downloaded(reader: Reader, place: Path, progress: Callable[[int, int], object] | None) -> Data:
    from .download import fetch  # its imports are slow

    file = None
    while True:
        try:
            return reader.read(place)
        except MissingDataError as error:
            if error.source is None or error.source == file:
                raise
            file = error.source
        fetch(file, place, progress)
