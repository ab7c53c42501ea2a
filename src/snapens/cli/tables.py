"""Results on the terminal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from ..lab.paper import cells as paper

if TYPE_CHECKING:  # `paper list` does not wait for torch
    from ..lab.records.run import Run


def run(run: "Run") -> None:
    """The test errors of one run: of each snapshot alone, and of the ensemble of the last m."""
    outputs = run.outputs()
    table = Table("m", "step", "snapshot alone, %", "ensemble of the last m, %", title=f"test error, {run.path}")
    alone, together = outputs.member_errors, outputs.ensemble_errors
    for m, step in enumerate(reversed(run.snapshots.steps), 1):
        table.add_row(str(m), f"{step:,}", f"{100 * alone[-m]:.2f}", f"{100 * together[m - 1]:.2f}")
    Console().print(table)


def demo(single: "Run", snapshot: "Run") -> None:
    """The baseline next to the Snapshot Ensemble."""
    run(snapshot)
    baseline = 100 * single.outputs().member_errors[-1]
    outputs = snapshot.outputs()
    ensemble, last = 100 * outputs.ensemble_errors[-1], 100 * outputs.member_errors[-1]
    Console().print(
        f"Test error of one model with the standard schedule: {baseline:.2f} %. The same budget in cycles: "
        f"last snapshot {last:.2f} %, ensemble of {len(outputs.member_errors)} snapshots {ensemble:.2f} %.\n"
        f"The ensemble's error is {_points(baseline - ensemble)} than the single model's "
        f"and {_points(last - ensemble)} than its own last snapshot's.\n"
        f"Run folders: {single.path} and {snapshot.path}",
        highlight=False,
    )


def cells(chosen: Sequence[paper.Cell], measured: Callable[[paper.Cell], list[float]]) -> None:
    """Cells of the paper: the published error, our errors (one per repetition) in percent, and the time of a run."""
    table = Table(Column("cell", no_wrap=True), "where", "paper, %", "ours, %", "n", "time", box=None, pad_edge=False)
    for cell in chosen:
        found = measured(cell)
        ours = " ".join(f"{percent:.2f}" for percent in found) or "–"
        table.add_row(cell.name, cell.where, cell.published, ours, str(len(found) or "–"), _cost(cell))
    whole = Console(width=1000).measure(table).maximum  # never cut off: users copy the names
    console = Console(width=max(Console().width, whole))
    console.print(table)
    star = "* the paper copied this value from the DenseNet paper. " * any(cell.starred for cell in chosen)
    console.print(f"{star}time: of one run in a pack on an H200.", highlight=False)


def _points(lower: float) -> str:
    return f"{abs(lower):.2f} points {'lower' if lower >= 0 else 'higher'}"


def _cost(cell: paper.Cell) -> str:
    hours = paper.hours(cell.recipe)
    return "–" if hours is None else f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.1f} h"
