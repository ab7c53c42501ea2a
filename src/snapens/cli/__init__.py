"""The command line: the only place that prints or reads arguments."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro
from tyro.conf import Positional, subcommand

from .. import __version__
from ..errors import ArgumentError, SnapensError
from ..lab.paper.cells import run_name
from ..lab.recipe.recipe import Recipe
from .options import Place, Where
from .paper import Paper


@dataclass(frozen=True)
class Demo:
    """Train a baseline and a Snapshot Ensemble on embedded data, on the CPU, and compare them."""

    out: Path = Path("runs/demo")
    """The folder for the two run folders; runs that are there already are shown, not repeated."""
    seed: int = 0
    """Of both runs."""

    def __call__(self) -> int:
        """Train both on the same budget; print every snapshot's error, the ensembles' and the baseline's."""
        from ..lab.recipe.presets import recipes
        from . import tables
        from .training import show_report, train

        single, snapshot = (self.out / f"{name}-seed{self.seed}" for name in ("single", "snapshot"))
        jobs = list(zip(recipes(self.seed), (single, snapshot), strict=True))
        # one thread: on a network this small, two would mostly wait for each other
        status = train(jobs, Where(device="cpu", threads=1, resume=True), again="the same command")
        if status == 0:
            tables.demo(single, snapshot)
            show_report([snapshot, single])
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
    curves: bool = False
    """Measure the errors between the last snapshot and each earlier one at the end, as in the paper's Figure 5."""

    def __call__(self) -> int:
        """Train, then print what the snapshots are worth."""
        from . import tables
        from .training import data_root, show_report, train

        recipe = Recipe(**vars(self.recipe))
        out = self.out or Path("runs") / run_name(recipe)
        images = data_root(self.where.data) if recipe.dataset == "folder" else None
        if images and out.resolve().is_relative_to(images.resolve()):
            raise ArgumentError(f"out must lie outside the images, got {out} in {images}: choose another")
        status = train([(recipe, out)], self.where, curves=self.curves)
        if status == 0:
            tables.run(out)
            show_report([out])
        return status


@dataclass(frozen=True)
class Report:
    """Show what runs are worth, on one HTML page."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Run folders, or folders of such: one run, or several to compare; it is about the first Snapshot Ensemble."""
    out: Place = None
    """The page, or the folder for it or for the pieces; by default in the first folder."""
    format: Literal["html", "png", "svg", "csv", "json"] = "html"
    """html: the page; else its pieces, charts as png or svg, tables as csv or json."""

    def __call__(self) -> int:
        """Write the page, or the pieces, and say where they are."""
        from ..lab.records.run import runs_in
        from ..report.page import write
        from ..report.pieces import Format, pieces

        if not self.runs:
            raise ArgumentError("runs must name at least one run folder, got none")
        runs = [run for path in self.runs for run in runs_in(path)]
        if self.format == "html":
            out = self.out or self.runs[0]
            if out.suffix[1:] in get_args(Format):
                raise ArgumentError(
                    f"out must be a page or a folder, got {out}: add --format {out.suffix[1:]} for pieces"
                )
            written = [write(runs, out / "report.html" if out.is_dir() else out)]
        else:
            if self.out is not None and self.out.suffix[1:] == self.format:
                raise ArgumentError(f"out must be a folder, for there are several pieces, got {self.out}")
            written = pieces(runs, self.out or self.runs[0] / "report", self.format)
        sys.stdout.write("".join(f"{path}\n" for path in written))
        return 0


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
    engine_only: bool = False
    """Leave the other loops out: a DenseNet's engine with fused blocks is then held against the one without."""
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
    | Annotated[Report, subcommand("report")]
    | Annotated[Paper, subcommand("paper")]
    | Annotated[Bench, subcommand("bench")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 if a run failed, 2 for what was refused, 128 and more for a signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        sys.stdout.write(f"snapens {__version__}\n")
        return 0
    try:
        status = _command(arguments)()
        sys.stdout.flush()
        return status
    except SnapensError as error:
        sys.stderr.write(f"snapens: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("snapens: interrupted\n")
        return 130
    except BrokenPipeError:  # nobody reads on, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor will what is still to be flushed fail
        return 141


def _command(arguments: Sequence[str]) -> Command:
    found = tyro.cli(
        Command,
        prog="snapens",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a network of one's own, as module:callable
    return found
