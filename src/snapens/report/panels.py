"""The panels of the paper's figures: each draws some cells' measurements on axes, and says whether there were any.

Axes are matplotlib's; a panel that finds nothing draws nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..lab.paper.cells import Cell
from ..lab.paper.ledger import Entries, measured, runs_of
from .style import BASELINE, CLEARING, ENSEMBLE, INK, MUTED, PAPER, SINGLE

Floats = NDArray[np.float64]

_SMALL = 8  # points, of what is written into a panel
_FRAME = {"frameon": True, "framealpha": 1, "facecolor": PAPER, "edgecolor": "none"}  # over lines of the grid
_ORDINALS = ("#440154", "#3b528b", "#21828c", "#3aa365", "#a5b31c")  # as viridis, the first snapshot darkest


def losses(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 2: training loss by epoch, of the first seed; dashed where a snapshot is taken."""
    found = [runs[0] for cell in cells if (runs := runs_of(cell, entries)) and any(runs[0].losses.loss)]
    if not found:
        return False
    for run in found:
        cyclic = run.recipe.method == "snapshot"
        colour, words = (SINGLE, "cyclic schedule") if cyclic else (BASELINE, "standard schedule")
        axes.plot(run.losses.epoch, run.losses.loss, color=colour, label=words, zorder=3 if cyclic else 2)
        for k, epoch in enumerate(run.snapshot_epochs if cyclic else (), 1):
            axes.axvline(epoch, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, clip_on=False)
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right", "va": "top"}
            axes.annotate(f"snapshot {k}", (epoch, 1), (-3, -1), size=_SMALL, color=MUTED, **place)
    most = max(value for run in found for value in run.losses.loss)
    axes.set(xlabel="epoch", ylabel="training loss", xlim=(0, found[0].recipe.epochs))
    axes.set_yscale("log")
    axes.set_ylim(top=2 * most)  # room for the words
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return True


