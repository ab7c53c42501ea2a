"""The display of a training in progress: bars on a terminal, lines elsewhere, TensorBoard files."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..extras import package

if TYPE_CHECKING:
    from ..lab.engine.training import Training
    from ..lab.records.followed import Followed

    Shown = Training | Followed

_LONGEST_LABEL, _LONGEST_BAR, _SHORTEST_BAR = 28, 24, 5
_HASH = re.compile("[0-9a-f]{8}")  # of a recipe, in the name of a run
_NUMBERS = {  # the template of each number, and a wide value
    "epoch": ("epoch {}", ""),
    "lr": ("lr {}", "2.50e-05"),
    "loss": ("loss {}", "0.00123"),
    "speed": ("{} images/s", "100,000"),
    "left": ("{} left", "0:00:00"),
}
_BAR_SECONDS, _FIRST_LINE_SECONDS, _LINE_SECONDS = 0.2, 2.0, 15.0


@contextmanager
def display(trainings: Sequence["Shown"], tensorboard: "TensorBoard | None") -> Iterator[Callable[["Shown"], object]]:
    """Show the progress of a pack; the context returns a function to call with each run that has advanced."""
    shown = Bars(trainings) if sys.stderr.isatty() else Lines(trainings)
    parts = [shown, tensorboard] if tensorboard else [shown]
    try:
        yield lambda training: [part(training) for part in parts]
    finally:
        for part in parts:
            part.close()


class Bars:
    """One bar per run: epoch, learning rate, loss, images per second, time left.

    On a narrow terminal the bars are shorter or left out, and then some of the numbers are left out; no number is cut.
    A run without a known number of steps has not started and has no bar. If there are more runs than lines on the
    terminal, the bars of those that have ended are hidden.
    """

    def __init__(self, trainings: Sequence["Shown"]) -> None:
        console = Console(stderr=True)
        labels = _labels([run.run.path.name for run in trainings])
        most_epochs = max(run.recipe.budget.epochs for run in trainings)
        label_width, bar_width, numbers = _layout(console.width, max(map(len, labels)), most_epochs)
        labels = [label if len(label) <= label_width else f"…{label[1 - label_width :]}" for label in labels]
        columns: list[ProgressColumn] = []
        if label_width:
            columns.append(
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, min_width=label_width))
            )
        if bar_width:
            columns.append(BarColumn(bar_width=bar_width))
        for name in numbers:
            template = _NUMBERS[name][0].format(f"{{task.fields[{name}]}}")
            columns.append(TextColumn(template, table_column=Column(no_wrap=True)))
        self._progress = Progress(*columns, console=console)
        self._tasks = {
            id(run): self._progress.add_task(
                label,
                total=run.total_steps,
                completed=run.completed,
                visible=run.total_steps > 0,
                **_fields(run),
            )
            for run, label in zip(trainings, labels, strict=True)
        }
        self._shown: dict[int, float] = {}
        self._crowded = len(trainings) > self._progress.console.height
        self._progress.start()

    def __call__(self, training: "Shown") -> None:
        """Move the run's bar, a few times per second."""
        now, key, ended = time.monotonic(), id(training), training.finished or bool(training.failure)
        if now - self._shown.get(key, 0.0) > _BAR_SECONDS or ended:
            self._shown[key] = now
            visible = training.total_steps > 0 and not (ended and self._crowded)
            steps, total = training.completed, training.total_steps
            self._progress.update(self._tasks[key], total=total, completed=steps, visible=visible, **_fields(training))

    def close(self) -> None:
        """Leave the bars as they are."""
        self._progress.stop()


class Lines:
    """A line per run every 15 seconds, for log files: the first one after 2 seconds, the last one at the end."""

    def __init__(self, trainings: Sequence["Shown"]) -> None:
        self._due = dict.fromkeys(map(id, trainings), time.monotonic() + _FIRST_LINE_SECONDS)

    def __call__(self, training: "Shown") -> None:
        """Write a line if one is due, or the run has ended."""
        now, key = time.monotonic(), id(training)
        if now < self._due[key] and not (training.finished or training.failure):
            return
        self._due[key] = now + _LINE_SECONDS
        fields = _fields(training)
        state = "failed" if training.failure else "done" if training.finished else f"{fields['left']} left"
        sys.stderr.write(
            f"{training.run.path.name}: epoch {fields['epoch']}, lr {fields['lr']}, "
            f"loss {fields['loss']}, {fields['speed']} images/s, {state}\n"
        )

    def close(self) -> None:
        """Do nothing, because all lines are written."""


class TensorBoard:
    """Writes loss, learning rate, speed and test error of each run for TensorBoard."""

    def __init__(self) -> None:
        package("tensorboard", "log")
        self._open = package("torch.utils.tensorboard", "log").SummaryWriter
        self._writers: dict[int, Any] = {}
        self._written: dict[int, int] = {}

    def __call__(self, training: "Shown") -> None:
        """Write the lines that are new in the run's log."""
        key = id(training)
        if fresh := training.log.lines - self._written.get(key, 0):
            if key not in self._writers:
                self._writers[key] = self._open(str(training.run.path / "tensorboard"))
            for line in list(training.run.log())[-fresh:]:
                for name in ("loss", "lr", "images_per_second", "test_error"):
                    if line.get(name) is not None:
                        self._writers[key].add_scalar(name, line[name], line["step"])
            self._written[key] = training.log.lines

    def close(self) -> None:
        """Flush the files."""
        for writer in self._writers.values():
            writer.close()


