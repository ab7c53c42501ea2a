"""The safetensors format: eight bytes of header length, a JSON header, the tensors' raw bytes.

Written and read here rather than by the safetensors package for two reasons: a commit writes one tensor at a time
and syncs the file itself; a reader holds one tensor at a time, where a mapped file would count as a second copy of
the model.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from ..errors import ArgumentError, DamagedError, StoreError
from . import durable, jsonfile
from .sealed import FORMAT
from .typed import decoded

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
_HEADER_LIMIT = 100_000_000  # from the specification of the format
_NAME_LIMIT = 100_000
_CHUNK = 1 << 20

Place = tuple[str, str]
"""The place of a tensor in another file, or under another name in the same file: (file, name in that file)."""


class Spec(NamedTuple):
    """The dtype and shape of a tensor, before its content is known."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of its content."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class About:
    """The run, kind and step of a file, which are part of its metadata and are checked by readers."""

    run: str
    kind: str
    step: int | None = None


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: its place, dtype and shape. Equal objects are the same bytes on disk."""

    path: Path
    name: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """Read the tensor into new memory."""
        content = torch.empty(Spec(self.dtype, self.shape).nbytes, dtype=torch.uint8, device="cpu")
        self.read_into(content.numpy().data)
        return content.view(self.dtype).reshape(self.shape)

    def read_into(self, buffer: memoryview) -> None:
        """Read the tensor's bytes into memory of exactly their size."""
        with _open(self.path) as file:
            file.seek(self.offset)
            if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
                raise DamagedError(f"{self.path} ends inside a tensor: it was truncated; restore the file")

    def holds(self, tensor: Tensor) -> bool:
        """Whether the file has exactly these bytes. A trained tensor usually differs in its first chunk."""
        if (tensor.dtype, tuple(tensor.shape)) != (self.dtype, self.shape):
            return False
        with _open(self.path) as file:
            file.seek(self.offset)
            return all(file.read(len(chunk)) == bytes(chunk) for chunk in _chunks(tensor))


def in_file_order(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """The order in which tensors must be written to be aligned, for readers that map the file."""
    return dict(sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize))


def save(path: Path, tensors: Mapping[str, Tensor], about: About) -> durable.Digest:
    """Write a file of contiguous tensors on the CPU."""
    specs = in_file_order({name: Spec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})
    return stream(path, specs, ((name, tensors[name]) for name in specs), about)


def stream(
    path: Path,
    specs: Mapping[str, Spec],
    items: Iterable[tuple[str, Tensor | Place]],
    about: About,
    places: Iterable[tuple[str, Place]] = (),
) -> durable.Digest:
    """Write a file tensor by tensor, in file order; each tensor is in memory only while it is written.

    An item is a contiguous tensor on the CPU, or a place where it is already stored, which must be one of its `places`.
    The header comes first but depends on the items, so space for it is reserved and filled up with spaces.
    """
    metadata = {"format": str(FORMAT), "run": about.run, "kind": about.kind}
    if about.step is not None:
        metadata["step"] = str(about.step)
    room = _room(specs, metadata, places)

    def content(file: BinaryIO) -> None:
        header: dict[str, Any] = {"__metadata__": metadata}
        elsewhere, offset = {}, 0
        file.seek(8 + room)
        for name, item in items:
            if isinstance(item, Tensor):
                end = offset + specs[name].nbytes
                header[name] = _described(name, specs[name], offset, end)
                file.write(_raw(item))
                offset = end
                del item
            else:
                elsewhere[name] = item
        if elsewhere:
            metadata["elsewhere"] = jsonfile.compact(elsewhere)
        if len(text := jsonfile.compact(header).encode()) > room:
            raise ArgumentError(f"places must contain the place of each item that is stored elsewhere, got {places}")
        file.seek(0)
        file.write(room.to_bytes(8, "little") + text.ljust(room))

    return durable.publish(path, content)


