"""Image files: listed by class, checked, and decoded as a whole or as crops when they are needed."""

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingPackageError, shortened
from ...extras import package
from ..recipe.preprocessing import ImagePreprocessing
from .sources import content

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

CENTRAL_SHARE = 7 / 8  # 224 of 256 pixels
"""The side of the square that an evaluation of photos reads, as a share of the shorter side."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class PhotoFiles:
    """Files of any size, cropped to (size, size, 3) pixels; the orientation stored in a file is ignored.

    `names` are relative to the folder `root`, with forward slashes.
    """

    root: Path
    names: Sequence[str]
    size: int = 224

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: NDArray[np.int64]) -> "PhotoFiles":
        """Some of the files; none of them is opened."""
        return replace(self, names=[self.names[index] for index in indices])

    def identity(self) -> Iterator[bytes]:
        """Bytes that distinguish these files from others: all names and sizes, and the content of up to 1,000 files."""
        every = -(-len(self) // 1000)
        for index, name in enumerate(self.names):
            with self._errors(index):
                size = (self.root / name).stat().st_size
                data = self._read(index) if index % every == 0 else b""
            yield os.fsencode(name) + f"\0{size}\0".encode()
            yield data

    def version(self) -> str:
        """A hash of the names, sizes and times of all files, which changes when one is replaced; none is opened."""
        found, failed = hashlib.sha256(), dict[str, Exception]()
        for name in self.names:
            try:
                about = (self.root / name).stat()
            except (OSError, ValueError) as error:  # the second if a name contains a null byte
                failed[name] = error
            else:
                found.update(os.fsencode(f"{name}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ctime_ns}\0"))
        if failed:
            raise self._broken(failed)
        return found.hexdigest()

    def crops(self, indices: NDArray[np.int64], draws: NDArray[np.float32] | None) -> NDArray[np.uint8]:
        """Pixels (images, size, size, 3) of `random_box` by the first four draws, or of `central_box` without draws."""
        crops = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for row, index in enumerate(indices):
            with self._errors(index):
                crops[row] = _crop(self._read(index), self.size, None if draws is None else draws[row])
        return crops

    def each(self, work: Callable[[int, bytes], Result]) -> list[Result]:
        """Call `work` with the index and the bytes of each file, on all cores; an error lists all files that fail."""
        image = package("PIL.Image", "data")

        def attempt(index: int) -> Result | Exception:
            try:
                return work(index, self._read(index))
            except Exception as error:  # a damaged image can raise an exception of any type
                return error.with_traceback(None)  # which would keep the bytes of the file

        # decoders release the GIL; Pillow warns of images that `_photo` rejects
        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
            warnings.simplefilter("ignore", image.DecompressionBombWarning)
            results = list(pool.map(attempt, range(len(self))))
        failed = {name: found for name, found in zip(self.names, results, strict=True) if isinstance(found, Exception)}
        if failed:
            raise self._broken(failed)
        return [found for found in results if not isinstance(found, Exception)]

    def _read(self, index: int) -> bytes:
        return content(self.root / self.names[index])

    @contextmanager
    def _errors(self, index: int) -> Iterator[None]:
        """Turn any error about one file into ours."""
        try:
            yield
        except MissingPackageError:
            raise
        except Exception as error:
            raise self._broken({self.names[index]: error}) from error

    def _broken(self, failed: dict[str, Exception]) -> DataError:
        """The error that lists some files, up to ten, and why each cannot be used."""
        found = []
        for name, error in failed.items():
            path, ours = self.root / name, isinstance(error, DataError)
            found.append(
                f"{path}: {str(error).removeprefix(f'{path} ') if ours else f'{type(error).__name__}: {error}'}"
            )
        return DataError(
            "images must be whole files with 8 bits per channel, "
            f"got {len(found)} that cannot be used: replace or remove {'it' if len(found) == 1 else 'them'}\n  "
            + shortened(found, separator="\n  ")
        )


def random_box(width: int, height: int, draws: NDArray[np.float32]) -> Box:
    """A box with 8 % to 100 % of the area and an aspect ratio from 3:4 to 4:3, anywhere in the image.

    `draws` are the area, the logarithm of the aspect ratio, the left and the top, each in [0, 1). The part
    of a box outside the image is cut off; other implementations draw such a box again.

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


def central_box(width: int, height: int, share: float = CENTRAL_SHARE) -> Box:
    """The square in the centre whose side is a share of the shorter side.

    Examples:
        >>> central_box(512, 256)
        (144.0, 16.0, 368.0, 240.0)
    """
    side = min(width, height) * share
    x, y = (width - side) / 2, (height - side) / 2
    return x, y, x + side, y + side


