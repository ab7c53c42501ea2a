"""`snapens paper`: the paper's cells, tables and figures, and the ledger."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, subcommand

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.recipe.value import unknown
from . import processes
from .messages import say
from .options import Flag, Place, PlanOptions, Runs, TrainingOptions, arg

if TYPE_CHECKING:
    from ..lab.data.protocol import Data
    from ..lab.paper.ledger import Entries

LEDGER = Path("results")


@dataclass(frozen=True)
class PaperList:
    """List the paper's numbers: published error, our error, time of a run."""

    only: Annotated[str, Positional, arg("[TEXT]")] = ""
    """List only the cells whose name contains this text."""
    ledger: Path = LEDGER
    """The folder of the ledger."""

    def __call__(self) -> int:
        """Print a table."""
        from ..lab.paper.ledger import measured
        from . import tables

        chosen = [cell for cell in paper.cells() if self.only in cell.name]
        if not chosen:
            raise unknown("cell", self.only, [cell.name for cell in paper.cells()])
        recorded = _entries(self.ledger)
        tables.cells(chosen, lambda cell: measured(cell, recorded))
        return 0


@dataclass(frozen=True)
class PaperRun:
    """Train the runs of some cells; on a GPU, several runs share the device."""

    cells: Annotated[tuple[str, ...], Positional, arg("CELL [CELL ...]", "(required)")]
    """Names of cells. `snapens paper list` shows them."""
    training: TrainingOptions
    plan: PlanOptions
    out: Path = Path("runs/paper")
    """The folder for the run folders."""
    seed: Annotated[tuple[int, ...], arg("INT [INT ...]", "(default: 0)")] = (0,)
    """The repetitions r: a cell with one run has the seed r; a cell with K runs has the seeds r K to r K + K - 1."""
    no_curves: Flag = False
    """Do not measure the errors between the last snapshot and each earlier one (Figure 5) at the end."""

    def __call__(self) -> int:
        """Train the runs, then print the cells."""
        from . import tables
        from .plan import train_plan

        if not self.cells:
            raise ArgumentError("cells must name at least one cell, got none: `snapens paper list` shows them")
        if not self.seed:
            raise ArgumentError("seed must have at least one value, got none: add one, or remove --seed")
        cells = [paper.find(name) for name in self.cells]
        jobs = [(recipe, self.out / paper.run_name(recipe)) for recipe in paper.runs(cells, *self.seed)]
        status = train_plan(jobs, self.training, self.plan, curves=not self.no_curves, check_data=_require_whole)
        processes.end_others(status)
        tables.cells(cells, self._measured)
        return status

    def _measured(self, cell: paper.Cell) -> list[float]:
        """The cell's errors in percent, of the repetitions whose runs have all finished."""
        from ..lab.paper.entry import cell_error
        from ..lab.records.run import Run

        repetitions = [
            [Run(self.out / name) for name in paper.run_names(cell, seed)] for seed in sorted(set(self.seed))
        ]
        return [100 * cell_error(cell, runs) for runs in repetitions if all(run.finished for run in runs)]


@dataclass(frozen=True)
class PaperRecord:
    """Add finished runs to the ledger, and the differences between them."""

    runs: Runs
    """Run folders of any recipe. A cell of several seeds needs all of its runs in one call."""
    commit: str
    """The git commit of the code that trained the runs."""
    ledger: Path = LEDGER
    """The folder of the ledger."""
    overwrite: Flag = False
    """Replace an entry with the same name."""

    def __call__(self) -> int:
        """Print the paths of the entries."""
        from ..lab.paper import differences, ledger
        from ..lab.records.run import Run

        _require_here(self.ledger)
        runs = [Run(path) for path in self.runs]
        if not runs or len({run.recipe for run in runs}) < len(runs):
            raise ArgumentError(
                f"runs must be run folders with different recipes, got {[str(path) for path in self.runs]}: "
                "name one folder per recipe"
            )
        if not re.fullmatch("[0-9a-f]{7,40}", self.commit):
            raise ArgumentError(f"commit must be 7 to 40 hexadecimal digits, got {self.commit!r}: copy it from git log")
        for run in runs:  # printed one by one: entries that were written before an error stay
            sys.stdout.write(f"{ledger.record(run, self.ledger, self.commit, overwrite=self.overwrite)}\n")
            if ledger.is_of_commit(run, self.commit) is None:
                say(f"{run.path}: commit not verified: the log of the run or git does not have it")
        for path in ledger.record_together(runs, self.ledger, overwrite=self.overwrite):
            sys.stdout.write(f"{path}\n")
        sys.stdout.write(f"{differences.record(runs, self.ledger, overwrite=self.overwrite)}\n")
        return 0


