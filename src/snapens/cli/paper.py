"""`snapens paper`: the cells, the ledger, the tables and figures."""

import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, subcommand

from ..errors import ArgumentError, StoreError
from ..lab.paper import cells as paper
from ..lab.recipe.recipe import unknown
from .options import Place, Where

if TYPE_CHECKING:
    from ..lab.paper.ledger import Entries

LEDGER = Path("results")


@dataclass(frozen=True)
class PaperList:
    """Show the cells of the paper: the published error, ours, the cost of a run."""

    only: Annotated[str, Positional] = ""
    """Show the cells whose name contains this."""
    ledger: Path = LEDGER
    """The ledger's folder."""

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
    """Train what some cells of the paper need, together: on a GPU several runs share it."""

    cells: Annotated[tuple[str, ...], Positional]
    """Names of cells; `snapens paper list` shows them."""
    where: Where
    out: Path = Path("runs/paper")
    """The folder for the run folders."""
    seed: int = 0
    """Which repetition: a cell of one run has this seed, one of K runs the seeds from K times this on."""
    no_curves: bool = False
    """Leave out the errors between the last snapshot and each earlier one (Figure 5), measured at the end."""

    def __call__(self) -> int:
        """Train them, then print the cells."""
        from ..lab.records.run import Run
        from . import tables
        from .training import train

        if not self.cells:
            raise ArgumentError("cells must name at least one, got none: `snapens paper list` shows them")
        cells = [paper.find(name) for name in self.cells]
        jobs = [(recipe, self.out / paper.run_name(recipe)) for recipe in paper.runs(cells, self.seed)]
        begun = [path for _, path in jobs if Run(path).exists and not Run(path).finished]
        if begun and not self.where.resume:
            raise StoreError(f"run must be finished or not begun, got {begun[0]}: choose another --out, or --resume")
        # what finished before is shown, not repeated
        status = train(jobs, replace(self.where, resume=True), curves=not self.no_curves)
        tables.cells(cells, self._measured)
        return status

    def _measured(self, cell: paper.Cell) -> list[float]:
        """The cell's error in percent, if all its runs of this repetition are finished."""
        from ..lab.paper.entry import cell_error
        from ..lab.records.run import Run

        runs = [Run(self.out / name) for name in paper.run_names(cell, self.seed)]
        return [100 * cell_error(cell, runs)] if all(run.finished for run in runs) else []


@dataclass(frozen=True)
class PaperRecord:
    """Enter finished runs into the ledger; cells of several seeds follow once all their runs are there."""

    runs: Annotated[tuple[Path, ...], Positional]
    """Run folders."""
    commit: str
    """That of the code which trained them, as git has it."""
    ledger: Path = LEDGER
    """The ledger's folder."""
    overwrite: bool = False
    """Replace a result of the same name."""

    def __call__(self) -> int:
        """Say which files hold them."""
        from ..lab.paper import ledger
        from ..lab.records.run import Run

        runs = [Run(path) for path in self.runs]
        if not runs or len({run.recipe for run in runs}) < len(runs):
            raise ArgumentError(f"runs must be at least one, each of another recipe, got {[str(p) for p in self.runs]}")
        if not re.fullmatch("[0-9a-f]{7,40}", self.commit):
            raise ArgumentError(f"commit must be 7 to 40 hexadecimal digits, as git has them, got {self.commit!r}")
        for run in runs:  # said one by one: what was kept before an error stays
            sys.stdout.write(f"{ledger.record(run, self.ledger, self.commit, overwrite=self.overwrite)}\n")
            if ledger.is_of_commit(run, self.commit) is None:
                sys.stderr.write(f"{run.path}: the commit is your word; its log or git does not tell\n")
        for path in ledger.record_together(runs, self.ledger, overwrite=self.overwrite):
            sys.stdout.write(f"{path}\n")
        return 0


@dataclass(frozen=True)
class PaperTable:
    """Print one of the paper's tables, our value beside the published one."""

    number: Annotated[Literal[1, 2, 3], Positional]
    """Of the table."""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """How it is written."""
    ledger: Path = LEDGER
    """The ledger's folder."""

    def __call__(self) -> int:
        """Print it."""
        from ..report.formats import FORMATS, terminal
        from ..report.tables import table

        shown = table(self.number, _entries(self.ledger))
        if self.format == "terminal" and sys.stdout.isatty():
            text = terminal(shown, shutil.get_terminal_size().columns)
        else:
            text = FORMATS[self.format](shown)
        sys.stdout.write(text.rstrip() + "\n")
        return 0


@dataclass(frozen=True)
class PaperFigure:
    """Draw one of the paper's figures from the ledger."""

    name: Annotated[Literal["2", "3", "4", "5", "6", "S"], Positional]
    """Of the figure; S are the panels of the supplement."""
    out: Place = None
    """The file to write, .svg or .png; figure-NAME.svg by default."""
    network: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None
    """Draw the same of another network than the paper's."""
    measured_only: bool = False
    """Leave out the panels that nobody has measured."""
    ledger: Path = LEDGER
    """The ledger's folder."""

    def __call__(self) -> int:
        """Write the file and say where it is."""
        from ..report import figures
        from ..storage import durable

        out = self.out or Path(f"figure-{self.name}.svg")
        if (form := figures.FORMATS.get(out.suffix[1:])) is None:
            raise ArgumentError(f"out must end in .svg or .png, got {out}")
        drawn = figures.figure(self.name, _entries(self.ledger), self.network, measured_only=self.measured_only)
        sys.stdout.write(f"{durable.write(out, form(drawn))}\n")
        return 0


def _entries(folder: Path) -> "Entries":
    """What is in the ledger: nothing where the default folder is not there yet; any other must be."""
    from ..lab.paper import ledger

    if not folder.is_dir() and (folder != LEDGER or folder.exists()):
        raise ArgumentError(f"ledger must be a folder, got {folder}: check the path")
    if not folder.exists():
        sys.stderr.write(f"there is no ledger here, {folder}/: the one of snapens is in its repository\n")
    return ledger.entries(folder)


@dataclass(frozen=True)
class Paper:
    """The paper's cells: list them, train them, record them; its tables and figures with our values."""

    command: (
        Annotated[PaperList, subcommand("list")]
        | Annotated[PaperRun, subcommand("run")]
        | Annotated[PaperRecord, subcommand("record")]
        | Annotated[PaperTable, subcommand("table")]
        | Annotated[PaperFigure, subcommand("figure")]
    )

    def __call__(self) -> int:
        """Do what the subcommand says."""
        return self.command()
