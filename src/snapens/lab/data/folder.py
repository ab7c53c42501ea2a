"""Anyone's folder of images: one sub-folder a class, with or without a split into train and test."""

import hashlib
import json
import logging
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...errors import DataError, MissingDataError
from ...storage.durable import publish
from .files import PhotoFiles, decoded, of_class, sizes
from .images import ImageData, Images

log = logging.getLogger("snapens")

SMALL = 64
"""Images of one size up to this are held in memory as they are; others are cropped to 224."""
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_DEVIATION = (58.395, 57.12, 57.375)


def read(root: Path) -> ImageData:
    """Read `root`/train/CLASS and `root`/test/CLASS (or val), or `root`/CLASS and set a tenth of each class aside.

    Where there are both, `test` is tested on and `val` is held out. Every file is checked first.
    """
    if not root.is_dir():
        raise MissingDataError(f"data must be a folder of images for the dataset folder, got {root}: check the path")
    parent = root / "train" if subfolders(root / "train") else root
    classes = subfolders(parent)
    if len(classes) < 2:
        raise DataError(f"{parent} must have a sub-folder for each of at least 2 classes, got {list(classes)}")
    splits = {"train": listed(parent, classes)}
    for name in ("test", "val"):
        if parent != root and (root / name).is_dir():
            splits[name] = listed(root / name, classes)
    splits = _split(root, splits["train"]) if len(splits) == 1 else splits
    found = sizes([path for paths, _ in splits.values() for path in paths])
    (width, height), *others = found
    small = not others and width == height <= SMALL
    if not small and max(max(size) for size in found) <= SMALL:
        shown = ", ".join(f"{width} × {height}" for width, height in sorted(found)[:5])
        log.warning("images of %s are enlarged to 224 × 224: only squares of one size are taken as they are", shown)
    images = {
        name: Images(decoded(paths, width) if small else PhotoFiles(paths), labels)
        for name, (paths, labels) in splits.items()
    }
    test = images.pop("test", None) or images.pop("val")
    return ImageData(
        root.resolve().name,
        images["train"],
        test,
        classes,
        augmentation="crop-mirror" if small else "imagenet",
        size=width if small else 224,
        mean=None if small else IMAGENET_MEAN,
        deviation=None if small else IMAGENET_DEVIATION,
        held_out=images.get("val"),
    )


def subfolders(folder: Path) -> tuple[str, ...]:
    """The classes of a folder: the names of its sub-folders, hidden ones apart."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if path.name[0] != "." and path.is_dir()))


Listed = tuple[list[Path], np.ndarray[tuple[int], np.dtype[np.int64]]]
"""Paths, and the label of each."""


def listed(parent: Path, classes: tuple[str, ...]) -> Listed:
    """The images of each class in the folder `parent`; each class has some, and no other has any."""
    others = set(subfolders(parent)) - set(classes)
    if others:
        raise DataError(f"{parent} must have the classes of the training images only, got also {sorted(others)}")
    paths: list[Path] = []
    counts: list[int] = []
    for name in classes:
        images = of_class(parent / name) if (parent / name).is_dir() else []
        if not images:
            raise DataError(f"{parent / name} must hold images of its class, got none: add some or remove the class")
        paths += images
        counts.append(len(images))
    return paths, np.repeat(np.arange(len(classes)), counts)


def _split(root: Path, files: Listed) -> dict[str, Listed]:
    """About a tenth of each class as the test set, at least one; also written beside them where that is allowed.

    An image's name decides, so that those added later leave the others where they are.
    """
    paths, labels = files
    names = [path.relative_to(root).as_posix() for path in paths]
    chances = np.array([int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32 for name in names])
    aside = chances < 0.1
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        if len(of_class) < 2:
            only = paths[of_class[0]].parent
            raise DataError(f"{only} must hold at least 2 images to split off a test set, got 1: add some")
        aside[of_class[chances[of_class].argmin()]] = True
        aside[of_class[chances[of_class].argmax()]] = False
    splits = {
        name: ([paths[index] for index in indices], labels[indices])
        for name, indices in (("train", np.flatnonzero(~aside)), ("test", np.flatnonzero(aside)))
    }
    record = {"test": [names[index] for index in np.flatnonzero(aside)]}
    with suppress(OSError):
        publish(root / "snapens-split.json", [json.dumps(record, indent=1).encode()])
    return splits
