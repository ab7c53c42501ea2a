"""Training from the command line: messages, progress, Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError, ProcessError, SnapensError
from . import processes
from .interrupt import Interrupt
from .loader import Jobs, Loader, data_root, import_from_here, require_outside_images
from .messages import Failures, say

if TYPE_CHECKING:
    import torch

    from ..lab.engine.training import Training
    from .options import TrainingOptions

AGAIN = "the same command with --resume"
_LARGE_SHARE = 0.01  # of initial weights in an average
_LONG_SECONDS = 3600.0
_LARGE_STEP_SECONDS = 0.5  # below this, the extra cost of the first step dominates the trial step


def train(
    jobs: Jobs,
    options: "TrainingOptions",
    load: Loader | None = None,
    *,
    curves: bool = False,
    teachers: Sequence[Path] = (),
    failures: Failures | None = None,
    again: str = AGAIN,
    is_last: bool = True,
) -> int:
    """Train a pack and return the exit status: 0 if all runs finished, 1 if one failed, 128 + the number of a signal.

    A finished run that is resumed stays as it is. With `curves`, the errors between snapshots are measured at the end.
    `teachers` are the folders of the runs that recipes imitate. `failures` are those of a plan that this pack belongs
    to, in which other packs follow unless it `is_last`. `again` is the command that continues the training after an
    interruption; a pack that has finished although it was interrupted has nothing to continue if it is the last one.
    """
    interrupt = Interrupt(quiet=not processes.is_first())
    with Failures() as own:
        try:
            with interrupt:  # its own message is printed before those below
                return _train(
                    jobs, options, load or Loader(options), curves, teachers, failures or own, interrupt, is_last
                )
        except KeyboardInterrupt:
            say(f"snapens: interrupted; {again} continues the training")
            return 128 + interrupt.number
        except ProcessError as error:
            raise ProcessError(f"{error}; {again} continues the training") from error


def _train(
    jobs: Jobs,
    options: "TrainingOptions",
    load: Loader,
    curves: bool,
    teachers: Sequence[Path],
    failures: Failures,
    interrupt: Interrupt,
    is_last: bool,
) -> int:
    from ..lab.engine import pack  # only now: --help does not wait for torch
    from .progress import TensorBoard, display

    world = processes.world()
    tensorboard = world.agree(lambda: TensorBoard() if options.tensorboard and world.is_first else None)
    trainings = _prepared(jobs, options, load, curves, teachers)
    if not trainings:
        return 0
    _warn_of_hours(trainings)
    _warn_of_slow_averages(trainings)
    try:
        with interrupt.finish_step(), display(trainings, tensorboard) as watch:
            pack.train(trainings, watch, interrupt)
            if not all(training.finished or training.failure for training in trainings):
                interrupt.number = interrupt.number or signal.SIGTERM  # only another process received the signal
            elif is_last and not curves and all(training.finished for training in trainings):
                interrupt.number = 0  # it arrived in the last steps: nothing is left to continue
        if curves and world.is_first:
            say("measuring the errors between the snapshots")
            pack.measure_between(trainings)
    finally:
        failed = [training for training in trainings if training.failure is not None]
        for training in failed:
            failures.add(str(training.failure), str(training.run.path))
    _say_peak_memory(trainings[0].placed.device)
    return 1 if failed else 0


def _prepared(
    jobs: Jobs, options: "TrainingOptions", load: Loader, curves: bool, teachers: Sequence[Path]
) -> "list[Training]":
    """The runs that are left to train, ready for their next step."""
    from ..lab.engine import pack
    from ..lab.engine.device import chosen_device, keep_freed_memory

    world = processes.world()
    device = world.agree(lambda: chosen_device(options.device))
    require_outside_images(jobs, data_root(options.data))
    _set_threads(options.threads)
    if device.type == "cpu":
        keep_freed_memory()
    import_from_here(recipe.network.name for recipe, _ in jobs)
    left = unfinished(jobs, curves) if options.resume else jobs
    if not left:
        return []
    if options.download and world.count > 1:  # one process per machine downloads, then the others read
        world.agree(lambda: load.read(recipe for recipe, _ in left) if world.local_rank == 0 else None)
    return pack.prepare(
        left,
        load,
        device,
        resume=options.resume,
        teachers=teachers,
        checked=lambda: _announce(len(left), device.type, world.count),
        world=world,
    )


def unfinished(jobs: Jobs, curves: bool) -> Jobs:
    """The jobs with something left to do; a message names each of the others."""
    from ..lab.engine import pack

    left = processes.world().first(lambda: pack.unfinished(jobs, curves=curves))
    for job in jobs:
        if job not in left:
            say(f"{job[1]} is already finished")
    return [job for job in jobs if job in left]


def with_report(paths: Sequence[Path], show: Callable[[], object]) -> None:
    """Write the report of some runs, call `show`, and print the path of the report or why there is none.

    The report exists before anything is printed, because a pipe may be closed early.
    """
    from ..lab.records.run import Run
    from ..report.page import write

    try:
        line = f"report: {write([Run(path) for path in paths], paths[0] / 'report.html')}"
    except SnapensError as error:
        line = f"no report: {error}"
    except BaseException:
        show()
        raise
    show()
    sys.stdout.write(f"{line}\n")


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is None:
        return
    if threads < 1:
        raise ArgumentError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)


def _announce(runs: int, device: str, processes: int) -> None:
    several = runs > 1
    slow = f"compiling the network{'s' * several}" if device == "cuda" else f"a trial step{' each' * several}"
    together = f" with {processes} processes" if processes > 1 else ""
    say(f"preparing {runs} run{'s' * several}{together}: {slow}")


def _warn_of_hours(trainings: Sequence["Training"]) -> None:
    """Warn of a pack that will train for hours on a CPU, estimated from the trial steps."""
    slow = [run for run in trainings if run.rehearsal_seconds and run.rehearsal_seconds > _LARGE_STEP_SECONDS]
    seconds = sum((run.total_steps - run.completed) * (run.rehearsal_seconds or 0) for run in slow)
    if seconds > _LONG_SECONDS:
        names = ", ".join(dict.fromkeys(run.recipe.network.name for run in slow))
        say(
            f"snapens: training {names} on this CPU may take up to {seconds / 3600:,.0f} hours "
            f"(the first step took {slow[0].rehearsal_seconds:.1f} seconds): use a GPU, fewer --epochs, or "
            "--network small"
        )


def _warn_of_slow_averages(trainings: Sequence["Training"]) -> None:
    """Warn of averages that still contain the initial weights when they are stored for the first time."""
    from ..lab.recipe import EMA

    for run in trainings:
        average, first = run.recipe.averaging, run.schedule.snapshot_steps[0]
        if isinstance(average, EMA) and run.completed < first and (share := average.decay**first) > _LARGE_SHARE:
            say(
                f"snapens: the initial weights are {100 * share:.0f} % of the first snapshot of {run.run.path}, "
                f"because --ema {average.decay:g} is too slow for {first} steps: use a lower --ema, or more --epochs"
            )


def _say_peak_memory(device: "torch.device") -> None:
    import torch

    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device) / 2**30
        say(f"peak memory of the pack on {torch.cuda.get_device_name(device)}: {peak:.1f} GiB")
