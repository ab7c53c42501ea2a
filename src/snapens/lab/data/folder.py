"""A user's own folder of images: one sub-folder per class, with or without a split into train and test."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingDataError, shortened
from .files import PhotoFiles, decoded, is_image, of_class, sizes
from .images import ImageData, Images
from .splits import by_name

log = logging.getLogger("snapens")

SMALL = 64
"""Square images that all have the same size, up to this one, are kept in memory; others are cropped to 224 × 224."""
PHOTOS: dict[str, Any] = {
    "augmentation": "imagenet",
    "size": 224,
    "mean": (123.675, 116.28, 103.53),
    "deviation": (58.395, 57.12, 57.375),
}
"""How images that are cropped are augmented and normalised; mean and deviation are those of ImageNet."""

_DEEPER = "pass {} if its sub-folders are the classes"

Listed = tuple[list[str], NDArray[np.int64]]
"""The name, relative to the root, and the label of each image."""


def read(root: Path) -> ImageData:
    """Read `root`/train/CLASS and `root`/test/CLASS (or val), or split a tenth of each class off `root`/CLASS.

    If there are both, `test` is tested on and `val` is held out. Every file is checked first.
    """
    classes, parts = _parts(root)
    files = PhotoFiles(root, [name for names, _ in parts.values() for name in names])
    found = sizes(files)
    width, height = found[0]
    small = len({*found}) == 1 and width == height <= SMALL
    if not small:
        _warn_if_enlarged(files.names, found)
    if len(parts) == 1:
        names, labels = parts["train"]
        test = by_name(root, names, labels)
        parts = {"train": _only(~test, names, labels), "test": _only(test, names, labels)}
    images = {}
    for part, (names, labels) in parts.items():
        photos = PhotoFiles(root, names)
        images[part] = Images(decoded(photos, width) if small else photos, labels, names)
    return ImageData(
        root.resolve().name,
        images["train"],
        images.pop("test") if "test" in images else images.pop("val"),
        classes,
        held_out=images.get("val"),
        **({"augmentation": "crop-mirror", "size": width} if small else PHOTOS),
    )


def _parts(root: Path) -> tuple[tuple[str, ...], dict[str, Listed]]:
    """The classes, and the images of the parts: "train", and "test" and "val" where there are folders for them."""
    if not root.is_dir():
        raise MissingDataError(f"data must be a folder of images for the dataset folder, got {root}: check the path")
    inside = "train" if subfolders(root / "train") else ""
    classes = subfolders(root / inside)
    for path in sorted(filter(_holds_runs, (root / inside).iterdir())):
        log.warning("%s is ignored, because it holds a run and no images of a class: move it to another place", path)
    if len(classes) < 2:
        remedy = "add classes"
        if any(map(is_image, (root / inside).iterdir())):
            remedy = "if this folder holds the images of one class, pass the folder above it"
        elif classes and holds_classes(root / inside / classes[0]):
            remedy = _DEEPER.format(root / inside / classes[0])
        raise DataError(
            f"{root / inside} must have a sub-folder for each of at least 2 classes, got {list(classes)}: {remedy}"
        )
    others = [name for name in ("test", "val") if inside and (root / name).is_dir()]
    return classes, {"train": listed(root, inside, classes)} | {name: listed(root, name, classes) for name in others}


def _only(mask: NDArray[np.bool_], names: list[str], labels: NDArray[np.int64]) -> Listed:
    return list(compress(names, mask)), labels[mask]


def subfolders(folder: Path) -> tuple[str, ...]:
    """The classes of a folder: the names of its sub-folders, except hidden ones and folders of runs."""
    if not folder.is_dir():
        return ()
    visible = (path for path in folder.iterdir() if path.name[0] != "." and path.is_dir())
    return tuple(sorted(path.name for path in visible if not _holds_runs(path)))


def listed(root: Path, inside: str, classes: tuple[str, ...]) -> Listed:
    """The images of each class in `root`/`inside`; each class must have images, and other classes must not be there."""
    parent = root / inside
    if others := set(subfolders(parent)) - set(classes):
        raise DataError(f"{parent} must have the classes of the training images only, got also {sorted(others)}")
    images: list[str] = []
    counts: list[int] = []
    for name in classes:
        of_this = of_class(root, PurePosixPath(inside, name).as_posix()) if (parent / name).is_dir() else []
        if not of_this:
            deeper = f"; {_DEEPER.format(parent / name)}" if holds_classes(parent / name) else ""
            raise DataError(
                f"{parent / name} must hold the images of a class, got none: add images, or move the folder elsewhere"
                f"{deeper}"
            )
        images += of_this
        counts.append(len(of_this))
    return images, np.repeat(np.arange(len(classes)), counts)


def holds_classes(folder: Path) -> bool:
    """Whether a sub-folder of a folder, or of its part "train", holds images."""
    places = [folder / inside / name for inside in ("", "train") for name in subfolders(folder / inside)]
    return any(is_image(path) for place in places for path in place.iterdir())


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is a run folder, or the parent of one, and holds no images."""
    if not folder.is_dir() or any(map(is_image, folder.iterdir())):
        return False
    return any(
        any(folder.glob(pattern)) for pattern in ("manifest.json", "recipe.json", "*/manifest.json", "*/recipe.json")
    )


def _warn_if_enlarged(names: Sequence[str], found: Sequence[tuple[int, int]]) -> None:
    """Warn if most images are small, but are enlarged because not all images are squares of one size."""
    if 2 * sum(max(size) <= SMALL for size in found) <= len(found):
        return
    counts = Counter(found).most_common()
    shown = [f"{width} × {height} ({count} image{'s' * (count > 1)})" for (width, height), count in counts]
    exceptions = [name for name, size in zip(names, found, strict=True) if size != counts[0][0]]
    log.warning(
        f"all images are resized to 224 × 224, because only squares of one size up to {SMALL} × {SMALL} are used as "
        f"they are: got {shortened(shown, 5)}"
        + (f"; resize or remove the exceptions: {shortened(exceptions)}" if exceptions else "")
    )
