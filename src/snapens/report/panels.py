"""The panels of the paper's figures: each draws the measurements of some cells as a chart.

A panel returns whether there were any measurements; without them it draws nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..lab.paper.cells import Cell
from ..lab.paper.ledger import Entries, measured, runs_of
from . import charts
from .style import BASELINE, ENSEMBLE, SINGLE


def losses(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 2: the training loss by epoch, for the first seed."""
    found = [runs[0] for cell in cells if (runs := runs_of(cell, entries)) and any(runs[0].losses.loss)]
    if not found:
        return False
    labels = {"single": ("standard schedule", BASELINE, "--"), "snapshot": ("cycles", ENSEMBLE, "-")}
    curves = [charts.Curve(run.losses.epoch, run.losses.loss, *labels[str(run.recipe.method.kind)]) for run in found]
    minima = [epoch for run in found if run.recipe.method.kind == "snapshot" for epoch in run.snapshot_epochs]
    charts.training_loss(axes, curves, minima)
    axes.set_xlim(0, 1.01 * found[0].recipe.budget.epochs)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return True


def last_members(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 3: the error of the last m snapshots, and of the single model."""
    snapshot, single = cells
    runs = runs_of(snapshot, entries)
    if runs:
        charts.last_members(axes, [run.last_percent for run in runs], measured(single, entries))
        axes.set_ylabel("test error, %")
    return bool(runs)


def sizes(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 4: the error by training budget or, in the panel with single models, by the number of models."""
    panel = _by_models if any(cell.recipe.method.kind == "single" for cell in cells) else _by_budget
    return panel(axes, cells, entries)


def _by_budget(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    drawn = False
    for method, words, colour, marker in (
        ("snapshot", "Snapshot Ensemble", ENSEMBLE, "o"),
        ("singlecycle", "SingleCycle Ensemble", SINGLE, "s"),
    ):
        of_method = [cell for cell in cells if cell.recipe.method.kind == method]
        if points := {cell.recipe.budget.epochs: found for cell in of_method if (found := measured(cell, entries))}:
            charts.by_size(axes, points, f"{words}, {_rate(of_method)}", colour, marker)
            drawn = True
    if drawn:
        epochs = sorted({cell.recipe.budget.epochs for cell in cells})
        axes.set(xlabel="training budget, epochs", xlim=(epochs[0] - 15, epochs[-1] + 15))
        axes.set_xticks(epochs)
        charts.legend_above(axes)
    return drawn


def _by_models(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    cyclic = [cell for cell in cells if cell.recipe.method.kind == "snapshot"]
    runs = [run for cell in cyclic for run in runs_of(cell, entries)]
    snapshots = dict(enumerate(zip(*(run.last_percent for run in runs), strict=True), 1))
    single = [cell for cell in cells if cell.recipe.method.kind == "single"]
    models = {cell.seeds: found for cell in single if (found := measured(cell, entries))}
    if snapshots:
        charts.by_size(axes, snapshots, f"last m snapshots of one run, {_rate(cyclic)}", ENSEMBLE, "o")
    if models:
        charts.by_size(axes, models, "m fully trained models", BASELINE, "D")
    if snapshots or models:
        most = max(max(cell.seeds for cell in cells), max(cell.recipe.method.cycles for cell in cells))
        axes.set(xlabel="m, models in the ensemble", xlim=(0.7, most + 0.3))
        axes.set_xticks(range(1, most + 1))
        charts.legend_above(axes)
    return bool(snapshots or models)


def between(axes: Any, cells: Sequence[Cell], entries: Entries, statistics: str) -> bool:
    """Figure 5: the error between the last snapshot and each earlier one, for the first seed that has it."""
    found = [run.between for cell in cells for run in runs_of(cell, entries) if run.between and run.between.lines]
    if not found:
        return False
    charts.lines_between(axes, found[0], statistics)
    words = {"interpolated": "statistics interpolated", "estimated": "statistics re-estimated"}[statistics]
    axes.set(xlabel="λ (1: the last snapshot)", ylabel=f"test error, %\n({words})")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    if statistics == "estimated":
        charts.small_note(axes, f"from {found[0].estimated_from}")
    return True


def correlation(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 6: the correlation between the softmax outputs of every two snapshots, for the first seed."""
    runs = [run for cell in cells for run in runs_of(cell, entries)]
    if runs:
        charts.matrix(axes, np.array(runs[0].correlation), "{:.3f}", limits=(0.5, 1))  # the same scale in all panels
    return bool(runs)


def growing(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """The supplement: each snapshot alone, the first m together, and the single model."""
    snapshot, single = cells
    runs = runs_of(snapshot, entries)
    if runs:
        alone, first = (_mean([getattr(run, f"{of}_percent") for run in runs]) for of in ("snapshot", "first"))
        charts.small_legend(axes, charts.growing(axes, alone, first, measured(single, entries)), "best")
        axes.set_xlim(0.8, len(alone) + 0.2)
    return bool(runs)


def _rate(cells: Sequence[Cell]) -> str:
    return " and ".join(f"α₀ = {lr:g}" for lr in sorted({cell.recipe.optimizer.lr for cell in cells}))


def _mean(series: Sequence[Sequence[float]]) -> list[float]:
    return [float(np.mean(values)) for values in zip(*series, strict=True)]
