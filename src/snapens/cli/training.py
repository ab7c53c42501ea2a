"""Training from the command line: messages, progress, Ctrl-C."""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError, ProcessError, SnapensError
from ..lab.recipe.recipe import Recipe
from . import processes
from .interrupt import Interrupt

if TYPE_CHECKING:
    from ..lab.data.protocol import Data
    from ..lab.engine.training import Training
    from .options import TrainingOptions

# data set -> the folder in --data that is read if it exists, else --data itself
_IMAGE_FOLDERS = {"folder": ".", "imagenet": "imagenet", "tinyimagenet": "tiny-imagenet-200"}
_LONG_SECONDS = 3600.0
_LARGE_STEP_SECONDS = 0.5  # below this, the extra cost of the first step dominates the trial step

Jobs = Sequence[tuple[Recipe, Path]]


class Loader:
    """Reads data sets, each once; with `keep`, they stay in memory for further packs."""

    def __init__(self, options: "TrainingOptions", *, keep: bool = False) -> None:
        self._options, self._keep = options, keep
        self._unused: dict[str, Data] = {}

    def __call__(self, recipe: Recipe) -> "Data":
        """The data set of a recipe."""
        name = recipe.dataset.name
        data = self._unused.pop(name) if name in self._unused else self._read(name)
        if self._keep:
            self._unused[name] = data
        return data

    def read(self, recipes: Iterable[Recipe]) -> None:
        """Read the data sets now; later calls return them."""
        for name in {recipe.dataset.name for recipe in recipes}:
            self._unused[name] = self._read(name)

    def with_held_out(self, recipe: Recipe, out: Path | None) -> Recipe:
        """The recipe with a tenth of a user's own training examples held out, or as many as in the run to resume."""
        from ..lab.data import DATASETS
        from ..lab.data.labels import tenth
        from ..lab.records.run import Run

        name, seed = recipe.dataset.name, recipe.dataset.held_out_seed
        if name not in DATASETS or not DATASETS[name].holds_out:
            return recipe
        if out is not None and self._options.resume and Run(out).exists:
            return _holding_out(Run(out).recipe.dataset.held_out, recipe)
        self._check(recipe, out)
        data = self._unused[name] = self(recipe)
        count, examples = tenth(data.train.labels, seed), len(data.train)
        purpose = "so that a combination can be chosen on them"
        if data.held_out is not None:
            _say(f"holding out the {len(data.held_out):,} examples in val/, {purpose}")
            return recipe
        if count:
            _say(f"holding out {count:,} of {examples:,} training examples, {purpose}; --held-out 0 trains on all")
        else:
            _say(f"holding out no examples, because the {examples:,} training examples are too few")
        return _holding_out(count, recipe)

    def _check(self, recipe: Recipe, out: Path | None) -> None:
        """Check what can be checked before the data are read, which may take minutes."""
        from ..lab import nets
        from ..lab.engine.pack import chosen_device
        from ..lab.records.run import Run

        chosen_device(self._options.device)
        import_from_here([recipe.network.name])
        nets.require(**vars(recipe.network))
        if out is not None:
            require_outside_images([(recipe, out)], data_root(self._options.data))
            Run(out).admit(recipe, self._options.resume)

    def _read(self, name: str) -> "Data":
        from ..lab import data
        from .progress import Download

        _say(f"reading {name}")
        with Download(name) as progress:
            root = data_root(self._options.data)
            return data.load(name, root, download=self._options.download, progress=progress)


def train(
    jobs: Jobs,
    options: "TrainingOptions",
    load: Loader | None = None,
    *,
    curves: bool = False,
    teachers: Sequence[Path] = (),
    again: str = "the same command with --resume",
) -> int:
    """Train a pack and return the exit status: 0 if all runs finished, 1 if one failed, 128 + the number of a signal.

    A finished run that is resumed stays as it is. With `curves`, the errors between snapshots are measured at the end.
    `teachers` are the folders of the runs that recipes imitate. `again` is the command that continues the
    training after an interruption.
    """
    with Interrupt(quiet=not processes.is_first()) as interrupt:
        try:
            status = _train(jobs, options, load or Loader(options), curves, teachers, interrupt)
        except KeyboardInterrupt:
            _say(f"snapens: interrupted; {again} continues the training")
            status = 128 + interrupt.number
        except ProcessError as error:
            raise ProcessError(f"{error}; {again} continues the training") from error
    return status


