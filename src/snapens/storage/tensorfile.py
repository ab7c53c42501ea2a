"""The safetensors format: eight bytes of header length, a JSON header, the tensors' raw bytes.

Written and read here rather than by the safetensors package for three reasons: a commit hashes the
bytes while it writes them and syncs them itself; the memory of the live tensors is written as it is;
a reader holds one tensor at a time, where a mapped file would count as a second copy of the model.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, DamagedError

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_HEADER_LIMIT = 100_000_000  # the format's own
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: where it lies and what it is. Equal means the same bytes on disk."""

    path: Path
    name: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor, in memory of its own."""
        size = math.prod(self.shape) * self.dtype.itemsize
        content = torch.empty(size, dtype=torch.uint8)
        with _open(self.path) as file:
            file.seek(self.offset)
            if file.readinto(content.numpy()) != size:
                raise DamagedError(f"{self.path} ends inside a tensor: it was truncated; restore the file")
        return content.view(self.dtype).reshape(self.shape)

    def holds(self, tensor: Tensor) -> bool:
        """Whether the file has exactly these bytes. A trained tensor differs in its first chunk."""
        if (tensor.dtype, tuple(tensor.shape)) != (self.dtype, self.shape):
            return False
        with _open(self.path) as file:
            file.seek(self.offset)
            return all(file.read(len(chunk)) == bytes(chunk) for chunk in _chunks(tensor))


def encode(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The file's bytes, piece by piece, for contiguous tensors on the CPU; nothing is copied."""
    header, offset = {}, 0
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))  # aligned, for readers that map
    for name, tensor in tensors.items():
        if tensor.dtype not in _CODES:
            raise ArgumentError(
                f"a stored tensor must have one of the dtypes {', '.join(_DTYPES)}, got {tensor.dtype} for {name!r}"
            )
        end = offset + tensor.nbytes
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield _raw(tensor)


def entries(path: Path) -> dict[str, Stored]:
    """What a file holds, from its header alone."""
    with _open(path) as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _HEADER_LIMIT else b""
        size = file.seek(0, 2)
    try:
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        found = {name: _entry(path, name, 8 + length, size, **entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(
            f"{path} must be a safetensors file, but its header cannot be read ({error}); restore the file"
        ) from error
    return found


def _entry(
    path: Path, name: str, start: int, size: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> Stored:
    begin, end = data_offsets
    bytes_needed = math.prod(shape) * _DTYPES[dtype].itemsize
    if min(shape, default=0) < 0 or begin < 0 or end - begin != bytes_needed or start + end > size:
        raise ValueError("a tensor lies outside the file")
    return Stored(path, name, start + begin, _DTYPES[dtype], tuple(shape))


def _open(path: Path) -> Any:
    try:
        return open(path, "rb")
    except OSError as error:
        raise DamagedError(f"{path} cannot be opened ({error.strerror}); restore the file") from error


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    whole = _raw(tensor)
    bounds = [0, *range(4096, len(whole), _CHUNK), len(whole)]
    return (whole[begin:end] for begin, end in pairwise(bounds))
