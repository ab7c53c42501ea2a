"""Unlabelled examples: image files, and the rows of .csv and .npz files, prepared for a prediction."""

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, DataError, shortened
from ...extras import package
from ..recipe.preprocessing import ImagePreprocessing, Preprocessing, RowPreprocessing
from .ahead import read_ahead
from .files import central, is_image
from .sources import content, parsing
from .tables import TOO_LARGE

TABLES = (".csv", ".npz")


@dataclass(frozen=True)
class Chunk:
    """Some examples, and those between them that cannot be used."""

    names: list[str] = field(default_factory=list)
    examples: list[NDArray[Any]] = field(default_factory=list)
    """Raw examples, one per name: pixels (size, size, channels), or features (features,)."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """The width and the height of each image before it was resized; empty for rows."""
    failed: dict[str, str] = field(default_factory=dict)
    """Name -> why it cannot be used."""

    def stacked(self) -> NDArray[Any]:
        """All examples as one array (examples, …)."""
        return np.stack(self.examples)


def listed(paths: Sequence[Path], preprocessing: Preprocessing) -> list[Path]:
    """The files among some paths, and those in folders, at any depth: images, or tables, which are not hidden."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        visible = (file for file in path.rglob("*") if not _is_hidden(file.relative_to(path)))
        inside = sorted(file for file in visible if _suits(file, preprocessing) and file.is_file())
        if not inside:
            kind = "images" if isinstance(preprocessing, ImagePreprocessing) else f"{' or '.join(TABLES)} files"
            raise ArgumentError(f"files must be {kind} or folders that contain some, got {path}, which contains none")
        found += inside
    if not found:
        raise ArgumentError("files must name at least one file or folder, got none")
    return found


def chunks(files: Sequence[Path], preprocessing: Preprocessing, size: int) -> Iterator[Chunk]:
    """The examples in some files, in order, up to `size` at a time."""
    if isinstance(preprocessing, ImagePreprocessing):
        yield from _images(files, preprocessing, size)
    elif isinstance(preprocessing, RowPreprocessing):
        for path in files:
            yield from _rows(path, len(preprocessing.mean), size)


def _suits(path: Path, preprocessing: Preprocessing) -> bool:
    if isinstance(preprocessing, ImagePreprocessing):
        return is_image(path)
    return path.suffix.lower() in TABLES


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _images(files: Sequence[Path], preprocessing: ImagePreprocessing, size: int) -> Iterator[Chunk]:
    def read(path: Path) -> tuple[NDArray[np.uint8], tuple[int, int]] | Exception:
        try:
            return central(content(path), preprocessing)
        except Exception as error:  # a damaged image can raise an exception of any type
            return error.with_traceback(None)

    image = package("PIL.Image", "data")
    with warnings.catch_warnings():  # `central` rejects images that are too large
        warnings.simplefilter("ignore", image.DecompressionBombWarning)
        results = zip(files, read_ahead(read, files), strict=True)
        while some := list(islice(results, size)):
            chunk = Chunk()
            for path, result in some:
                if isinstance(result, Exception):
                    chunk.failed[str(path)] = _reason(path, result)
                else:
                    chunk.names.append(str(path))
                    chunk.examples.append(result[0])
                    chunk.sizes.append(result[1])
            yield chunk


def _rows(path: Path, features: int, size: int) -> Iterator[Chunk]:
    """The rows of a table; each must consist of `features` numbers."""
    try:
        table = _table(path)
        counts = {len(cells) for _, cells in table}
        if features not in counts:
            found = f"rows of {shortened([str(count) for count in sorted(counts)])}" if counts else "no rows"
            raise DataError(f"must have rows of {features} numbers, got {found}")
    except (DataError, OSError) as error:
        yield Chunk(failed={str(path): _reason(path, error)})
        return
    for begin in range(0, len(table), size):
        chunk = Chunk()
        for name, cells in table[begin : begin + size]:
            try:
                row = np.asarray(cells, np.float64)
            except ValueError:
                row = np.full(len(cells), np.nan)
            if row.shape == (features,) and (np.abs(row) < TOO_LARGE).all():
                chunk.names.append(name)
                chunk.examples.append(row)
            else:
                chunk.failed[name] = _fault(cells, features)
        yield chunk


def _table(path: Path) -> list[tuple[str, Any]]:
    """The name and the cells of each row."""
    data = content(path)
    if path.suffix.lower() == ".npz":
        with (
            parsing(path, "an .npz file without pickled objects", "write it with np.savez"),
            np.load(io.BytesIO(data), allow_pickle=False) as opened,
        ):
            found = {name: opened[name] for name in opened.files}
        values = found["x"] if "x" in found else next(iter(found.values())) if len(found) == 1 else None
        if values is None or values.ndim != 2 or values.dtype.kind not in "fiub":
            shapes = ", ".join(f"{name} {array.shape}" for name, array in found.items())
            raise DataError(f"must contain one array of numbers (rows, features), or one that is named x, got {shapes}")
        return [(f"{path}[{row}]", cells) for row, cells in enumerate(values)]
    if path.suffix.lower() != ".csv":
        raise DataError(f"must be one of {', '.join(TABLES)}, because the run was trained on a table")
    with parsing(path, "a .csv file in UTF-8", "write it again"):
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        lines = [(f"{path}:{reader.line_num}", cells) for cells in reader if cells]
    return lines[1:] if lines and not any(map(_is_number, lines[0][1])) else lines  # without the header


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _fault(cells: Any, features: int) -> str:
    """Why a row cannot be used: the number of its cells, or its first cell that is not a usable number."""
    values = [str(cell) for cell in cells]
    if len(values) != features:
        shown = f"{', '.join(values[:5])}{', …' if len(values) > 5 else ''}"
        return f"{features} numbers are required, got {len(values)} ({shown})"
    column, value = next(
        (column, value)
        for column, value in enumerate(values, 1)
        if not (_is_number(value) and abs(float(value)) < TOO_LARGE)
    )
    return f"column {column} must be a number{f' below {TOO_LARGE:g}' * _is_number(value)}, got {value!r}"


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error).removeprefix(f"{path} ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
