"""Pickles of plain values and uint8 arrays, read without running the code that they refer to."""

import math
import pickle
import pickletools
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sources import content, parsing

_MOST_TUPLES = 1000  # an array needs about five; hashing tuples that are nested more deeply could overflow the stack


def read(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3; its values must be plain values or uint8 arrays."""
    with parsing(path, "a pickled dictionary of plain values and uint8 arrays", "download it again"):
        raw = content(path)
        _require_bounded(raw)
        found = _Plain(BytesIO(raw), encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}
        return {key: value.pixels if isinstance(value, _Array) else value for key, value in named.items()}


def _require_bounded(raw: bytes) -> None:
    """Reject a pickle that needs much more memory than its own size, or whose tuples are nested deeply.

    The scan also finds every length that exceeds the rest of the file, for which the unpickler would allocate memory.
    """
    tuples = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        tuples += "TUPLE" in opcode.name
        if "PUT" in opcode.name and argument is not None and int(argument) > count:
            raise pickle.UnpicklingError(f"the memo entry {argument} where at most {count} entries are possible")
        if tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError(f"more than {_MOST_TUPLES} tuples")


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


_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    # Python 3 writes bytes into a pickle of protocol 2 as text to encode in Latin-1
    ("_codecs", "encode"): lambda text, _: text.encode("latin-1"),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _REPLACEMENTS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return _REPLACEMENTS[module, name]