def bars(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 3: the error of the last m snapshots, and the single model's as a line."""
    snapshot, single = cells
    runs, baseline = runs_of(snapshot, entries), measured(single, entries)
    if not runs:
        return False
    ms = range(1, snapshot.recipe.cycles + 1)
    for m, height in zip(ms, _mean([run.last_percent for run in runs]), strict=True):
        axes.bar(m, height, width=0.72, color=ENSEMBLE, zorder=2)
        place = {"textcoords": "offset points", "ha": "center", "va": "bottom", "zorder": 4, "bbox": CLEARING}
        above = max(height, *(run.last_percent[m - 1] for run in runs))
        axes.annotate(f"{height:.2f}", (m, above), (0, 3), size=_SMALL, **place)
    named = _level(axes, baseline)
    dashes = {"linestyle": "", "marker": "_", "color": INK, "markersize": 7}
    for run in runs if len(runs) > 1 else ():
        (named["each seed"],) = axes.plot(ms, run.last_percent, zorder=3, **dashes)
    _name(axes, named, "upper right")
    values = [*(value for run in runs for value in run.last_percent), *baseline]
    room = max(max(values) - min(values), 0.02 * max(values), 0.1)
    axes.set_ylim(max(0, min(values) - 0.6 * room), max(values) + 0.45 * room)
    axes.set(xlabel="m, snapshots in the ensemble", ylabel="test error, % (axis cut)", xlim=(0.4, len(ms) + 0.6))
    axes.set_xticks(ms)
    return True


def sizes(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 4: the error by training budget, or, where there are single models, by how many models there are."""
    panel = _by_models if any(cell.recipe.method == "single" for cell in cells) else _by_budget
    return panel(axes, cells, entries)


def _by_budget(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    drawn = False
    for method, words, colour, marker in (
        ("snapshot", "Snapshot Ensemble", ENSEMBLE, "o"),
        ("singlecycle", "SingleCycle Ensemble", SINGLE, "s"),
    ):
        of_method = [cell for cell in cells if cell.recipe.method == method]
        points = {cell.recipe.epochs: found for cell in of_method if (found := measured(cell, entries))}
        drawn |= _line(axes, points, f"{words}, {_rate(of_method)}", colour, marker)
    if drawn:
        epochs = sorted({cell.recipe.epochs for cell in cells})
        axes.set(xlabel="training budget, epochs", ylabel="test error, %", xlim=(epochs[0] - 15, epochs[-1] + 15))
        axes.set_xticks(epochs)
        axes.legend(loc="upper right", **_FRAME)
        _leave_room(axes, 0.3)
    return drawn


def _by_models(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    cyclic = [cell for cell in cells if cell.recipe.method == "snapshot"]
    runs = [run for cell in cyclic for run in runs_of(cell, entries)]
    snapshots = dict(enumerate(map(list, zip(*(run.last_percent for run in runs), strict=True)), 1))
    true = [cell for cell in cells if cell.recipe.method == "single"]
    models = {cell.seeds: found for cell in true if (found := measured(cell, entries))}
    drawn = _line(axes, snapshots, f"last m snapshots of one run, {_rate(cyclic)}", ENSEMBLE, "o")
    drawn |= _line(axes, models, "m models, each trained in full", BASELINE, "D")
    if drawn:
        most = max(max(cell.seeds for cell in cells), max(cell.recipe.cycles for cell in cells))
        axes.set(xlabel="m, models in the ensemble", ylabel="test error, %", xlim=(0.7, most + 0.3))
        axes.set_xticks(range(1, most + 1))
        axes.legend(loc="upper right", **_FRAME)
        _leave_room(axes, 0.3)
    return drawn


def between(axes: Any, cells: Sequence[Cell], entries: Entries, statistics: str) -> bool:
    """Figure 5: errors between the last snapshot and each earlier one, of the first seed that has them."""
    found = [run.between for cell in cells for run in runs_of(cell, entries) if run.between]
    for line in found[0].lines if found else ():
        errors = line.interpolated_percent if statistics == "interpolated" else line.estimated_percent
        colour = _ORDINALS[(line.snapshot - 1) % len(_ORDINALS)]
        axes.plot(found[0].last_share, errors, color=colour, label=f"snapshot {line.snapshot}")
    if found:
        words = {"interpolated": "statistics interpolated", "estimated": "statistics estimated anew"}[statistics]
        axes.set(xlabel="λ (1: the last snapshot)", ylabel=f"test error, %\n({words})", xlim=(0, 1))
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        if statistics == "estimated":
            place = {"xycoords": "axes fraction", "ha": "right", "va": "top", "size": _SMALL, "color": MUTED}
            axes.annotate(f"from {found[0].estimated_from}", (1, 1), bbox=CLEARING, **place)
            _leave_room(axes, 0.1)
    return bool(found)


def correlation(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """Figure 6: the correlation of every two snapshots' softmax, of the first seed."""
    runs = [run for cell in cells for run in runs_of(cell, entries)]
    if not runs:
        return False
    matrix = np.array(runs[0].correlation)
    axes.grid(visible=False)
    axes.imshow(matrix, cmap="Blues", vmin=0.5, vmax=1.1)  # one scale for all runs, and white is legible on 1
    for (row, column), value in np.ndenumerate(matrix):
        shown = f"{value:.3f}" if 0.995 <= value < 1 else f"{value:.2f}"  # 1.00 is itself
        axes.text(column, row, shown, ha="center", va="center", color="white" if value > 0.85 else INK)
    ticks = range(len(matrix))
    axes.set_xticks(ticks, [str(k + 1) for k in ticks])
    axes.set_yticks(ticks, [str(k + 1) for k in ticks])
    axes.tick_params(length=0)
    axes.set(xlabel="snapshot", ylabel="snapshot")
    return True


def over_time(axes: Any, cells: Sequence[Cell], entries: Entries) -> bool:
    """The supplement: each snapshot alone, the first m together, and the single model."""
    snapshot, single = cells
    runs = runs_of(snapshot, entries)
    if not runs:
        return False
    ms = range(1, snapshot.recipe.cycles + 1)
    axes.plot(ms, _mean([run.snapshot_percent for run in runs]), "o-", color=SINGLE, label="each snapshot alone")
    axes.plot(ms, _mean([run.first_percent for run in runs]), "s-", color=ENSEMBLE, label="the first m together")
    _name(axes, _level(axes, measured(single, entries)), "best")
    axes.set(xlabel="m, snapshots so far", ylabel="test error, %", xlim=(0.8, len(ms) + 0.2))
    axes.set_xticks(ms)
    return True


def _line(axes: Any, points: dict[int, list[float]], words: str, colour: str, marker: str) -> bool:
    """The mean of each list, and the single values where there are several."""
    if points:
        xs = sorted(points)
        axes.plot(xs, [np.mean(points[x]) for x in xs], color=colour, marker=marker, label=words)
    for x, values in points.items():
        if len(values) > 1:
            axes.plot([x] * len(values), values, linestyle="", marker="_", color=colour, markersize=7)
    return bool(points)


def _level(axes: Any, errors: Sequence[float]) -> dict[str, Any]:
    """The single model's error, as a line; it, by its name."""
    if not errors:
        return {}
    level = float(np.mean(errors))
    line = axes.axhline(level, color=BASELINE, linestyle=(0, (5, 3)), linewidth=1.3, label="single model", zorder=3)
    return {f"single {level:.2f}": line}


def _name(axes: Any, drawn: dict[str, Any], place: str) -> None:
    """A small legend."""
    if drawn:
        style = {"fontsize": _SMALL, "labelcolor": BASELINE, "handlelength": 2.4, "borderaxespad": 0, **_FRAME}
        axes.legend(list(drawn.values()), list(drawn), loc=place, **style)


def _leave_room(axes: Any, share: float) -> None:
    """Above what is drawn, for words."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + share * (high - low))


def _rate(cells: Sequence[Cell]) -> str:
    return " and ".join(f"α₀ = {lr:g}" for lr in sorted({cell.recipe.lr for cell in cells}))


def _mean(series: Sequence[tuple[float, ...]]) -> list[float]:
    return [float(np.mean(values)) for values in zip(*series, strict=True)]