def header(path: Path, about: About | None = None) -> tuple[dict[str, Stored], dict[str, Place]]:
    """The tensors in a file, and the places of those that are stored elsewhere; `about` must match its metadata."""
    with _open(path) as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _HEADER_LIMIT else b""
        size = file.seek(0, 2)
    try:
        content: dict[str, Any] = jsonfile.loads(text)
        metadata = content.pop("__metadata__", {})
        if len(content) > _NAME_LIMIT:
            raise ValueError(f"more than {_NAME_LIMIT} tensors")
        found = {name: _entry(path, name, 8 + length, **entry) for name, entry in content.items()}
        _check_cover(found.values(), 8 + length, size)
        _check_about(path, metadata, about)
        elsewhere = jsonfile.loads(metadata.get("elsewhere", "{}"))
        return found, decoded(dict[str, Place], elsewhere, "elsewhere")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(
            f"{path} must be a safetensors file, but its header cannot be read ({error}): restore the file"
        ) from error


def _room(specs: Mapping[str, Spec], metadata: Mapping[str, str], places: Iterable[tuple[str, Place]]) -> int:
    """The largest possible size of a header in bytes, a multiple of 8, so that the tensors are aligned."""
    total = sum(spec.nbytes for spec in specs.values())
    sizes = {name: len(jsonfile.compact({name: _described(name, specs[name], total, total)})) for name in specs}
    for name, place in places:
        sizes[name] = max(sizes[name], len(jsonfile.compact(jsonfile.compact({name: place}))))
    room = sum(sizes.values()) + len(jsonfile.compact({"__metadata__": {**metadata, "elsewhere": ""}}))
    return room + -room % 8


def check(name: str, dtype: torch.dtype) -> None:
    """Reject a tensor that the format cannot contain."""
    if name == "__metadata__":
        raise ArgumentError("a stored tensor must not be named '__metadata__', which the format reserves: rename it")
    if dtype not in _CODES:
        raise ArgumentError(
            f"a stored tensor must have one of the dtypes {', '.join(_DTYPES)}, got {dtype} for {name!r}: "
            "convert it, or do not store it"
        )


def _described(name: str, spec: Spec, begin: int, end: int) -> dict[str, Any]:
    check(name, spec.dtype)
    return {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [begin, end]}


def _entry(path: Path, name: str, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Stored:
    begin, end = data_offsets
    spec = Spec(_DTYPES[dtype], tuple(shape))
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)) or end - begin != spec.nbytes:
        raise ValueError(f"the shape and the offsets of {name!r} do not agree")
    return Stored(path, name, start + begin, *spec)


def _check_cover(found: Iterable[Stored], start: int, size: int) -> None:
    """Check that the tensors are contiguous and fill the file, as the format requires."""
    for stored in sorted(found, key=lambda stored: (stored.offset, math.prod(stored.shape))):
        if stored.offset != start:
            raise ValueError(f"{stored.name!r} overlaps another tensor or leaves a gap")
        start += Spec(stored.dtype, stored.shape).nbytes
    if start != size:
        raise ValueError(f"it describes {start} bytes, but the file has {size}")


def _check_about(path: Path, metadata: Mapping[str, str], about: About | None) -> None:
    """Check the metadata of a file; files of format 1, and of other programs, have none."""
    if "format" not in metadata:
        return
    if int(metadata["format"]) > FORMAT:
        raise StoreError(
            f"{path} must have format {FORMAT} or older, got {metadata['format']}: install a newer snapens"
        )
    step = metadata.get("step")
    if about is not None and about != (found := About(metadata["run"], metadata["kind"], int(step) if step else None)):
        raise DamagedError(f"{path} must be of {about}, got {found}: restore the file")


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with durable.reading(path) as file:
            yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(f"{path} cannot be opened ({error.strerror}): restore the file") from error


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    whole = _raw(tensor)
    bounds = [0, *range(4096, len(whole), _CHUNK), len(whole)]
    return (whole[begin:end] for begin, end in pairwise(bounds))
