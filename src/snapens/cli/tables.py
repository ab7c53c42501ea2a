"""Results on the terminal."""

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from rich.table import Column, Table

from ..lab.paper import cells as paper
from .messages import counted, paragraphs, show

if TYPE_CHECKING:  # `paper list` does not wait for torch
    from ..combination import Combination
    from ..lab.records.run import Run


def run(run: "Run") -> None:
    """The test errors of one run: of each snapshot alone, and of the ensemble of the last m."""
    outputs = run.outputs()
    table = Table("m", "step", "snapshot alone, %", "ensemble of the last m, %", title=f"test error, {run.path}")
    alone, together = outputs.member_errors, outputs.ensemble_errors
    for m, step in enumerate(reversed(run.snapshots.steps), 1):
        table.add_row(str(m), f"{step:,}", f"{100 * alone[-m]:.2f}", f"{100 * together[m - 1]:.2f}")
    show(table, wrapped=True)


def demo(single: "Run", snapshot: "Run") -> None:
    """The baseline next to the Snapshot Ensemble."""
    run(snapshot)
    baseline = 100 * single.outputs().member_errors[-1]
    outputs = snapshot.outputs()
    ensemble, last = 100 * outputs.ensemble_errors[-1], 100 * outputs.member_errors[-1]
    paragraphs(
        f"Test error of one model with the standard schedule: {baseline:.2f} %. The same budget in cycles: "
        f"last snapshot {last:.2f} %, ensemble of {len(outputs.member_errors)} snapshots {ensemble:.2f} %.\n"
        f"The ensemble's error is {_points(baseline - ensemble)} than the single model's "
        f"and {_points(last - ensemble)} than its own last snapshot's.\n"
        f"Run folders: {single.path} and {snapshot.path}"
    )


def distilled(student: "Run", teacher: "Run", combination: "Combination") -> None:
    """The student next to its teacher: the ensemble, and the last snapshot, which costs as much as the student."""
    from ..prediction import Prediction

    run(student)
    outputs, members = teacher.outputs(), counted(combination.members, "snapshot")
    ensemble, last = 100 * Prediction.of(outputs, combination).score.error, 100 * outputs.member_errors[-1]
    error = 100 * student.outputs().member_errors[-1]
    paragraphs(
        f"Test error of the teacher: last snapshot {last:.2f} %, ensemble of {members} {ensemble:.2f} %. "
        f"Test error of the student: {error:.2f} %.\n"
        f"The student's error is {_points(ensemble - error)} than the ensemble's "
        f"and {_points(last - error)} than the last snapshot's."
    )


def sweep(groups: Mapping[str, Sequence["Run"]]) -> None:
    """The errors of the finished runs of a sweep, by their settings: means over the seeds, and K × M; their folders.

    Settings are chosen by these errors, so they are held-out errors if all runs have held-out examples.
    """
    from ..lab.paper.entry import joint_error

    part = "held_out" if all(run.has_outputs("held_out") for runs in groups.values() for run in runs) else "test"
    names = ("settings", "runs", "last snapshot, %", "ensemble of a run, %", "ensemble of all runs, %")
    table = Table(
        *(Column(name, overflow="fold") for name in names), title=f"{part.replace('_', '-')} error, mean over the runs"
    )
    for name, runs in groups.items():
        outputs = [run.outputs(part) for run in runs]
        last = fmean(100 * found.member_errors[-1] for found in outputs)
        ensemble = fmean(100 * found.ensemble_errors[-1] for found in outputs)
        together = f"{100 * joint_error(runs, part=part):.2f}" if len(runs) > 1 else "–"
        table.add_row(name, str(len(runs)), f"{last:.2f}", f"{ensemble:.2f}", together)
    show(table, wrapped=True)
    # below the table, because its columns are narrow and users copy the paths
    sys.stdout.write("".join(f"{name}: {run.path}\n" for name, runs in groups.items() for run in runs))


def cells(chosen: Sequence[paper.Cell], measured: Callable[[paper.Cell], list[float]]) -> None:
    """Cells of the paper: the published error, our errors (one per repetition) in percent, and the time of a run."""
    table = Table(Column("cell", no_wrap=True), "where", "paper, %", "ours, %", "n", "time", box=None, pad_edge=False)
    for cell in chosen:
        found = measured(cell)
        ours = " ".join(f"{percent:.2f}" for percent in found) or "–"
        table.add_row(cell.name, cell.where, cell.published, ours, str(len(found) or "–"), _cost(cell))
    show(table)
    star = "* the paper copied this value from the DenseNet paper. " * any(cell.starred for cell in chosen)
    sys.stdout.write(f"{star}time: of one run in a pack on an H200.\n")


def _points(lower: float) -> str:
    return f"{abs(lower):.2f} points {'lower' if lower >= 0 else 'higher'}"


def _cost(cell: paper.Cell) -> str:
    hours = paper.hours(cell.recipe)
    return "–" if hours is None else f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.1f} h"
