"""Pickles of plain values and uint8 arrays, read without running the code that they refer to."""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError


def read(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3; its values must be plain values or uint8 arrays."""
    try:
        with open(path, "rb") as file:
            content = _Plain(file, encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise an exception of any type
        raise DataError(
            f"{path} must be a pickled dictionary of plain values and uint8 arrays, "
            f"got {type(error).__name__}: {error}: download it again"
        ) from error
    return {key: value.pixels if isinstance(value, _Array) else value for key, value in named.items()}


class _Array:
    """Replaces a NumPy array, so that NumPy's own unpickling does not run either."""

    pixels: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], "_DType", bool, bytes]) -> None:
        _, shape, kind, columns_first, raw = state
        if kind.code not in (b"u1", "u1") or len(raw) != math.prod(shape):
            raise pickle.UnpicklingError("an array that is incomplete or not uint8")
        self.pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns_first else "C")


class _DType:
    """Replaces a NumPy dtype."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order and similar properties, which uint8 does not have."""


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin-1")  # Python 3 writes bytes into a pickle of protocol 2 in this way


_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _REPLACEMENTS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return _REPLACEMENTS[module, name]
