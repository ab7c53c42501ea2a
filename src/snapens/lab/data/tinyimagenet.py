"""Tiny ImageNet: 200 classes of 64 × 64 pixels, decoded once into a file next to the folder."""

import re
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import DataError, shortened
from ...storage.durable import publish, sweep
from .archives import unpack
from .files import PhotoFiles, decoded, of_class
from .images import ImageData, Images
from .sources import content, find, missing, parsing

_FOLDER, _ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
_ANNOTATIONS = "val/val_annotations.txt"
_SIZE = 64
_REMEDY = "unpack the archive again"


def read(root: Path) -> ImageData:
    """Read the folder, or unpack the archive first; the validation images are the test set."""
    folder = find(root, _FOLDER, "wnids.txt")
    if folder is None:
        if not (root / _ARCHIVE).is_file():
            raise missing(root, _FOLDER, _ARCHIVE)
        folder = unpack(root / _ARCHIVE, _FOLDER)
    with parsing(folder / "wnids.txt", "a list of classes", _REMEDY):
        wnids = content(folder / "wnids.txt").decode().split()
        train = [(name, wnid) for wnid in wnids for name in of_class(folder, f"train/{wnid}/images")]
    if empty := set(wnids) - {wnid for _, wnid in train}:
        raise DataError(
            f"{folder / 'train'} must have images of each class in wnids.txt, "
            f"got none of {shortened(sorted(empty))}: {_REMEDY}"
        )
    annotations = folder / _ANNOTATIONS
    with parsing(annotations, "lines of a file name, a tab and a class", _REMEDY):
        rows = [line.split("\t") for line in content(annotations).decode().splitlines()]
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
            f"{folder / _ANNOTATIONS} must name classes of wnids.txt, got also {shortened(sorted(unknown))}: {_REMEDY}"
        )
    label = {wnid: index for index, wnid in enumerate(wnids)}
    return np.array([label[wnid] for wnid in found], np.int64)


def _names(folder: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """The first name of each class in `words.txt`, whose lines are a WNID, a tab and names separated by commas."""
    with parsing(folder / "words.txt", "text in UTF-8", _REMEDY):
        lines = content(folder / "words.txt").decode().splitlines()
    words = {wnid: text.split(",")[0] for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(words.get(wnid, wnid) for wnid in wnids)


def _pixels(folder: Path, names: Sequence[str]) -> NDArray[np.uint8]:
    """The decoded images: from the file that an earlier call wrote, if the files are the same, else decoded now."""
    files, shape = PhotoFiles(folder, names), (len(names), _SIZE, _SIZE, 3)
    cache = folder.with_name(f"{folder.name}-{len(names)}-{files.version()[:16]}.npy")
    if cache.is_file():
        with suppress(Exception):  # an incomplete or foreign file can raise an exception of any type
            kept: NDArray[np.uint8] = np.load(cache, mmap_mode="c", allow_pickle=False)
            if kept.shape == shape and kept.dtype == np.uint8:
                return kept
    pixels, header = decoded(files, _SIZE), BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(pixels))
    with suppress(OSError):  # without the right to write, the images are decoded each time
        publish(cache, [header.getvalue(), pixels.data.cast("B")])
        sweep(cache.parent, re.compile(rf"{re.escape(folder.name)}-\d+-[0-9a-f]{{16}}\.npy"), [cache.name])
    return pixels
