"""The charts of a page, drawn by matplotlib from a summary."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..extras import package
from ..lab.records.curves import Between
from . import style
from .account import Account
from .details import Bin
from .style import BASELINE, ENSEMBLE, INK, MUTED, SINGLE
from .summary import Summary
from .svg import Chart

FEW_EXAMPLES = 10
"""Bins with fewer say little; they are shown, but not joined."""


def draw(summary: Summary) -> dict[str, Chart]:
    """Every chart that the runs have numbers for, by name."""
    drawers: list[Callable[[Summary], Chart]] = [snapshots, reliability]
    if summary.focus.trace.steps:
        drawers.insert(0, training)
    if len(summary.focus.members) > 1:
        drawers += [last_members, exits, correlation, disagreement]
    with style.drawing():
        drawn = [drawer(summary) for drawer in drawers]
        if between := summary.details.between:
            drawn += [interpolated(between), estimated(between)]
    return {chart.name: chart for chart in drawn}


def training(summary: Summary) -> Chart:
    """The learning rate over the training loss, minima marked (Figure 2)."""
    figure = style.figure(height=255)
    rate, loss = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
    shown = [(summary.focus, ENSEMBLE, "cycles" if summary.focus.recipe.method != "single" else "standard schedule")]
    if summary.baseline is not None and summary.baseline.trace.steps:
        shown.insert(0, (summary.baseline, BASELINE, "standard schedule"))
    for account, colour, label in shown:
        rate.plot(*account.rates(), color=colour, linewidth=1.3)
        loss.plot(account.trace.epochs, account.trace.losses, color=colour, linewidth=1.3, label=label)
    for axes in (rate, loss):
        for epoch in summary.focus.minima:
            axes.axvline(epoch, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    values = [value for account, *_ in shown for value in account.trace.losses]
    if 0 < 10 * min(values) < max(values):  # within a decade a logarithmic axis has no labels
        loss.set_yscale("log")
        loss.yaxis.set_major_formatter(_plain)
        loss.yaxis.set_minor_formatter(package("matplotlib.ticker", "report").NullFormatter())
    rate.set_ylim(bottom=0)
    rate.set_ylabel("learning rate")
    loss.set_ylabel("training loss")
    loss.set_xlabel("epoch")
    if len(shown) > 1:
        figure.legend(*loss.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    minima = ", ".join(f"{epoch:g}" for epoch in np.round(summary.focus.minima, 1))
    return Chart("training", figure, "Learning rate and training loss", f"Snapshots were taken at epochs {minima}.")


def snapshots(summary: Summary) -> Chart:
    """Each snapshot alone, and the ensemble as it grows from the first (the supplement's curves)."""
    figure = style.figure(height=255)
    axes = figure.subplots()
    focus, k = summary.focus, np.arange(1, len(summary.focus.members) + 1)
    axes.plot(k, _percent(focus.members), color=SINGLE, marker="o", label="snapshot alone")
    if len(k) > 1:
        axes.plot(k, _percent(focus.first), color=ENSEMBLE, marker="o", label="ensemble so far")
    _reference(axes, summary.baseline)
    axes.set_xticks(k)
    axes.set_xlabel("snapshot")
    axes.set_ylabel("test error, %")
    axes.legend(loc="best")
    told = f"From {_span(focus.members)} alone; from {_span(focus.first)} as the ensemble grows."
    return Chart("snapshots", figure, "Error of each snapshot and of the growing ensemble", told)


def last_members(summary: Summary) -> Chart:
    """The last m together (Figure 3's bars); each bar is marked with its m for the page's script."""
    figure = style.figure()
    axes = figure.subplots()
    evidence = summary.details.evidence
    errors = [100 * error for error in evidence.ensemble_errors]
    baseline = summary.baseline if evidence.part == "test" else None
    lowest = min([*errors, *_baseline_percent(baseline)])
    floor = max(0.0, lowest - 1.2 * max(float(np.ptp([*errors, *_baseline_percent(baseline)])), 0.5))
    _reference(axes, baseline)
    label = {"ha": "center", "fontsize": min(9.5, 90 / len(errors)), "color": INK, "bbox": style.CLEARING}
    for m, error in enumerate(errors, 1):
        axes.bar(m, error - floor, bottom=floor, width=0.62, color=ENSEMBLE, gid=f"m={m}")
        axes.annotate(f"{error:.2f}", (m, error), (0, 3), textcoords="offset points", **label)
    axes.set_xticks(np.arange(1, len(errors) + 1))
    axes.grid(False)
    axes.set_ylim(bottom=floor)
    axes.margins(y=0.12)
    axes.set_xlabel("m, members from the last backwards")
    axes.set_ylabel(_error_of(summary))
    return Chart("last", figure, "Error of the last m together", f"From {errors[0]:.2f} % to {errors[-1]:.2f} %.")


def correlation(summary: Summary) -> Chart:
    """The correlation of every pair's softmax outputs (Figure 6)."""
    values = summary.details.correlation
    return _matrix("correlation", "Correlation of softmax outputs", values, "{:.3f}" if len(values) < 8 else "{:.2f}")


def disagreement(summary: Summary) -> Chart:
    """The share of test images on which two snapshots choose different classes."""
    values = 100 * summary.details.disagreement
    return _matrix("disagreement", "Test images with different answers, %", values, "{:.1f}")


def interpolated(between: Between) -> Chart:
    """Figure 5, with BatchNorm's statistics on the line."""
    return _lines(between, "interpolated", "statistics on the line")


def estimated(between: Between) -> Chart:
    """Figure 5, with BatchNorm's statistics estimated anew."""
    return _lines(between, "estimated", "statistics estimated anew")


def reliability(summary: Summary) -> Chart:
    """Accuracy against confidence, in bins."""
    figure = style.figure()
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    shown: list[tuple[Sequence[Bin], str, str]] = [
        (summary.details.reliability_last, SINGLE, "last snapshot"),
        (summary.details.reliability_ensemble, ENSEMBLE, f"ensemble of {len(summary.focus.members)}"),
    ]
    for bins, colour, label in shown[: min(2, len(summary.focus.members))]:
        for few in (False, True):
            some = [found for found in bins if (found.examples < FEW_EXAMPLES) == few]
            confidence, accuracy = (
                [100 * getattr(found, name) for found in some] for name in ("confidence", "accuracy")
            )
            how = {"linestyle": "", "alpha": 0.4} if few else {"label": label}
            axes.plot(confidence, accuracy, color=colour, marker="o", **how)
    axes.set_xlabel("confidence, %")
    axes.set_ylabel("accuracy, %")
    axes.legend(loc="best")
    told = (
        f"Expected calibration error {summary.focus.single.ece:.4f} alone, {summary.focus.ensemble.ece:.4f} together."
    )
    return Chart("reliability", figure, "Confidence and accuracy", told)


def exits(summary: Summary) -> Chart:
    """The error against the members asked: a fixed m, and early exit at each confidence."""
    figure = style.figure()
    axes = figure.subplots()
    table, m = summary.details.exits, np.arange(1, len(summary.focus.last) + 1)
    axes.plot(m, 100 * table.error[:, -1], color=SINGLE, marker="o", label="always the last m")
    axes.plot(table.used[-1], 100 * table.error[-1], color=ENSEMBLE, marker=".", label="stop when sure")
    axes.set_xticks(m)
    axes.set_xlabel("members asked on average")
    axes.set_ylabel(_error_of(summary))
    axes.legend(loc="best")
    told = f"Early exit at confidence 0.50 asks {table.used[-1, 0]:.2f} members on average."
    return Chart("exits", figure, "What early exit costs and saves", told)


def _matrix(name: str, title: str, values: Any, form: str) -> Chart:
    """A value for each pair of snapshots; the diagonal says nothing and stays empty."""
    figure = style.figure(height=280)
    axes, count = figure.subplots(), len(values)
    apart = ~np.eye(count, dtype=bool)
    size = min(10.5, 80 / count)
    legible = size > 5
    low, high = values[apart].min(), values[apart].max()
    for row, column in zip(*np.nonzero(apart), strict=True):
        share = (values[row, column] - low) / (high - low) if high - low > 1e-6 else 0.5  # one pair has one value
        axes.add_patch(
            package("matplotlib.patches", "report").Rectangle(
                (column + 0.53, row + 0.53), 0.94, 0.94, facecolor=ENSEMBLE, alpha=0.08 + 0.42 * share, linewidth=0
            )
        )
        if legible:
            axes.text(column + 1, row + 1, form.format(values[row, column]), ha="center", va="center", fontsize=size)
    axes.set(xlim=(0.5, count + 0.5), ylim=(count + 0.5, 0.5), aspect="equal", xlabel="snapshot", ylabel="snapshot")
    axes.set(xticks=range(1, count + 1), yticks=range(1, count + 1))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    told = f"Between pairs of snapshots: from {form.format(low)} to {form.format(high)}."
    return Chart(name, figure, title, told)


def _lines(between: Between, name: str, statistics: str) -> Chart:
    figure = style.figure()
    axes, found = figure.subplots(), between.lines
    for k, line in enumerate(found):
        strength = 0.35 + 0.65 * (k + 1) / len(found)
        axes.plot(between.last_share, getattr(line, f"{name}_percent"), color=ENSEMBLE, alpha=strength)
    errors = [error for line in found for error in getattr(line, f"{name}_percent")]
    spread = max(errors) - min(errors) or 1
    axes.set_ylim(min(errors) - 0.05 * spread, max(errors) + 0.05 * spread)
    axes.set_xlim(-0.07, 1)
    heights = [getattr(line, f"{name}_percent")[0] for line in found]
    places = _spread(heights, spread / 16, min(errors), max(errors))
    for line, place in zip(found, places, strict=True):
        axes.text(-0.02, place, str(line.snapshot), ha="right", va="center")
    axes.set_xlabel("λ: 0 is an earlier snapshot (its number), 1 the last one")
    axes.set_ylabel("test error, %")
    told = "; ".join(
        f"snapshot {line.snapshot}: at most {max(getattr(line, f'{name}_percent')):.2f} %" for line in found
    )
    return Chart(name, figure, f"Between the last snapshot and the earlier ones, {statistics}", f"{told}.")


def _spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, near these heights, in the same order and at least `gap` apart, from `low` on or to `high`."""
    order, places = np.argsort(heights, kind="stable"), list(heights)
    for below, above in pairwise(order.tolist()):
        places[above] = max(places[above], places[below] + gap)
    shift = float(np.mean(heights) - np.mean(places))
    shift = max(min(shift, high - max(places)), low - min(places))
    return [place + shift for place in places]


def _error_of(summary: Summary) -> str:
    """The name of an axis: errors by which m and the confidence may be chosen, where images were held out."""
    return {"held_out": "held-out error, %", "test": "test error, %"}[summary.details.evidence.part]


def _reference(axes: Any, baseline: Account | None) -> None:
    """The standard schedule's one model, as a dashed line."""
    for error in _baseline_percent(baseline):
        axes.axhline(error, color=BASELINE, linewidth=1.2, linestyle=(0, (4, 3)), label="standard schedule")


def _baseline_percent(baseline: Account | None) -> list[float]:
    return [] if baseline is None else [100 * baseline.single.error]


def _percent(scores: Sequence[Any]) -> list[float]:
    return [100 * score.error for score in scores]


def _span(scores: Sequence[Any]) -> str:
    return f"{100 * scores[0].error:.2f} % to {100 * scores[-1].error:.2f} %"


def _plain(value: float, _: int) -> str:
    return f"{value:g}"
