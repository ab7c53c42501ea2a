"""Image files: listed by class, checked, decoded whole or cropped when they are asked for."""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingPackageError, SnapensError
from ...extras import package

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""


@dataclass(frozen=True)
class PhotoFiles:
    """Files of any size, cropped to (size, size, 3) pixels; an orientation noted in the file is not followed."""

    paths: Sequence[Path]
    size: int = 224

    def __len__(self) -> int:
        return len(self.paths)

    def crops(self, indices: NDArray[np.int64], draws: NDArray[np.float32] | None) -> NDArray[np.uint8]:
        """(images, size, size, 3) pixels: of `random_box` by the first four draws, or of `central_box` without."""
        crops = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for row, index in enumerate(indices):
            with _reading(self.paths[index]) as data:
                crops[row] = _crop(data, self.size, None if draws is None else draws[row])
        return crops


def random_box(width: int, height: int, draws: NDArray[np.float32]) -> Box:
    """Between 8 % and all of the area, an aspect between 3:4 and 4:3, anywhere.

    `draws` are the area, the logarithm of the aspect, the left and the top, each in [0, 1). What
    would stick out of the image is cut off; elsewhere such a box is drawn again.

    Examples:
        >>> random_box(100, 50, np.array([1, 0.5, 0, 0]))
        (0, 0, 71, 50)
    """
    area, aspect, left, top = map(float, draws[:4])
    pixels = (0.08 + 0.92 * area) * width * height
    ratio = (4 / 3) ** (2 * aspect - 1)
    across = min(width, max(1, round(math.sqrt(pixels * ratio))))
    down = min(height, max(1, round(math.sqrt(pixels / ratio))))
    x, y = int(left * (width - across + 1)), int(top * (height - down + 1))
    return x, y, x + across, y + down


def central_box(width: int, height: int) -> Box:
    """The square in the middle whose side is 7/8 of the shorter one: 224 pixels of 256.

    Examples:
        >>> central_box(512, 256)
        (144.0, 16.0, 368.0, 240.0)
    """
    side = min(width, height) * 7 / 8
    x, y = (width - side) / 2, (height - side) / 2
    return x, y, x + side, y + side


def decoded(paths: Sequence[Path], size: int) -> NDArray[np.uint8]:
    """Whole images of one size, decoded on all cores: (images, size, size, 3)."""
    images = np.empty((len(paths), size, size, 3), np.uint8)

    def decode(index: int) -> None:
        with _reading(paths[index]) as data:
            photo = _photo(data)
            if photo.size != (size, size):
                raise ValueError(f"{photo.width} × {photo.height} pixels where {size} × {size} are due")
            images[index] = _rgb(photo, data, 1)

    _on_all_cores(decode, range(len(paths)))
    return images


def sizes(paths: Sequence[Path]) -> set[tuple[int, int]]:
    """The widths and heights there are; a file that is no whole image is refused."""

    def check(path: Path) -> tuple[int, int]:
        with _reading(path) as data:
            photo = _photo(data)
            size: tuple[int, int] = photo.size
            photo.draft("RGB", (1, 1))  # a JPEG is read to its end, but computed at an eighth of its size
            photo.load()
            return size

    return set(_on_all_cores(check, paths))


def of_class(folder: Path) -> list[Path]:
    """The images directly in a folder, by name; hidden and other files are passed over."""
    names = (path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return [folder / name for name in sorted(names) if name[0] != "."]


def _crop(data: bytes, size: int, draws: NDArray[np.float32] | None) -> Any:
    photo = _photo(data)
    width, height = photo.size
    box = central_box(width, height) if draws is None else random_box(width, height, draws)
    shorter = min(box[2] - box[0], box[3] - box[1])
    # decoded at a fraction of its size, a JPEG costs less; the crop has `size` pixels all the same
    factor = next(factor for factor in (8, 4, 2, 1) if factor == 1 or shorter >= factor * size)
    image = package("PIL.Image", "data")
    photo = image.fromarray(_rgb(photo, data, factor))
    scale = photo.width / width, photo.height / height
    return photo.resize(
        (size, size), image.Resampling.BILINEAR, box=[b * s for b, s in zip(box, scale * 2, strict=True)]
    )


def _photo(data: bytes) -> Any:
    photo = package("PIL.Image", "data").open(BytesIO(data))
    if photo.mode.startswith(("I", "F")):
        raise ValueError(f"pixels of the mode {photo.mode} where 8 bits are due")
    return photo


def _rgb(photo: Any, data: bytes, factor: int) -> NDArray[np.uint8]:
    """The pixels (height, width, 3), of a JPEG those at 1/factor of its size."""
    least = photo.width // factor, photo.height // factor
    decode = _jpeg_decoder()
    if decode is not None and photo.format == "JPEG" and photo.mode in ("L", "RGB"):
        with suppress(ValueError):  # it is stricter than pillow, which is to say what is damaged
            pixels: NDArray[np.uint8] = decode(data, "RGB", min_width=least[0], min_height=least[1])
            return pixels
    photo.draft("RGB", least)
    if "transparency" in photo.info:
        photo = photo.convert("RGBA")
    return np.array(photo.convert("RGB"))


@cache
def _jpeg_decoder() -> Any:
    """simplejpeg's, if it is there; pillow gives the same pixels, a quarter slower."""
    try:
        return package("simplejpeg", "data").decode_jpeg
    except MissingPackageError:
        return None


@contextmanager
def _reading(path: Path) -> Iterator[bytes]:
    try:
        yield path.read_bytes()
    except SnapensError:
        raise
    except Exception as error:  # a damaged image can end in an exception of any type
        raise DataError(
            f"{path} must be a whole image of 8 bits a channel, got {type(error).__name__}: {error}: "
            "replace it or remove it"
        ) from error


def _on_all_cores(work: Any, items: Any) -> list[Any]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders release the GIL
        return list(pool.map(work, items))
