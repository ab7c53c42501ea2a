"""Training a plan, which is a list of runs: pack by pack in this process, or as Ray tasks."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError, ProcessError, SnapensError, StoreError, shortened
from . import processes
from .interrupt import Interrupt
from .loader import Check, Jobs, Loader, data_root, import_from_here, require_outside_images
from .messages import Failures, counted, say
from .options import PlanOptions, TrainingOptions
from .training import AGAIN, train, unfinished

if TYPE_CHECKING:
    from ..lab.engine.cluster import Cluster

_LARGEST_PACK = {"cuda": 8, "cpu": 1}


def train_plan(
    jobs: Jobs,
    options: TrainingOptions,
    plan: PlanOptions,
    load: Loader | None = None,
    *,
    curves: bool = False,
    check_data: Check | None = None,
) -> int:
    """Train the runs of a plan that are not finished; return the exit status, as `train` does.

    A pack that fails does not stop the others. Runs that were interrupted continue if `options.resume` is set.
    """
    world = processes.world()
    if plan.ray is not None and world.count > 1:
        raise ArgumentError("ray must not be given under torchrun, which starts the processes: remove --ray")
    world.first(lambda: check(jobs, options))
    world.first(lambda: _require_resume(jobs, options))
    left = unfinished(jobs, curves)
    if not left:
        return 0
    options, load = replace(options, resume=True), load or Loader(options, keep=True, check=check_data)
    with Failures() as failures:
        if plan.ray is not None:
            return _train_on_ray(left, options, plan, load, curves, failures, check_data)
        return _train_here(packs_here(left, options, plan), options, load, curves, failures)


def packs_here(jobs: Jobs, options: TrainingOptions, plan: PlanOptions) -> Sequence[Jobs]:
    """The packs in which the runs are trained in this process, one after the other."""
    from ..lab.engine.device import chosen_device
    from ..lab.engine.pack import packs

    return packs(jobs, _largest(plan, chosen_device(options.device).type))


def states(jobs: Jobs) -> dict[str, list[Path]]:
    """The run folders by state: finished, interrupted or new."""
    from ..lab.records.run import Run

    found: dict[str, list[Path]] = {"finished": [], "interrupted": [], "new": []}
    for _, path in jobs:
        run = Run(path)
        found["new" if not run.exists else "finished" if run.finished else "interrupted"].append(path)
    return found


def check(jobs: Jobs, options: TrainingOptions) -> None:
    """Check what can be checked without the data, before the first run starts."""
    from ..lab import nets
    from ..lab.records.run import Run

    require_outside_images(jobs, data_root(options.data))
    import_from_here(recipe.network.name for recipe, _ in jobs)
    for recipe, path in jobs:
        nets.require(**vars(recipe.network))
        Run(path).admit(recipe, resume=True)


def _require_resume(jobs: Jobs, options: TrainingOptions) -> None:
    begun = states(jobs)["interrupted"]
    if begun and not options.resume:
        raise StoreError(f"interrupted runs must be continued with --resume, got {begun[0]}: add it, or change --out")


def _train_here(packs: Sequence[Jobs], options: TrainingOptions, load: Loader, curves: bool, failures: Failures) -> int:
    worst = 0
    for number, jobs in enumerate(packs, 1):
        if len(packs) > 1:
            say(f"pack {number} of {len(packs)}: {shortened([path.name for _, path in jobs], limit=3)}")
        try:
            status = train(jobs, options, load, curves=curves, failures=failures, is_last=number == len(packs))
        except ProcessError:
            raise
        except SnapensError as error:
            if len(packs) == 1:
                raise
            failures.add(str(error), *(path.name for _, path in jobs))
            status = 1
        if status > 1:
            return status
        worst = max(worst, status)
    return worst


def _train_on_ray(
    jobs: Jobs,
    options: TrainingOptions,
    plan: PlanOptions,
    load: Loader,
    curves: bool,
    failures: Failures,
    check_data: Check | None,
) -> int:
    from ..lab.engine import cluster

    if plan.ray is not None and len(plan.ray) > 1:
        raise ArgumentError(f"ray must be one address or none, got {' '.join(plan.ray)}: put --ray last, or give one")
    if options.download:  # once, not on every machine
        load.read(recipe for recipe, _ in jobs)
    say("connecting to Ray" if plan.ray else "starting Ray on this machine")
    with cluster.connect(plan.ray[0] if plan.ray else None) as connected:
        try:
            with (interrupt := Interrupt()):
                return _follow(connected, jobs, options, plan, curves, failures, interrupt, check_data)
        except KeyboardInterrupt:
            say(f"snapens: interrupted; {AGAIN} continues the training")
            return 128 + interrupt.number


def _follow(
    connected: "Cluster",
    jobs: Jobs,
    options: TrainingOptions,
    plan: PlanOptions,
    curves: bool,
    failures: Failures,
    interrupt: Interrupt,
    check_data: Check | None,
) -> int:
    """Train with Ray, and show the progress that is written to the run folders."""
    from ..lab.engine import pack
    from ..lab.engine.cluster import Work
    from ..lab.records.followed import Followed
    from .progress import TensorBoard, display

    threads = 1 if options.threads is None else options.threads
    device, tasks = connected.capacity(options.device, threads)
    jobs = [(recipe, path.resolve()) for recipe, path in jobs]
    packs = pack.packs(jobs, _largest(plan, device), tasks)
    root, here = data_root(options.data), Path.cwd()
    data = None if root is None else root.expanduser().resolve()
    work = Work(device, threads, data, here if str(here) in sys.path else None, curves, check_data)
    say(
        f"training {counted(jobs, 'run')} in {counted(packs, 'pack')}; Ray can train {counted(range(tasks), 'pack')} "
        f"at a time, each on a {device.upper()}"
    )
    running = {path: Followed(recipe, path) for recipe, path in jobs}
    failed = False
    with (
        interrupt.finish_step(),
        display(list(running.values()), TensorBoard() if options.tensorboard else None) as watch,
    ):
        for found in connected.train(packs, work, interrupt):
            for path, reason in found.items():
                failed, running[path].failure = True, reason
                failures.add(reason, path.name)
            for path, run in list(running.items()):
                if run.refresh() or run.failure:
                    watch(run)
                if run.finished or run.failure:
                    del running[path]
    return int(failed)


def _largest(plan: PlanOptions, device: str) -> int:
    """The largest number of runs in a pack."""
    return _LARGEST_PACK[device] if plan.pack is None else plan.pack
