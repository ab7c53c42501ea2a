"""The command line: the only place that prints or reads arguments."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, subcommand

from .. import __version__
from ..errors import ArgumentError, SnapensError
from ..lab import paper
from ..lab.recipe import Recipe, unknown

Place = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


@dataclass(frozen=True)
class Where:
    """Where the data lies and where to train."""

    data: Place = None
    """The folder that holds the data sets, or your own data; else the variable SNAPENS_DATA."""
    download: bool = False
    """Fetch the data set if it is not there and has a public address."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """How many a CPU uses; torch's own choice by default."""
    resume: bool = False
    """Go on with the runs that are in their folders."""
    curves: bool = False
    """At the end, measure the error between the last snapshot and each earlier one, as in the paper's Figure 5."""
    tensorboard: bool = False
    """Write TensorBoard's event files into the run folders as well."""


@dataclass(frozen=True)
class Demo:
    """Train a baseline and a Snapshot Ensemble on embedded data, on the CPU, and compare them."""

    out: Path = Path("runs/demo")
    """The folder for the two run folders; runs that are there already are shown, not repeated."""
    seed: int = 0
    """Of both runs."""

    def __call__(self) -> int:
        """Train both on the same budget; print every snapshot's error, the ensembles' and the baseline's."""
        from ..lab.demo import recipes
        from . import tables
        from .training import train

        single, snapshot = (self.out / f"{name}-seed{self.seed}" for name in ("single", "snapshot"))
        jobs = list(zip(recipes(self.seed), (single, snapshot), strict=True))
        # one thread: on a network this small, two would mostly wait for each other
        status = train(jobs, Where(device="cpu", threads=1, resume=True), again="the same command")
        if status == 0:
            tables.demo(single, snapshot)
        return status


@dataclass(frozen=True)
class Flags(Recipe):
    """A network, a data set, a method and a budget."""

    def __post_init__(self) -> None:
        """Take what was typed; it is checked later, since tyro would hide our errors in words of its own."""


@dataclass(frozen=True)
class Train:
    """Train a recipe and keep its snapshots."""

    recipe: Flags
    where: Where
    out: Place = None
    """The run folder; by default one under runs/ that says what the recipe is."""

    def __call__(self) -> int:
        """Train, then print what the snapshots are worth."""
        from . import tables
        from .training import train

        recipe = Recipe(**vars(self.recipe))
        out = self.out or Path("runs") / paper.run_name(recipe)
        status = train([(recipe, out)], self.where)
        if status == 0:
            tables.run(out)
        return status


@dataclass(frozen=True)
class PaperList:
    """Show the cells of the paper: the published error, ours, the cost of a run."""

    only: Annotated[str, Positional] = ""
    """Show the cells whose name contains this."""
    out: Path = Path("runs/paper")
    """Where `paper run` left its runs."""

    def __call__(self) -> int:
        """Print a table."""
        from . import tables

        chosen = [cell for cell in paper.cells() if self.only in cell.name]
        if not chosen:
            raise unknown("cell", self.only, [cell.name for cell in paper.cells()])
        tables.cells(chosen, self.out)
        return 0


@dataclass(frozen=True)
class PaperRun:
    """Train what some cells of the paper need, together: on a GPU several runs share it."""

    cells: Annotated[tuple[str, ...], Positional]
    """Names of cells; `snapens paper list` shows them."""
    where: Where
    out: Path = Path("runs/paper")
    """The folder for the run folders."""
    seed: int = 0
    """Which repetition: a cell of one run has this seed, one of K runs the seeds from K times this on."""

    def __call__(self) -> int:
        """Train them, then print the cells."""
        from ..lab.runs import Run
        from . import tables
        from .training import train

        if not self.cells:
            raise ArgumentError("cells must name at least one, got none: `snapens paper list` shows them")
        cells = [paper.find(name) for name in self.cells]
        jobs = [(recipe, self.out / paper.run_name(recipe)) for recipe in paper.runs(cells, self.seed)]
        unfinished = [(recipe, path) for recipe, path in jobs if not Run(path).finished]  # others may have asked before
        status = train(unfinished, self.where) if unfinished else 0
        tables.cells(cells, self.out)
        return status


@dataclass(frozen=True)
class Paper:
    """The paper's cells: list them, train them."""

    command: Annotated[PaperList, subcommand("list")] | Annotated[PaperRun, subcommand("run")]

    def __call__(self) -> int:
        """Do what the subcommand says."""
        return self.command()


@dataclass(frozen=True)
class Bench:
    """Time training on this machine: the engine beside a plain PyTorch loop, four of them, and Ensemble-PyTorch."""

    what: Annotated[Literal["train"], Positional]
    """What is timed."""

    networks: Annotated[tuple[str, ...], Positional] = ("resnet110", "wrn32", "densenet40")
    """Names of networks."""
    dataset: str = "cifar100"
    """What they are trained on."""
    batch: int = 64
    """Images in a step."""
    pack: int = 8
    """Runs that share the GPU."""
    seconds: float = 60.0
    """How long each is timed, after a warm-up."""
    data: Place = None
    """The folder that holds the data set; else the variable SNAPENS_DATA."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    out: Place = None
    """A JSON file for the numbers."""

    def __call__(self) -> int:
        """Print images a second, and the ratio to the plain loop, as they come."""
        from .timing import bench_train

        bench_train(self)
        return 0


Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Paper, subcommand("paper")]
    | Annotated[Bench, subcommand("bench")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for a run that failed, 2 for what was refused, 130 if interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        sys.stdout.write(f"snapens {__version__}\n")
        return 0
    command = tyro.cli(
        Command,
        prog="snapens",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a network of one's own, as module:callable
    try:
        return command()
    except SnapensError as error:
        sys.stderr.write(f"snapens: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("snapens: interrupted\n")
        return 130
