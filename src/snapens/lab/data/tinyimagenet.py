"""Tiny ImageNet: 200 classes of 64 × 64 pixels, decoded once into a file beside the folder."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import DataError
from ...storage.durable import publish
from .archives import unpack
from .files import decoded, of_class
from .images import ImageData, Images
from .sources import find, missing

_FOLDER, _ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
_SIZE = 64


def read(root: Path) -> ImageData:
    """Read the folder, or the archive, which is unpacked first; tested on are the validation images."""
    folder = find(root, _FOLDER, "wnids.txt")
    if folder is None:
        if not (root / _ARCHIVE).is_file():
            raise missing(root, _FOLDER, _ARCHIVE)
        folder = unpack(root / _ARCHIVE, _FOLDER)
    wnids = (folder / "wnids.txt").read_text().split()
    train = [(path, wnid) for wnid in wnids for path in of_class(folder / "train" / wnid / "images")]
    rows = [line.split("\t") for line in (folder / "val/val_annotations.txt").read_text().splitlines()]
    val = sorted((folder / "val/images" / row[0], row[1]) for row in rows)
    labels = _labels([wnid for _, wnid in train + val], wnids, folder)
    pixels = _pixels(folder, [path for path, _ in train + val])
    return ImageData(
        "tinyimagenet",
        Images(pixels[: len(train)], labels[: len(train)]),
        Images(pixels[len(train) :], labels[len(train) :]),
        _names(folder, wnids),
        augmentation="crop-mirror-rgb",
        size=_SIZE,
    )


def _labels(found: Sequence[str], wnids: Sequence[str], folder: Path) -> NDArray[np.int64]:
    strangers = set(found) - set(wnids)
    if strangers:
        raise DataError(f"{folder / 'wnids.txt'} must name every class, but lacks {sorted(strangers)}: unpack it again")
    label = {wnid: index for index, wnid in enumerate(wnids)}
    return np.array([label[wnid] for wnid in found], np.int64)


def _names(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first word for each class, of `words.txt`: WNID, a tab, words between commas."""
    lines = (folder / "words.txt").read_text().splitlines()
    words = {wnid: text.split(",")[0] for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _pixels(folder: Path, paths: Sequence[Path]) -> NDArray[np.uint8]:
    """The decoded images, of the file that an earlier call left beside the folder if the names are still the same."""
    names = "\n".join(path.relative_to(folder).as_posix() for path in paths)
    key = hashlib.sha256(names.encode()).hexdigest()[:16]
    cache, shape = folder.with_name(f"{folder.name}-{len(paths)}-{key}.npy"), (len(paths), _SIZE, _SIZE, 3)
    with suppress(OSError, ValueError, EOFError):  # none yet, or not whole
        kept: NDArray[np.uint8] = np.load(cache, mmap_mode="c", allow_pickle=False)
        if kept.shape == shape and kept.dtype == np.uint8:
            return kept
    pixels, header = decoded(paths, _SIZE), BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(pixels))
    with suppress(OSError):  # a folder that cannot be written to is decoded each time
        publish(cache, [header.getvalue(), pixels.data.cast("B")])
    return pixels
