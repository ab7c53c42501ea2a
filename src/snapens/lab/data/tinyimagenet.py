"""Tiny ImageNet: 200 classes of 64 × 64 pixels, decoded once into a file next to the folder."""

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
from .files import PhotoFiles, decoded, of_class
from .images import ImageData, Images
from .sources import find, missing, regular

_FOLDER, _ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
_SIZE = 64


def read(root: Path) -> ImageData:
    """Read the folder, or unpack the archive first; the validation images are the test set."""
    folder = find(root, _FOLDER, "wnids.txt")
    if folder is None:
        if not (root / _ARCHIVE).is_file():
            raise missing(root, _FOLDER, _ARCHIVE)
        folder = unpack(root / _ARCHIVE, _FOLDER)
    wnids = regular(folder / "wnids.txt").read_text().split()
    train = [(name, wnid) for wnid in wnids for name in of_class(folder, f"train/{wnid}/images")]
    rows = [line.split("\t") for line in regular(folder / "val/val_annotations.txt").read_text().splitlines()]
    val = sorted((f"val/images/{row[0]}", row[1]) for row in rows)
    labels = _labels([wnid for _, wnid in train + val], wnids, folder)
    names = [name for name, _ in train + val]
    pixels, count = _pixels(folder, names), len(train)
    return ImageData(
        "tinyimagenet",
        Images(pixels[:count], labels[:count], names[:count]),
        Images(pixels[count:], labels[count:], names[count:]),
        _names(folder, wnids),
        augmentation="crop-mirror-rgb",
        size=_SIZE,
    )


def _labels(found: Sequence[str], wnids: Sequence[str], folder: Path) -> NDArray[np.int64]:
    if unknown := set(found) - set(wnids):
        raise DataError(
            f"{folder / 'wnids.txt'} must list every class, but {sorted(unknown)} is missing: unpack the archive again"
        )
    label = {wnid: index for index, wnid in enumerate(wnids)}
    return np.array([label[wnid] for wnid in found], np.int64)


def _names(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first name of each class in `words.txt`, whose lines are a WNID, a tab and names separated by commas."""
    lines = regular(folder / "words.txt").read_text().splitlines()
    words = {wnid: text.split(",")[0] for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _pixels(folder: Path, names: Sequence[str]) -> NDArray[np.uint8]:
    """The decoded images: from the file that an earlier call wrote, if the names are the same, else decoded now."""
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    cache, shape = folder.with_name(f"{folder.name}-{len(names)}-{key}.npy"), (len(names), _SIZE, _SIZE, 3)
    with suppress(OSError, ValueError, EOFError):  # the file is missing or incomplete
        kept: NDArray[np.uint8] = np.load(regular(cache), mmap_mode="c", allow_pickle=False)
        if kept.shape == shape and kept.dtype == np.uint8:
            return kept
    pixels, header = decoded(PhotoFiles(folder, names), _SIZE), BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(pixels))
    with suppress(OSError):  # without the right to write, the images are decoded each time
        publish(cache, [header.getvalue(), pixels.data.cast("B")])
    return pixels