@dataclass(frozen=True)
class PaperTable:
    """Print one of the paper's tables with our values next to the published ones."""

    number: Annotated[str, Positional, tyro.conf.arg(metavar="{1,2,3}")]
    """The number of the table."""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """The format of the table."""
    ledger: Path = LEDGER
    """The folder of the ledger."""

    def __call__(self) -> int:
        """Print the table."""
        from ..report.formats import FORMATS, terminal
        from ..report.tables import table

        if self.number not in ("1", "2", "3"):
            raise unknown("table", self.number, ("1", "2", "3"))
        shown = table(int(self.number), _entries(self.ledger))
        if self.format == "terminal" and sys.stdout.isatty():
            text = terminal(shown, shutil.get_terminal_size().columns)
        else:
            text = FORMATS[self.format](shown)
        sys.stdout.write(text.rstrip() + "\n")
        return 0


@dataclass(frozen=True)
class PaperFigure:
    """Draw one of the paper's figures from the ledger."""

    name: Annotated[str, Positional, tyro.conf.arg(metavar="{2,3,4,5,6,S}")]
    """The number of the figure. S: the panels of the supplement."""
    out: Place = None
    """The file to write, .svg or .png. By default figure-NAME.svg."""
    network: Annotated[str | None, arg("STR")] = None
    """Draw the figure for this network instead of the paper's."""
    measured_only: Flag = False
    """Omit panels without measured values."""
    ledger: Path = LEDGER
    """The folder of the ledger."""

    def __call__(self) -> int:
        """Write the file and print its path."""
        from ..lab.paper import figures as paper_figures
        from ..report import figures, style
        from ..storage import durable

        out = self.out or Path(f"figure-{self.name}.svg")
        if out.suffix not in (".svg", ".png"):
            raise ArgumentError(f"out must end in .svg or .png, got {out}")
        _require_here(self.ledger)
        entries = _entries(self.ledger)
        drawn = figures.figure(self.name, entries, self.network, measured_only=self.measured_only)
        sys.stdout.write(f"{durable.write(out, style.saved(drawn, out.suffix[1:]))}\n")
        network = self.network or paper_figures.figure(self.name).network  # None: all networks
        known = figures.measured_networks(self.name, entries)
        if network and known and network not in known:
            choices = " or ".join(f"--network {name}" for name in known)
            say(f"nothing is measured for {network}, which figure {self.name} shows: use {choices}")
        return 0


def _require_whole(dataset: str, data: "Data") -> None:
    """Reject a data set from which images are missing."""
    paper.require_whole(dataset, len(data.train), len(data.test))


def _require_here(folder: Path) -> None:
    """Reject the default ledger where it does not exist, which is outside a clone."""
    if folder == LEDGER and not folder.exists():
        raise ArgumentError(
            f"ledger must be a folder, got {folder}, which does not exist here: the ledger of snapens is "
            "the folder results/ of its repository; run the command in a clone, or give --ledger PATH"
        )


def _entries(folder: Path) -> "Entries":
    """The entries of the ledger; none if the default folder does not exist yet. Any other folder must exist."""
    from ..lab.paper import ledger

    if not folder.is_dir() and (folder != LEDGER or folder.exists()):
        raise ArgumentError(f"ledger must be a folder, got {folder}: check the path")
    if not folder.exists():
        say(f"there is no ledger in {folder}/: the ledger of snapens is in its repository")
    return ledger.entries(folder)


@dataclass(frozen=True)
class Paper:
    """List, train and record the paper's numbers; draw its tables and figures."""

    command: (
        Annotated[PaperList, subcommand("list")]
        | Annotated[PaperRun, subcommand("run")]
        | Annotated[PaperRecord, subcommand("record")]
        | Annotated[PaperTable, subcommand("table")]
        | Annotated[PaperFigure, subcommand("figure")]
    )