def _train(
    jobs: Jobs,
    options: "TrainingOptions",
    load: Loader,
    curves: bool,
    teachers: Sequence[Path],
    interrupt: Interrupt,
) -> int:
    import torch  # only now: --help does not wait for it

    from ..lab.engine import pack
    from .progress import TensorBoard, display

    world = processes.world()
    device = world.agree(lambda: pack.chosen_device(options.device))
    require_outside_images(jobs, data_root(options.data))
    if options.threads is not None:
        if options.threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {options.threads}")
        torch.set_num_threads(options.threads)
    import_from_here(recipe.network.name for recipe, _ in jobs)
    tensorboard = world.agree(lambda: TensorBoard() if options.tensorboard and world.is_first else None)
    left = world.first(lambda: pack.unfinished(jobs, curves=curves)) if options.resume else jobs
    for job in jobs:
        if job not in left:
            _say(f"{job[1]} is already finished")
    if not left:
        return 0
    if options.download and world.count > 1:  # one process per machine downloads, then the others read
        world.agree(lambda: load.read(recipe for recipe, _ in left) if world.local_rank == 0 else None)
    trainings = pack.prepare(
        left,
        load,
        device,
        resume=options.resume,
        teachers=teachers,
        checked=lambda: _announce(len(left), device.type, world.count),
        world=world,
    )
    _warn_of_hours(trainings)
    try:
        with interrupt.finish_step(), display(trainings, tensorboard) as watch:
            pack.train(trainings, watch, interrupt)
            if not all(training.finished or training.failure for training in trainings):
                interrupt.number = interrupt.number or signal.SIGTERM  # only another process received the signal
        if curves and world.is_first:
            _say("measuring the errors between the snapshots")
            pack.measure_between(trainings)
    finally:
        failed = [training for training in trainings if training.failure is not None]
        for training in failed:
            _say(f"snapens: {training.run.path} failed: {training.failure}")
    if device.type == "cuda":
        peak = torch.cuda.max_memory_reserved(device) / 2**30
        _say(f"peak memory of the pack on {torch.cuda.get_device_name(device)}: {peak:.1f} GiB")
    return 1 if failed else 0


def show_report(paths: Sequence[Path]) -> None:
    """Write the report of some runs, and print its path or the reason why there is none."""
    from ..lab.records.run import Run
    from ..report.page import write

    try:
        sys.stdout.write(f"report: {write([Run(path) for path in paths], paths[0] / 'report.html')}\n")
    except SnapensError as error:
        sys.stdout.write(f"no report: {error}\n")


def data_root(given: Path | None) -> Path | None:
    """The folder with the data: the one given, else that of the environment variable SNAPENS_DATA."""
    named = os.environ.get("SNAPENS_DATA")
    return given or (Path(named) if named else None)


def import_from_here(networks: Iterable[str]) -> None:
    """Allow the user's own network (module:callable) to be imported from the current folder.

    The folder comes last in `sys.path`, so a file in it cannot replace an installed package.
    """
    own = any(":" in name and name.partition(":")[0] not in ("torchvision", "timm") for name in networks)
    if own and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def require_outside_images(jobs: Jobs, root: Path | None) -> None:
    """Reject run folders in a folder of images: their sub-folders would be read as classes."""
    for recipe, path in jobs:
        if root is not None and recipe.dataset.name in _IMAGE_FOLDERS:
            place = root.expanduser().resolve()
            inner = place / _IMAGE_FOLDERS[recipe.dataset.name]
            images = inner if inner.is_dir() else place
            if path.resolve().is_relative_to(images):
                raise ArgumentError(f"out must be outside the folder of images, got {path} in {images}: choose another")


def _holding_out(count: int, recipe: Recipe) -> Recipe:
    return replace(recipe, dataset=replace(recipe.dataset, held_out=count))


def _announce(runs: int, device: str, processes: int) -> None:
    several = runs > 1
    slow = f"compiling the network{'s' * several}" if device == "cuda" else f"a trial step{' each' * several}"
    together = f" with {processes} processes" if processes > 1 else ""
    _say(f"preparing {runs} run{'s' * several}{together}: {slow}")


def _warn_of_hours(trainings: Sequence["Training"]) -> None:
    """Warn of a pack that will train for hours on a CPU, estimated from the trial steps."""
    slow = [run for run in trainings if run.rehearsal_seconds and run.rehearsal_seconds > _LARGE_STEP_SECONDS]
    seconds = sum((run.total_steps - run.completed) * (run.rehearsal_seconds or 0) for run in slow)
    if seconds > _LONG_SECONDS:
        names = ", ".join(dict.fromkeys(run.recipe.network.name for run in slow))
        _say(
            f"snapens: training {names} on this CPU will take about {seconds / 3600:,.0f} hours "
            f"({slow[0].rehearsal_seconds:.1f} seconds per step): use a GPU, fewer --epochs, or --network small"
        )


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")