class Download:
    """A bar for the file being downloaded; it is shown only if there is one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "Download":
        return self

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes have arrived."""
        if self._task is None or done == 0:
            self._progress.start()
            self._task = self._progress.add_task(f"downloading {self._name}", total=total or None)
        self._progress.update(self._task, completed=done, total=total or None)

    def __exit__(self, *exception: object) -> None:
        if self._task is not None:
            self._progress.stop()


class Counting:
    """Shows how many files or rows are done: a bar on a terminal, otherwise a line every 15 seconds."""

    def __init__(self, noun: str, total: int | None, *, bar: bool) -> None:
        self._noun, self._total, self._done = noun, total, 0
        self._due = time.monotonic() + _LINE_SECONDS
        self._bar = Progress(console=Console(stderr=True), redirect_stdout=False, transient=True) if bar else None

    def __enter__(self) -> "Counting":
        if self._bar is not None:
            self._task = self._bar.add_task(self._noun, total=self._total)
            self._bar.start()
        return self

    def __call__(self, count: int) -> None:
        """Show that `count` more are done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif (now := time.monotonic()) > self._due:
            self._due = now + _LINE_SECONDS
            sys.stderr.write(f"{self._done:,}{f' of {self._total:,}' if self._total else ''} {self._noun}\n")

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _fields(training: "Shown") -> dict[str, Any]:
    """The values of a bar or a line; before the first step, speed and time left are those of the rehearsed step."""
    budget, speed = training.recipe.budget, training.images_per_second
    epoch = budget.epochs if training.finished else training.epoch  # a partial batch is left out
    if speed is None and training.rehearsal_seconds is not None:
        speed = budget.batch / training.rehearsal_seconds
    left = None if speed is None else (training.total_steps - training.completed) * budget.batch / speed
    return {
        "epoch": f"{epoch:.1f} / {budget.epochs}",
        "lr": _number(training.lr, 4),
        "loss": "–" if training.log.loss is None else _number(training.log.loss, 3),
        "speed": "–" if speed is None else f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}",
        "left": "–" if left is None else _clock(left),
    }


def _layout(columns: int, longest_label: int, epochs: int) -> tuple[int, int, list[str]]:
    """The width of the labels, the width of the bar, and the names of the numbers that fit on a terminal.

    Examples:
        >>> _layout(80, 0, 300)  # one run
        (0, 7, ['epoch', 'lr', 'loss', 'speed', 'left'])
        >>> _layout(60, 5, 300)
        (5, 10, ['epoch', 'loss', 'left'])
    """
    widths = {name: len(template.format(value)) for name, (template, value) in _NUMBERS.items()}
    widths["epoch"] += len(f"{epochs:.1f} / {epochs}")
    label = min(longest_label, _LONGEST_LABEL)
    for left_out in ("speed", "lr"):  # a number is shown in full or not at all
        if columns < label + sum(widths.values()) + len(widths):
            del widths[left_out]
    room = columns - sum(widths.values()) - len(widths)
    label = min(label, room) if room > 1 else 0  # one column would be the ellipsis alone
    bar = min(_LONGEST_BAR, room - label - (label > 0))
    return label, bar if bar >= _SHORTEST_BAR else 0, list(widths)


def _labels(names: Sequence[str]) -> list[str]:
    """The words that distinguish the names of several runs; a single run needs none.

    Examples:
        >>> _labels(["small-glyphs-0.1-6-epochs-ddbe3dbb-seed0", "small-glyphs-0.2-6-epochs-1f2e3d4c-seed0"])
        ['0.1', '0.2']
        >>> _labels(["small-glyphs-single-seed0", "small-glyphs-snapshot-0.2-seed0"])
        ['single-seed0', 'snapshot-0.2-seed0']
        >>> _labels(["small-glyphs-single-seed0"])
        ['']
    """
    if len(names) == 1:
        return [""]
    words = [name.split("-") for name in names]
    if len(set(map(len, words))) > 1:
        same = takewhile(lambda column: len(set(column)) == 1, zip(*(name[:-1] for name in words), strict=False))
        begin = len(list(same))
        return ["-".join(name[begin:]) for name in words]
    differing = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
    without_hash = [column for column in differing if not all(map(_HASH.fullmatch, column))]
    for columns in (without_hash, differing):
        if len(labels := ["-".join(row) for row in zip(*columns, strict=True)]) == len(set(labels)) == len(names):
            return labels
    return list(names)


def _number(value: float, decimals: int) -> str:
    """A number of at least 0 with some decimals, or with three digits if it is too small or too large for that.

    Examples:
        >>> _number(0.05, 4), _number(2e-5, 4), _number(1.449e21, 3), _number(0.0, 3)
        ('0.0500', '2e-05', '1.45e+21', '0.000')
    """
    return f"{value:.{decimals}f}" if value == 0 or 10 ** (1 - decimals) <= value < 1000 else f"{value:.3g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
