"""The engine: the only training loop. It advances one run, or a pack of them, a few steps at a time."""

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike

import torch

from ...errors import ArgumentError, SnapensError
from .. import nets
from ..data.images import ImageData
from ..recipe.recipe import Recipe
from ..records.run import Run
from .feed import Placed
from .training import Training

_IDLE_SECONDS = 2e-4


def prepare(
    jobs: Sequence[tuple[Recipe, str | PathLike[str]]],
    load: Callable[[Recipe], ImageData],
    device: torch.device,
    *,
    resume: bool = False,
    state_seconds: float = 300.0,
) -> list[Training]:
    """Have every run of a pack ready to train, or none: what cannot work is refused before the first step.

    Recipes with equal data share it on the device.
    """
    placed: dict[tuple[object, ...], Placed] = {}
    trainings: list[Training] = []
    for recipe, path in jobs:
        nets.require(recipe.network, dropout=recipe.dropout, stem_stride=recipe.stem_stride)
        Run(path).admit(recipe, resume)
    for recipe, path in jobs:
        key = (recipe.dataset, recipe.held_out, recipe.held_out_seed)
        try:
            if key not in placed:
                placed[key] = Placed(load(recipe).hold_out(recipe.held_out, recipe.held_out_seed), device)
            trainings.append(Training(recipe, placed[key], path, state_seconds=state_seconds))
        except (SnapensError, OSError):
            raise
        except Exception as error:
            if _memory_is_out(error):
                fits = f"the first {len(trainings)} fit" if trainings else "not even one fits"
                raise ArgumentError(
                    f"a pack must fit the memory of {device}, got {len(jobs)} runs, of which {fits}: "
                    "train fewer at a time, or with a smaller batch"
                ) from error
            raise ArgumentError(
                f"network {recipe.network!r} must be able to train on {recipe.dataset} in batches of {recipe.batch}, "
                f"got {type(error).__name__}: {error} ({_place(error)})"
            ) from error
    opened: list[Training] = []
    try:
        for training in trainings:
            training.pack = len(trainings)
            training.open(resume)
            opened.append(training)
    except BaseException:
        for training in opened:
            training.close()
        raise
    return trainings


def measure_between(trainings: Sequence[Training]) -> None:
    """Have every finished run keep the errors between its snapshots; one that fails leaves the others alone."""
    for training in trainings:
        if training.finished:
            _attempt(training, training.measure_between)


def train(
    trainings: Sequence[Training],
    watch: Callable[[Training], object] = lambda training: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Advance the runs together until all are finished or failed; one that fails leaves the others alone.

    `watch` is called with a run whenever it has moved; once `stop()` is true each keeps its state and training ends.
    """
    active = [training for training in trainings if not training.finished]
    while active and not stop():
        moved = [training for training in active if training.ready]
        for training in moved:
            _attempt(training, training.advance)
            watch(training)
        active = [training for training in active if not (training.finished or training.failure)]
        if not moved:
            time.sleep(_IDLE_SECONDS)
    for training in active:
        _attempt(training, training.save)
        training.close()


def _place(error: BaseException) -> str:
    """The line that raised it, for the author of a network."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{last.filename}, line {last.lineno}"


def _memory_is_out(error: BaseException | None) -> bool:
    """Whether that is the reason; leaving a capture that failed may hide it behind another error."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _attempt(training: Training, action: Callable[[], object]) -> None:
    """A failure is that run's own: it is kept with it and noted."""
    try:
        action()
    except Exception as error:
        training.failure = error
        training.close()
        with suppress(OSError):  # a full disk may be the failure itself
            training.run.note("failed", reason=f"{type(error).__name__}: {error}")
