"""Training from the command line: data, device, progress, Ctrl-C."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import ArgumentError, SnapensError, StoreError
from ..lab import data
from ..lab.data.images import ImageData
from ..lab.recipe.recipe import Recipe
from ..lab.records.run import Run
from .progress import Bars, Download, Lines, TensorBoard, Watcher

if TYPE_CHECKING:
    import torch

    from ..lab.engine.training import Training
    from .options import Where


def train(
    jobs: Sequence[tuple[Recipe, Path]],
    where: "Where",
    *,
    curves: bool = False,
    again: str = "the same command with --resume",
) -> int:
    """Train a pack: 0 if all its runs finished, 1 if one failed, 130 if it was interrupted.

    A run to be resumed that has finished is left as it is. With `curves`, the errors between snapshots are measured at
    the end. `again` is what goes on after an interruption.
    """
    import torch  # only now: --help need not wait for it

    from ..lab.engine import pack as engine

    device, root = chosen_device(where.device), data_root(where.data)
    _limit_threads(where.threads)
    watchers: list[Watcher] = [TensorBoard()] if where.tensorboard else []
    if where.resume:
        jobs = [(recipe, path) for recipe, path in jobs if not _is_complete(recipe, path, curves)]
    if not jobs:
        return 0

    def load(recipe: Recipe) -> ImageData:
        sys.stderr.write(f"reading {recipe.dataset}\n")
        with Download(recipe.dataset) as progress:
            return data.load(recipe.dataset, root, download=where.download, progress=progress)

    if device.type == "cuda":
        sys.stderr.write(f"preparing {len(jobs)} run{'s' * (len(jobs) > 1)}: the networks are being compiled\n")
    trainings = engine.prepare(jobs, load, device, resume=where.resume)
    interrupt = _Interrupt()
    watchers.append(Bars(trainings) if sys.stderr.isatty() else Lines())

    def watch(training: "Training") -> None:
        for watcher in watchers:
            watcher(training)

    try:
        engine.train(trainings, watch, interrupt)
    finally:
        interrupt.restore()
        for watcher in watchers:
            watcher.close()
    interrupted = not all(training.finished or training.failure for training in trainings)
    if curves and not interrupted:
        sys.stderr.write("measuring between the snapshots\n")
        engine.measure_between(trainings)
    for training in trainings:
        if training.failure is not None:
            sys.stderr.write(f"snapens: {training.run.path} failed: {training.failure}\n")
    if interrupted:
        sys.stderr.write(f"snapens: interrupted; {again} goes on\n")
        return 128 + interrupt.number
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device) / 2**30
        sys.stderr.write(f"peak memory of the pack on {torch.cuda.get_device_name(device)}: {peak:.1f} GiB\n")
    return 1 if any(training.failure for training in trainings) else 0


def show_report(paths: Sequence[Path]) -> None:
    """Write the page of some runs and say where it is, or what it would take."""
    from ..report.page import write

    try:
        sys.stdout.write(f"report: {write([Run(path) for path in paths], paths[0] / 'report.html')}\n")
    except SnapensError as error:
        sys.stdout.write(f"no report: {error}\n")


def _limit_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        if threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)


def _is_complete(recipe: Recipe, path: Path, curves: bool) -> bool:
    """Whether nothing is left to do of a run; then that is said."""
    run = Run(path)
    if not (run.exists and run.finished) or (curves and run.curves() is None):
        return False
    try:
        run.outputs()
    except StoreError:  # the snapshots will be asked again
        return False
    run.require(recipe)
    sys.stderr.write(f"{path} is finished already\n")
    return True


def chosen_device(name: str) -> "torch.device":
    """The device of a name; auto is the GPU if there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device must be one that is here, got cuda, but torch sees no GPU: take cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def data_root(given: Path | None) -> Path | None:
    """Where the data lies: as given, or as the variable SNAPENS_DATA says."""
    named = os.environ.get("SNAPENS_DATA")
    return given or (Path(named) if named else None)


class _Interrupt:
    """True once Ctrl-C or a termination was asked for; the second time they act as ever."""

    number = 0
    """Of the signal that asked."""

    def __init__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __call__(self) -> bool:
        return self.number != 0

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.restore()
