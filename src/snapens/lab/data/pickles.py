"""Pickles of plain values and uint8 arrays, read without running anything that they name."""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError


def read(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, of Python 2 or 3, whose values are plain or uint8 arrays."""
    try:
        with open(path, "rb") as file:
            content = _Plain(file, encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can end in an exception of any type
        raise DataError(
            f"{path} must be a pickled dictionary of plain values and uint8 arrays, "
            f"got {type(error).__name__}: {error}: get it again from its source"
        ) from error
    return {key: value.pixels if isinstance(value, _Array) else value for key, value in named.items()}


class _Array:
    """Stands in for a NumPy array, so that not even NumPy's own unpickling runs."""

    pixels: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], "_Kind", bool, bytes]) -> None:
        _, shape, kind, columns_first, raw = state
        if kind.code not in (b"u1", "u1") or len(raw) != math.prod(shape):
            raise pickle.UnpicklingError("an array that is not whole or not of uint8")
        self.pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Kind:
    """Stands in for a NumPy dtype."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, of which uint8 has none."""


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin-1")  # how Python 3 writes bytes into a pickle of protocol 2


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is refused")
        return _STAND_INS[module, name]
