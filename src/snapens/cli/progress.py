"""What is seen of a training while it lasts: bars on a terminal, lines elsewhere, TensorBoard's files."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..extras import package

if TYPE_CHECKING:
    from ..lab.engine.training import Training

_BAR_SECONDS, _LINE_SECONDS = 0.2, 15.0


class Watcher(Protocol):
    """Is shown a run whenever it has moved."""

    def __call__(self, training: "Training") -> None:
        """Take note."""

    def close(self) -> None:
        """Training is over."""


class Bars:
    """One bar a run: epoch, rate, loss, images a second, time left."""

    def __init__(self, trainings: Sequence["Training"]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.fields[epoch]:.1f} / {task.fields[epochs]}"),
            TextColumn("lr {task.fields[lr]:.4f}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._tasks = {id(training): self._added(training) for training in trainings}
        self._shown: dict[int, float] = {}
        self._progress.start()

    def __call__(self, training: "Training") -> None:
        """Move the run's bar, a few times a second."""
        now, key = time.monotonic(), id(training)
        if now - self._shown.get(key, 0.0) > _BAR_SECONDS or training.finished or training.failure:
            self._shown[key] = now
            self._progress.update(self._tasks[key], completed=training.completed, **_fields(training))

    def close(self) -> None:
        """Leave the bars as they are."""
        self._progress.stop()

    def _added(self, training: "Training") -> TaskID:
        return self._progress.add_task(
            training.run.path.name, total=training.total_steps, completed=training.completed, **_fields(training)
        )


class Lines:
    """A line for each run now and then, for logs."""

    def __init__(self) -> None:
        self._shown: dict[int, float] = {}

    def __call__(self, training: "Training") -> None:
        """Write a line if the last one is long ago, or the run has ended."""
        now, key = time.monotonic(), id(training)
        ended = training.finished or training.failure
        if not ended and now - self._shown.setdefault(key, now) < _LINE_SECONDS:
            return
        self._shown[key] = now
        fields = _fields(training)
        left = training.seconds_left
        state = "failed" if training.failure else "done" if training.finished else f"{_clock(left)} left"
        sys.stderr.write(
            f"{training.run.path.name}: epoch {fields['epoch']:.1f} / {fields['epochs']}, lr {fields['lr']:.4f}, "
            f"loss {fields['loss']}, {fields['speed']} images/s, {state}\n"
        )

    def close(self) -> None:
        """Nothing is left to write."""


class TensorBoard:
    """Loss, rate, speed and test error of each run, as TensorBoard reads them."""

    def __init__(self) -> None:
        package("tensorboard", "log")
        self._open = package("torch.utils.tensorboard", "log").SummaryWriter
        self._writers: dict[int, Any] = {}
        self._written: dict[int, int] = {}

    def __call__(self, training: "Training") -> None:
        """Write what the run's log has gained."""
        key = id(training)
        if fresh := training.lines_logged - self._written.get(key, 0):
            if key not in self._writers:
                self._writers[key] = self._open(str(training.run.path / "tensorboard"))
            for line in list(training.run.log())[-fresh:]:
                for name in ("loss", "lr", "images_per_second", "test_error"):
                    if line.get(name) is not None:
                        self._writers[key].add_scalar(name, line[name], line["step"])
            self._written[key] = training.lines_logged

    def close(self) -> None:
        """Flush the files."""
        for writer in self._writers.values():
            writer.close()


class Download:
    """A bar for a file that is being fetched; shown only if one is."""

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
        """So many bytes of so many are here."""
        if self._task is None or done == 0:
            self._progress.start()
            self._task = self._progress.add_task(f"fetching {self._name}", total=total or None)
        self._progress.update(self._task, completed=done, total=total or None)

    def __exit__(self, *exception: object) -> None:
        if self._task is not None:
            self._progress.stop()


def _fields(training: "Training") -> dict[str, Any]:
    return {
        "epoch": training.epoch,
        "epochs": training.recipe.epochs,
        "lr": training.lr,
        "loss": "–" if training.loss is None else f"{training.loss:.3f}",
        "speed": "–" if training.images_per_second is None else f"{training.images_per_second:,.0f}",
    }


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
