"""Thumbnails: pixels as PNG in a data: address, so that a page needs no other file."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _RGB = 0, 2  # the format's colour types


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of uint8 pixels (height, width, channels): grey from one or two channels, else of the first three.

    Examples:
        >>> png(np.zeros((2, 2, 1), np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, channels = pixels.shape
    colours = 3 if channels >= 3 else 1
    rows = np.ascontiguousarray(pixels[:, :, :colours]).reshape(height, width * colours)
    # each row begins with its filter: 1, the difference to the pixel on the left, which photographs pack better with
    left = np.concatenate([np.zeros((height, colours), np.uint8), rows[:, :-colours]], axis=1)
    lines = np.concatenate([np.ones((height, 1), np.uint8), rows - left], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB if colours == 3 else _GREY, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def address(pixels: NDArray[np.uint8]) -> str:
    """What an `<img>` takes for its source."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
