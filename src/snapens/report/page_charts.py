"""The charts of a page, with their titles, and a description for readers who cannot see them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..quality import THRESHOLDS, Floats, Score
from . import charts, style
from .account import Account, Part
from .style import BASELINE, ENSEMBLE, INK, PAPER, SINGLE
from .summary import Summary
from .svg import HINTS, Chart


def draw(summary: Summary) -> dict[str, Chart]:
    """All charts for which the runs have numbers, by name."""
    drawers: list[Callable[[Summary], Chart]] = [_snapshots, _reliability]
    if summary.focus.trace.steps:
        drawers.insert(0, _training)
    if len(summary.focus.members) > 1:
        drawers += [_last_members, _early_exit, _correlation, _disagreement]
    if summary.details.between:
        drawers += [partial(_lines, statistics=statistics) for statistics in ("interpolated", "estimated")]
    with style.drawing():
        drawn = [drawer(summary) for drawer in drawers]
    return {chart.name: chart for chart in drawn}


def _training(summary: Summary) -> Chart:
    figure = style.figure(height=255)
    rate, loss = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
    focus, baseline = summary.focus, summary.baseline
    is_standard = focus.recipe is not None and focus.recipe.method.kind == "single"
    shown = [(focus, "standard schedule" if is_standard else "cycles", ENSEMBLE, "-")]
    if baseline is not None and baseline.trace.steps:
        shown.insert(0, (baseline, "standard schedule", BASELINE, "--"))
    for account, _, colour, line in shown:
        rate.plot(*account.rates(), color=colour, linestyle=line, linewidth=1.3)
    charts.mark(rate, focus.minima)
    curves = [charts.Curve(one.trace.epochs, one.trace.losses, *look) for one, *look in shown]
    charts.training_loss(loss, curves, focus.minima)
    rate.set_ylim(bottom=0)
    rate.set_ylabel("learning rate")
    if len(shown) > 1:
        figure.legend(*loss.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    minima = ", ".join(f"{epoch:g}" for epoch in np.round(focus.minima, 1))
    hints = [
        (epoch, value, f"snapshot {k}: step {step:,}, epoch {epoch:.1f}, training loss {value:.4g}")
        for k, (step, epoch) in enumerate(zip(focus.steps, focus.minima, strict=True), 1)
        if (value := focus.trace.loss_at(step)) is not None
    ]
    description = f"Snapshots were taken at epochs {minima}."
    return Chart("training", figure, "Learning rate and training loss", description, _hinted(loss, hints))


def _snapshots(summary: Summary) -> Chart:
    figure, axes = _one(255)
    focus = summary.focus
    alone, first = _percent(focus.members), _percent(focus.first)
    charts.growing(axes, alone, first, _single(summary.baseline))
    axes.set_ylabel(_error_on(focus.part))
    axes.legend(loc="best")
    hints = [(k, error, f"snapshot {k} alone: {error:.2f} %") for k, error in enumerate(alone, 1)]
    hints += [(k, error, f"the first {k} together: {error:.2f} %") for k, error in enumerate(first[1:], 2)]
    description = f"Each snapshot alone: {_span(focus.members)}. The first m together: {_span(focus.first)}."
    title = "Error of each snapshot and of the growing ensemble"
    return Chart("snapshots", figure, title, description, _hinted(axes, hints))


def _last_members(summary: Summary) -> Chart:
    """The script of the page marks the point of the chosen m."""
    figure, axes = _one()
    evidence = summary.details.evidence
    errors = [100 * error for error in evidence.ensemble_errors]
    single = _single(summary.baseline) if evidence.part == "test" else []
    charts.last_members(axes, [errors], single, text_points=9.5).set_gid("m")
    axes.set_ylabel(_error_on(evidence.part))
    hints = [(m, error, f"the last {m} together: {error:.2f} %") for m, error in enumerate(errors, 1)]
    description = f"From {errors[0]:.2f} % for m = 1 to {errors[-1]:.2f} % for m = {len(errors)}."
    return Chart("last", figure, "Error of the last m snapshots together", description, _hinted(axes, hints))


def _early_exit(summary: Summary) -> Chart:
    """The script of the page shows the ring around the point of the chosen m and threshold; all others stay hidden."""
    figure, axes = _one()
    exits, fitted = summary.details.exits, summary.details.fitted
    point = fitted.exit_point if fitted else None
    charts.early_exit(axes, exits, None if point is None else (point[0], 100 * point[1]))
    ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2, "color": INK, "alpha": 0}
    axes.plot(exits.used.ravel(), 100 * exits.error.ravel(), linestyle="", gid="exit", **ring)
    axes.set_ylabel(_error_on(summary.details.evidence.part))
    hints = [
        (used, 100 * error, f"early exit at {threshold:g}: {100 * error:.2f} %, {used:.2f} members on average")
        for threshold, used, error in zip(THRESHOLDS, exits.used[-1], exits.error[-1], strict=True)
    ]
    fixed = 100 * exits.error[:, -1]
    hints += [(m, error, f"always the last {m}: {error:.2f} %") for m, error in enumerate(fixed, 1)]
    description = f"At a confidence of {THRESHOLDS[0]:g}, {exits.used[-1, 0]:.2f} members are evaluated on average."
    if fitted is not None and point is not None:
        confidence, used, percent = fitted.combination.exit_threshold, point[0], 100 * point[1]
        words = f"fitted combination, early exit at {confidence:.4g}: {percent:.2f} %, {used:.2f} members on average"
        hints.append((used, percent, words))
        description += f" {words[0].upper()}{words[1:]}."
    return Chart("exits", figure, "Error and cost of early exit", description, _hinted(axes, hints))


def _reliability(summary: Summary) -> Chart:
    figure, axes = _one()
    details, focus = summary.details, summary.focus
    predictors = {"last snapshot": (details.reliability_last, SINGLE, "o")}
    if len(focus.members) > 1:
        predictors[f"ensemble of {len(focus.members)}"] = (details.reliability_ensemble, ENSEMBLE, "s")
    charts.reliability(axes, predictors)
    charts.legend_outside(axes)
    description = (
        f"The expected calibration error is {100 * focus.single.ece:.2f} % for the last snapshot "
        f"and {100 * focus.ensemble.ece:.2f} % for the ensemble."
    )
    hints = [
        (100 * one.confidence, 100 * one.accuracy, f"{label}: {_counted(one.examples, focus.noun)}")
        for label, (bins, *_) in predictors.items()
        for one in bins
    ]
    return Chart("reliability", figure, "Confidence and accuracy", description, _hinted(axes, hints))


def _correlation(summary: Summary) -> Chart:
    values = summary.details.quality.correlation
    return _matrix("correlation", "Correlation of softmax outputs", values, "{:.3f}" if len(values) < 8 else "{:.2f}")


def _disagreement(summary: Summary) -> Chart:
    values = 100 * summary.details.quality.disagreement
    return _matrix("disagreement", f"{summary.focus.noun.capitalize()} with different predictions, %", values, "{:.1f}")


def _matrix(name: str, title: str, values: Floats, form: str) -> Chart:
    figure, axes = _one(280)
    low, high = charts.matrix(axes, values, form)
    return Chart(name, figure, title, f"Between pairs of snapshots: from {form.format(low)} to {form.format(high)}.")


def _lines(summary: Summary, statistics: str) -> Chart:
    figure, axes = _one()
    between = summary.details.between
    assert between is not None  # `draw` checks it
    charts.lines_between(axes, between, statistics)
    axes.set_xlabel("λ: 0 is an earlier snapshot (its number), 1 is the last one")
    highest = (
        f"snapshot {line.snapshot}: at most {max(getattr(line, f'{statistics}_percent')):.2f} %"
        for line in between.lines
    )
    words = {"interpolated": "interpolated", "estimated": "re-estimated"}[statistics]
    title = f"Error between the last snapshot and the earlier ones, BatchNorm statistics {words}"
    return Chart(statistics, figure, title, f"{'; '.join(highest)}.")


def _one(height: float = 235) -> tuple[Any, Any]:
    """A figure with one pair of axes."""
    figure = style.figure(height=height)
    return figure, figure.subplots()


def _hinted(axes: Any, points: Sequence[tuple[float, float, str]]) -> tuple[str, ...]:
    """Add points, large and invisible, which have the hints of a chart; returns the hints."""
    limits = axes.axis()
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o", color=PAPER, markersize=13, alpha=0, gid=HINTS)
    axes.axis(limits)
    return tuple(hint for _, _, hint in points)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun.removesuffix('s') if count == 1 else noun}"


def _error_on(part: Part) -> str:
    """The label of an axis with errors."""
    return {"held_out": "held-out error, %", "test": "test error, %"}[part]


def _single(baseline: Account | None) -> list[float]:
    return [] if baseline is None else [100 * baseline.single.error]


def _percent(scores: Sequence[Score]) -> list[float]:
    return [100 * score.error for score in scores]


def _span(scores: Sequence[Score]) -> str:
    return f"{100 * scores[0].error:.2f} % to {100 * scores[-1].error:.2f} %"
