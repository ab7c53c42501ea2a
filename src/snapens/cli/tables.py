"""Results on the terminal."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from ..lab.paper import cells as paper
from ..lab.records.run import Run


def run(path: Path) -> None:
    """What the snapshots of one run are worth: each alone, and the last m together."""
    outputs = Run(path).outputs()
    table = Table("m", "step", "snapshot alone, %", "the last m together, %", title=f"test error, {path}")
    alone, together = outputs.member_errors, outputs.ensemble_errors
    for m, step in enumerate(reversed(Run(path).snapshots.steps), 1):
        table.add_row(str(m), f"{step:,}", f"{100 * alone[-m]:.2f}", f"{100 * together[m - 1]:.2f}")
    Console().print(table)


def demo(single: Path, snapshot: Path) -> None:
    """The baseline against the Snapshot Ensemble, in the demo's own words."""
    run(snapshot)
    baseline = 100 * Run(single).outputs().member_errors[-1]
    outputs = Run(snapshot).outputs()
    ensemble, last = 100 * outputs.ensemble_errors[-1], 100 * outputs.member_errors[-1]
    Console().print(
        f"One model, standard schedule: {baseline:.2f} %. The same budget in cycles: last snapshot {last:.2f} %, "
        f"ensemble of {len(outputs.member_errors)} {ensemble:.2f} %.\n"
        f"The ensemble errs {baseline - ensemble:.2f} points less than the one model, "
        f"and {last - ensemble:.2f} less than its own last snapshot.\nRun folders: {single} and {snapshot}",
        highlight=False,
    )


def cells(chosen: Sequence[paper.Cell], measured: Callable[[paper.Cell], list[float]]) -> None:
    """Cells of the paper: published, ours in percent, one for each repetition, and what a run costs."""
    table = Table(Column("cell", no_wrap=True), "where", "paper, %", "ours, %", "n", "a run", box=None, pad_edge=False)
    for cell in chosen:
        published = "–" if cell.published_percent is None else f"{cell.published_percent:.2f}{'*' * cell.starred}"
        found = measured(cell)
        ours = " ".join(f"{percent:.2f}" for percent in found) or "–"
        table.add_row(cell.name, cell.where, published, ours, str(len(found) or "–"), _cost(cell))
    whole = Console(width=1000).measure(table).maximum  # names are there to be copied, on any terminal
    console = Console(width=max(Console().width, whole))
    console.print(table)
    console.print(
        "* copied by the paper from the DenseNet paper. What a run costs: on an H200, packed.", highlight=False
    )


def _cost(cell: paper.Cell) -> str:
    hours = paper.hours(cell.recipe)
    return "–" if hours is None else f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.1f} h"