def central(data: bytes, preprocessing: ImagePreprocessing) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The pixels (size, size, channels) of an image file as an evaluation reads them, and its width and height."""
    channels = preprocessing.inputs["channels"]
    if channels not in (1, 3):
        raise DataError(f"an image file where examples with {channels} channels are required")
    photo = _photo(data)
    width, height = photo.size
    pixels = _resized(photo, data, preprocessing.size, central_box(width, height, preprocessing.crop))
    return np.array(pixels if channels == 3 else pixels.convert("L")).reshape(*pixels.size, channels), (width, height)


def decoded(files: PhotoFiles, size: int) -> NDArray[np.uint8]:
    """All images, each of which must be a square of this size: (images, size, size, 3)."""
    images = np.empty((len(files), size, size, 3), np.uint8)

    def decode(index: int, data: bytes) -> None:
        photo = _photo(data)
        if photo.size != (size, size):
            raise DataError(f"{photo.width} × {photo.height} pixels where {size} × {size} are required")
        images[index] = _rgb(photo, data, 1)

    files.each(decode)
    return images


def sizes(files: PhotoFiles) -> list[tuple[int, int]]:
    """The width and the height of each image; files that are not whole images are rejected."""

    def check(index: int, data: bytes) -> tuple[int, int]:
        photo = _photo(data)
        size: tuple[int, int] = photo.size
        photo.draft("RGB", (1, 1))  # a JPEG is read to its end, but decoded at an eighth of its size
        photo.load()
        return size

    return files.each(check)


def of_class(root: Path, folder: str) -> list[str]:
    """The sorted names, relative to `root`, of the images in `root`/`folder`; hidden and other files are ignored."""
    return [f"{folder}/{name}" for name in sorted(path.name for path in filter(is_image, (root / folder).iterdir()))]


def is_image(path: Path) -> bool:
    """Whether the name of a file is that of an image, and not hidden."""
    return path.suffix.lower() in SUFFIXES and path.name[0] != "."


def _crop(data: bytes, size: int, draws: NDArray[np.float32] | None) -> Any:
    photo = _photo(data)
    width, height = photo.size
    box = central_box(width, height) if draws is None else random_box(width, height, draws)
    return _resized(photo, data, size, box)


def _resized(photo: Any, data: bytes, size: int, box: Box) -> Any:
    """The part of an image in a box, resized to (size, size)."""
    width, height = photo.size
    shorter = min(box[2] - box[0], box[3] - box[1])
    # a JPEG is decoded faster at a fraction of its size; the box keeps at least `size` pixels
    factor = next(factor for factor in (8, 4, 2, 1) if factor == 1 or shorter >= factor * size)
    image = package("PIL.Image", "data")
    photo = image.fromarray(_rgb(photo, data, factor))
    scale = photo.width / width, photo.height / height
    return photo.resize(
        (size, size), image.Resampling.BILINEAR, box=[b * s for b, s in zip(box, scale * 2, strict=True)]
    )


def _photo(data: bytes) -> Any:
    image = package("PIL.Image", "data")
    try:
        photo = image.open(BytesIO(data))
    except image.UnidentifiedImageError as error:
        raise DataError("not an image of a known format") from error
    limit = image.MAX_IMAGE_PIXELS  # Pillow only warns of images up to twice as large
    if limit is not None and photo.width * photo.height > limit:
        raise DataError(f"{photo.width} × {photo.height} pixels where at most {limit:,} are allowed")
    if photo.mode.startswith(("I", "F")):
        raise DataError(f"pixels of mode {photo.mode} where 8 bits per channel are required")
    return photo


def _rgb(photo: Any, data: bytes, factor: int) -> NDArray[np.uint8]:
    """The pixels (height, width, 3); those of a JPEG at 1/factor of its size."""
    least = photo.width // factor, photo.height // factor
    decode = _jpeg_decoder()
    if decode is not None and photo.format == "JPEG" and photo.mode in ("L", "RGB"):
        with suppress(ValueError):  # simplejpeg is stricter than Pillow, which decides what is damaged
            pixels: NDArray[np.uint8] = decode(data, "RGB", min_width=least[0], min_height=least[1])
            return pixels
    photo.draft("RGB", least)
    if "transparency" in photo.info:
        photo = photo.convert("RGBA")
    return np.array(photo.convert("RGB"))


@cache
def _jpeg_decoder() -> Any:
    """The decoder of simplejpeg, if it is installed; Pillow decodes the same pixels a quarter slower."""
    try:
        return package("simplejpeg", "data").decode_jpeg
    except MissingPackageError:
        return None
