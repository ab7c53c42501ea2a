"""The training loop: it advances the runs of a pack, which share a device, a few steps at a time.

trainings = prepare(unfinished(jobs), load, torch.device("cuda"), resume=True)
train(trainings, watch, stop)
measure_between(trainings)
"""

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import TypeVar

import torch

from ...errors import ArgumentError, ProcessError, SnapensError, StoreError
from .. import nets
from ..data.protocol import Data, Placed
from ..recipe.objectives import Distillation
from ..recipe.recipe import Dataset, Recipe
from ..records import gallery
from ..records.run import Run
from .teacher import Folders, find
from .training import Training
from .world import World

T = TypeVar("T")

_IDLE_SECONDS = 2e-4

Job = tuple[Recipe, str | PathLike[str]]
"""A recipe and the folder of its run."""


def unfinished(jobs: Sequence[Job], *, curves: bool = False) -> list[Job]:
    """The jobs with something left to do: steps, files that were lost, or the errors between snapshots (`curves`)."""
    return [(recipe, path) for recipe, path in jobs if not _is_complete(recipe, Run(path), curves)]


def packs(jobs: Sequence[T], largest: int, devices: int = 1) -> list[Sequence[T]]:
    """Divide jobs into packs of nearly equal size, of at most `largest` runs, so that each device has one if possible.

    Examples:
        >>> packs("abcdefghij", largest=8)
        ['abcde', 'fghij']
    """
    if largest < 1:
        raise ArgumentError(f"pack must be at least 1, got {largest}")
    runs = len(jobs)
    count = max(-(-runs // largest), min(devices, runs))
    return [jobs[k * runs // count : (k + 1) * runs // count] for k in range(count)]


def prepare(
    jobs: Sequence[Job],
    load: Callable[[Recipe], Data],
    device: torch.device,
    *,
    resume: bool = False,
    state_seconds: float = 300.0,
    teachers: Folders = (),
    checked: Callable[[], object] = lambda: None,
    world: World | None = None,
) -> list[Training]:
    """Prepare all runs of a pack, or none: errors are raised before the first step.

    `load` is called once per data set; recipes with equal data share it on the device. `teachers` are the folders of
    the runs that recipes imitate. `checked` is called after the checks of networks, folders and data, before the slow
    part. `world` is the group of processes that train the pack; each of them calls this function.
    """
    world = world or World()
    world.require_same("recipes", [recipe for recipe, _ in jobs])
    loaded = world.agree(lambda: _checked(jobs, load, resume, teachers))
    checked()
    placed: dict[Dataset, Placed] = {}
    trainings: list[Training] = []
    for recipe, path in jobs:
        dataset = recipe.dataset
        try:
            if dataset not in placed:
                placed[dataset] = world.agree(partial(_placed, loaded[dataset.name], dataset, device))
                world.require_same("data", placed[dataset].data.described())
            training = Training(
                recipe, placed[dataset], path, state_seconds=state_seconds, teachers=teachers, world=world
            )
            trainings.append(training)
        except (SnapensError, OSError):
            raise
        except Exception as error:
            raise _explained(error, recipe, device, len(trainings), len(jobs)) from error
    _open(trainings, resume)
    return trainings


def train(
    trainings: Sequence[Training],
    watch: Callable[[Training], object] = lambda training: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Advance the runs together until each has finished or failed; a run that fails does not affect the others.

    `watch` is called with a run each time it has advanced, then `stop` is called: when it returns true, each run saves
    its state and training ends. An error that does not occur in all processes of a pack ends all runs.
    """
    try:
        _train(trainings, watch, stop)
    except ProcessError:
        for training in trainings:
            training.close()
        raise


def measure_between(trainings: Sequence[Training]) -> None:
    """Measure and store, for each finished run, the errors between its snapshots; a failure does not affect others."""
    for training in trainings:
        if training.finished:
            _attempt(training, training.measure_between)


def _train(trainings: Sequence[Training], watch: Callable[[Training], object], stop: Callable[[], bool]) -> None:
    world = trainings[0].world if trainings else World()
    active = [training for training in trainings if not training.finished]
    stopped = world.any(stop())
    while active and not stopped:
        ready = [training for training in active if training.ready]
        for training in ready:
            _attempt(training, training.advance)
            watch(training)
            if stopped := world.any(stop()):
                break
        active = [training for training in active if not (training.finished or training.failure)]
        if not ready:
            time.sleep(_IDLE_SECONDS)
            stopped = world.any(stop())
    for training in active:
        _attempt(training, training.save)
        training.close()


def _checked(jobs: Sequence[Job], load: Callable[[Recipe], Data], resume: bool, teachers: Folders) -> dict[str, Data]:
    """The data sets by name, once networks, folders and data are known to fit together."""
    for recipe, path in jobs:
        nets.require(**vars(recipe.network))
        Run(path).admit(recipe, resume)
        if isinstance(recipe.objective, Distillation):
            find(recipe.objective.teacher, teachers)
    loaded: dict[str, Data] = {}
    for recipe, _ in jobs:
        name = recipe.dataset.name
        if name not in loaded:
            loaded[name] = load(recipe)
        nets.require(**vars(recipe.network), inputs=loaded[name].inputs)
    return loaded


def _placed(data: Data, dataset: Dataset, device: torch.device) -> Placed:
    return data.hold_out(dataset.held_out, dataset.held_out_seed).place(device, dataset.padding)


def _is_complete(recipe: Recipe, run: Run, curves: bool) -> bool:
    if not (run.exists and run.finished):
        return False
    run.require(recipe)
    try:  # damaged files are computed again when the run is resumed
        return gallery.is_intact(run, run.outputs()) and not (curves and run.curves() is None)
    except StoreError:
        return False


def _open(trainings: Sequence[Training], resume: bool) -> None:
    """Begin or resume all runs in their folders; if one of them fails, the others release their locks."""
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


def _explained(error: Exception, recipe: Recipe, device: torch.device, prepared: int, runs: int) -> ArgumentError:
    """The error for a run that could not be prepared; `prepared` is the number of runs before it."""
    if _memory_is_out(error):
        fits = f"the first {prepared} fit" if prepared else "not even one fits"
        return ArgumentError(
            f"a pack must fit into the memory of {device}, got {runs} runs, of which {fits}: "
            "train fewer runs at a time, or use a smaller batch"
        )
    *_, last = traceback.extract_tb(error.__traceback__)  # the line that raised the error, for authors of networks
    return ArgumentError(
        f"network {recipe.network.name!r} must be able to train on {recipe.dataset.name} in batches of "
        f"{recipe.budget.batch}, got {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    )


def _memory_is_out(error: BaseException | None) -> bool:
    """Whether the cause is a lack of memory; a failed capture may raise another error on top of it."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _attempt(training: Training, action: Callable[[], object]) -> None:
    """Call `action`; if it fails, store the error in `failure` and in the run's log."""
    try:
        action()
    except ProcessError:
        raise
    except Exception as error:
        training.failure = error
        training.close()
        with suppress(OSError, ProcessError):  # a full disk may be the failure itself
            training.log.note("failed", reason=f"{type(error).__name__}: {error}")
