"""glyphs: 62 characters in twelve fonts, rotated, sheared, scaled, shifted and noisy; drawn here, not downloaded.

docs/atlas.py rendered `glyphs.npz` from DejaVu Sans, Sans Mono and Serif (the Bitstream Vera licence) and STIX
General (SIL Open Font License 1.1). All arithmetic is on integers, and all random numbers are the raw output of
Philox: every machine and every version of NumPy draws the same pixels.
"""

import hashlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, DataError
from ...storage.durable import publish
from .images import ImageData, Images
from .sources import cache_folder, content, parsing

Split = Literal["train", "test"]
Integers = NDArray[np.int64]

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIZE = 16
"""The height and width of an image."""

_ATLAS = Path(__file__).with_name("glyphs.npz")
_EDITION = 1  # part of the names of cached files: raise it whenever a pixel changes
_ONE = 256  # positions, rotations, shears and scales are in units of 1/256
_TURN, _SHEAR, _SHIFT = 77, 77, 512  # largest values in both directions: 0.3 (17 degrees), 0.3, 2 pixels of the atlas
_STEP = 282, 410  # from one pixel to the next: 1.1 to 1.6 pixels of the atlas
_INK, _PAPER = (90, 200), (0, 80)  # the brightness of a stroke above the background, and that of the background
_NOISE_PERCENT = 23  # of the sum of four random bytes, whose standard deviation is 148
_TRAIT_WORDS, _NOISE_WORDS = 8, SIZE * SIZE // 2  # words of 64 bits per image: four bytes of noise per pixel
_CHUNK = 2048  # images drawn at a time: they fit into the processor's cache


def load(train: int = 5_000, test: int = 10_000, seed: int = 0) -> ImageData:
    """The data set; once drawn, it is cached in `$XDG_CACHE_HOME/snapens` (or `~/.cache/snapens`).

    Classes and fonts are equally likely in both parts, and every image is distorted differently. An image
    depends only on `seed`, its part and its index: a larger set begins with the smaller one.
    """
    return ImageData(
        name="glyphs",
        train=Images(_cached("train", train, seed), _labels(0, train)),
        test=Images(_cached("test", test, seed), _labels(0, test)),
        classes=CLASSES,
        augmentation="none",  # a mirrored letter is another letter, or no letter
        size=SIZE,
        channels=1,
    )


def draw(split: Split, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draw pixels (count, 16, 16, 1) of the classes in turn, without the cache.

    Examples:
        >>> few, more = draw("train", 2), draw("train", 70)
        >>> more.shape, bool((few == more[:2]).all())
        ((70, 16, 16, 1), True)
    """
    if count < 1:
        raise ArgumentError(f"{split} must be at least 1 image, got {count}: draw more")
    if not 0 <= seed < 1 << 63:
        raise ArgumentError(f"seed must be at least 0 and less than 2 ** 63, got {seed}")
    chance = np.random.Philox(key=[seed, ("train", "test").index(split)])
    with parsing(_ATLAS, "the atlas of this package", "install snapens again"):
        atlas = np.load(BytesIO(content(_ATLAS)))["levels"] * np.uint8(17)  # 0 to 15 in the file
    chunks = []
    for start in range(0, count, _CHUNK):
        labels = _labels(start, min(start + _CHUNK, count))
        words = chance.random_raw(len(labels) * (_TRAIT_WORDS + _NOISE_WORDS)).reshape(len(labels), -1)
        chunks.append(_distorted(atlas, labels, words[:, :_TRAIT_WORDS], words[:, _TRAIT_WORDS:]))
    return np.concatenate(chunks)[..., None]


def _labels(start: int, stop: int) -> Integers:
    return np.arange(start, stop, dtype=np.int64) % len(CLASSES)


def _distorted(
    atlas: NDArray[np.uint8], labels: Integers, traits: NDArray[np.uint64], noise: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Pixels (images, 16, 16) from an atlas (fonts, classes, side, side) and words (images, 8) and (images, 128)."""
    trait = iter(traits.T[..., None, None])
    font = _between(0, len(atlas) - 1, next(trait)).ravel()
    turn, shear = (_between(-most, most, next(trait)) for most in (_TURN, _SHEAR))
    right, low = (_between(-_SHIFT, _SHIFT, next(trait)) for _ in range(2))
    step, ink, paper = (_between(*limits, next(trait)) for limits in (_STEP, _INK, _PAPER))

    twice = 2 * np.arange(SIZE, dtype=np.int64) - (SIZE - 1)  # twice the distance from the centre, an integer
    x, y = twice * step, twice[:, None] * step
    x = x + y * shear // _ONE
    # a rotation by arctan(turn), without a sine that would be rounded
    x, y = x - y * turn // _ONE, y + x * turn // _ONE
    middle = (atlas.shape[-1] - 1) * _ONE // 2
    stroke = _sampled(atlas[font, labels], middle + right + x // 2, middle + low + y // 2)

    bytes_of_noise = noise.astype("<u8").view(np.uint8).reshape(-1, SIZE, SIZE, 4)
    grain: Integers = bytes_of_noise.sum(-1, dtype=np.int64) - 4 * 255 // 2
    shade = paper + stroke * ink // 255 + grain * _NOISE_PERCENT // 100
    return np.clip(shade, 0, 255).astype(np.uint8)


def _between(least: int, most: int, words: NDArray[np.uint64]) -> Integers:
    """Integers between both limits, inclusive, all equally likely."""
    share = words >> np.uint64(32)
    return least + (share * np.uint64(most - least + 1) >> np.uint64(32)).astype(np.int64)


def _sampled(glyphs: NDArray[np.uint8], x: Integers, y: Integers) -> Integers:
    """Bilinear values of glyphs (images, side, side) at positions (images, 16, 16) in units of 1/256; 0 outside."""
    bordered = np.pad(glyphs, ((0, 0), (1, 2), (1, 2))).astype(np.int64)
    last = (glyphs.shape[-1] + 1) * _ONE
    x, y = ((position + _ONE).clip(0, last) for position in (x, y))
    image, right, low = np.arange(len(glyphs))[:, None, None], x & 255, y & 255
    upper, lower = (
        bordered[image, row, x >> 8] * (_ONE - right) + bordered[image, row, (x >> 8) + 1] * right
        for row in (y >> 8, (y >> 8) + 1)
    )
    values: Integers = (upper * (_ONE - low) + lower * low) >> 16  # right and low are in units of 1/256
    return values


def _cached(split: Split, count: int, seed: int) -> NDArray[np.uint8]:
    """Like `draw`, but cached in a file: a SHA-256, then the pixels. A file that cannot be used is ignored."""
    # the file is missing; it is no regular file; there is no home folder; another number of pixels
    unusable = (OSError, DataError, RuntimeError, ValueError)
    with suppress(*unusable):
        cached = content(_cache_file(split, count, seed))
        if cached[:32] == hashlib.sha256(cached[32:]).digest():
            return np.frombuffer(cached, np.uint8, offset=32).reshape(count, SIZE, SIZE, 1).copy()
    pixels = draw(split, count, seed)
    with suppress(*unusable):
        path, raw = _cache_file(split, count, seed), pixels.tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, [hashlib.sha256(raw).digest(), raw])
    return pixels


def _cache_file(split: Split, count: int, seed: int) -> Path:
    return cache_folder() / f"glyphs-{_EDITION}-{split}-{count}-{seed}.bin"
