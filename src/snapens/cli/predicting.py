"""`snapens predict`: predictions of a run for new examples."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from ..errors import ArgumentError
from .combining import combination_of
from .messages import say, show
from .options import Folder, ImportNetwork, arg

if TYPE_CHECKING:
    from ..combination import Combination
    from ..ensemble import Ensemble
    from ..lab.data.unlabelled import Chunk
    from ..lab.records.run import Run

Row = dict[str, Any]
_COLUMNS = ("file", "class", "probability", "entropy", "mutual_information", "members_used")


@dataclass(frozen=True)
class Predict:
    """Predict the classes of image files, or of the rows of a table, with a run."""

    run: Folder
    """The run folder. The data set is not needed."""
    files: Annotated[tuple[Path, ...], Positional, arg("FILE [FILE ...]", "(required)")]
    """Image files, or folders of image files; for a run that was trained on a table, .csv or .npz files."""
    format: Literal["table", "csv", "json"] = "table"
    """table: for reading; csv or json: for other programs."""
    last: Annotated[int | None, arg("M")] = None
    """The number of the last snapshots to use, with equal weights. By default combination.json, or all snapshots."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one, else the CPU."""
    batch: int = 64
    """Examples per batch."""
    import_network: ImportNetwork = False

    def __call__(self) -> int:
        """Print a prediction per example; the status is 1 if some examples cannot be used."""
        from ..lab.data.unlabelled import chunks, listed
        from ..lab.records.run import Run
        from .interrupt import Interrupt
        from .loader import import_network_of
        from .progress import Counting

        if self.batch < 1:
            raise ArgumentError(f"batch must be at least 1, got {self.batch}")
        run = Run(self.run)
        preprocessing = run.preprocessing
        files = listed(self.files, preprocessing)
        count = len(files) if "channels" in preprocessing.inputs else None
        streams = self.format != "table" and sys.stdout.isatty()  # then lines on the terminal show the progress
        failed = 0
        with Interrupt():
            import_network_of(run, self.import_network)
            predictor = _Predictor(run, combination_of(run, self.last), self.device)
            shown = Counting("images" if count else "rows", count, bar=sys.stderr.isatty() and not streams)
            with _WRITERS[self.format]() as write, shown as progress:  # the bar ends before a table is printed
                for chunk in chunks(files, preprocessing, self.batch):
                    for row in predictor(chunk):
                        failed += "error" in row
                        write(row)
                    progress(len(chunk.names) + len(chunk.failed))
        return 1 if failed else 0


class _Predictor:
    """The rows of the output for some examples; messages go to the terminal."""

    def __init__(self, run: "Run", combination: "Combination | None", device: str) -> None:
        from ..lab.engine.device import chosen_device

        self._device = chosen_device(device)
        self._ensemble: Ensemble = run.ensemble(combination=combination, device=self._device, import_network=True)
        self._classes, self._preprocessing = run.data["classes"], run.preprocessing
        self._size_noted = getattr(run.preprocessing, "crop", 1.0) < 1  # photos are always cropped

    def __call__(self, chunk: "Chunk") -> Iterator[Row]:
        """A row per example that was predicted, then one per example that cannot be used."""
        import torch

        from ..uncertainty import predict

        self._note_size(chunk)
        if chunk.names:
            examples = torch.from_numpy(chunk.stacked()).to(self._device)
            found = predict(self._ensemble, examples)
            names = [self._classes[index] for index in found.probabilities.argmax(-1)]
            numbers = (found.probabilities.max(-1), found.entropy, found.mutual_information, found.used)
            for values in zip(chunk.names, names, *(column.tolist() for column in numbers), strict=True):
                row: Row = dict(zip(_COLUMNS, values, strict=True))
                if row["members_used"] == 1:
                    row["mutual_information"] = None  # 0 would mean that several members agree
                yield row
        for name, reason in chunk.failed.items():
            say(f"snapens: {name}: {reason}")
            yield {"file": name, "error": reason}

    def _note_size(self, chunk: "Chunk") -> None:
        """Print a note, once, if small images have another size than the training images."""
        side = getattr(self._preprocessing, "size", None)
        others = [k for k, size in enumerate(chunk.sizes) if size != (side, side)]
        if others and not self._size_noted:
            self._size_noted = True
            width, height = chunk.sizes[others[0]]
            say(
                f"images are cropped to their central square and resized to {side} × {side}, the size of the training "
                f"images; {chunk.names[others[0]]} has {width} × {height} pixels"
            )


@contextmanager
def _table() -> Iterator[Any]:
    from rich.table import Column, Table

    numbers = [Column(name.replace("_", " "), justify="right") for name in _COLUMNS[2:]]
    table = Table("file", "class", *numbers, box=None, pad_edge=False)

    def write(row: Row) -> None:
        if "error" not in row:
            file, name, *values, used = (row[column] for column in _COLUMNS)
            shown = ("–" if value is None else f"{value:.4f}" for value in values)
            table.add_row(_printable(file), _printable(name), *shown, str(used))

    yield write
    if table.row_count:
        show(table)


@contextmanager
def _csv() -> Iterator[Any]:
    from ..report.formats import csv_lines

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # names of files must not be escaped

    def write(row: Row) -> None:
        if "error" not in row:
            _put(csv_lines([[row[column] for column in _COLUMNS]]))

    _put(csv_lines([_COLUMNS]))
    yield write


@contextmanager
def _json() -> Iterator[Any]:
    """A list with an object per line; it is closed even if the command is interrupted."""
    from ..storage.jsonfile import compact

    before = "\n"

    def write(row: Row) -> None:
        nonlocal before
        _put(f"{before}{compact(row)}")
        before = ",\n"

    _put("[")
    try:
        yield write
    finally:
        _put("\n]\n")


_WRITERS = {"table": _table, "csv": _csv, "json": _json}


def _printable(text: str) -> str:
    """A text without characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _put(text: str) -> None:
    sys.stdout.write(text.encode("utf-8", "replace").decode())  # a name may contain bytes that are not UTF-8
