"""Charts: each function draws one kind of chart on matplotlib axes, for the page and for the paper's figures.

Errors and shares are in percent. The caller labels the axes where the two uses differ.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..extras import package
from ..lab.records.curves import Between
from ..quality import Exits, Floats
from .style import BASELINE, CLEARING, ENSEMBLE, INK, MUTED, PAPER, SINGLE

FEW_EXAMPLES = 10
"""Bins with fewer examples are drawn pale and are not joined."""
_SMALL = 8  # points, for text inside a chart
_FRAME = {"frameon": True, "framealpha": 1, "facecolor": PAPER, "edgecolor": "none"}  # hides the grid behind a legend


class Curve(NamedTuple):
    """Values by epoch, with a label, a colour and a line style."""

    epochs: Sequence[float]
    values: Sequence[float]
    label: str
    colour: str
    line: str = "-"


def training_loss(axes: Any, curves: Sequence[Curve], minima: Sequence[float]) -> None:
    """The training loss by epoch, on a logarithmic axis if it spans a decade; dotted lines mark snapshots."""
    for curve in curves:
        look = {"color": curve.colour, "linestyle": curve.line, "linewidth": 1.3}
        axes.plot(curve.epochs, curve.values, label=curve.label, **look)
    mark(axes, minima)
    values = [value for curve in curves for value in curve.values]
    if 0 < 10 * min(values) < max(values):  # within a decade a logarithmic axis has no labels
        ticker = package("matplotlib.ticker", "report")
        axes.set_yscale("log")
        if max(values) < 100 * min(values):  # powers of ten alone may be a single label
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set(xlabel="epoch", ylabel="training loss")


def mark(axes: Any, epochs: Sequence[float]) -> None:
    """A dotted vertical line at each epoch."""
    for epoch in epochs:
        axes.axvline(epoch, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))


def growing(axes: Any, alone: Sequence[float], first: Sequence[float], single: Sequence[float]) -> dict[str, Any]:
    """The error of each snapshot alone, of the first m together, and of the single model; returns `reference(…)`."""
    m = range(1, len(alone) + 1)
    axes.plot(m, alone, color=SINGLE, marker="o", label="each snapshot alone")
    if len(alone) > 1:
        axes.plot(m, first, color=ENSEMBLE, marker="s", label="the first m together")
    axes.set_xticks(m)
    axes.set(xlabel="m, snapshots so far", ylabel="test error, %")
    return reference(axes, single)


def last_members(
    axes: Any, by_seed: Sequence[Sequence[float]], single: Sequence[float], text_points: float = _SMALL
) -> Any:
    """The error of the last m together, as points at the mean over seeds; returns the points.

    The axis does not start at zero, so bars would mislead.
    """
    m, means = range(1, len(by_seed[0]) + 1), np.mean(by_seed, axis=0).tolist()
    (points,) = axes.plot(m, means, color=ENSEMBLE, linestyle="", marker="o", markersize=7, zorder=2)
    place = {"textcoords": "offset points", "ha": "center", "va": "bottom", "zorder": 4, "bbox": CLEARING}
    for k, mean, errors in zip(m, means, zip(*by_seed, strict=True), strict=True):
        axes.annotate(f"{mean:.2f}", (k, max(mean, *errors)), (0, 6), size=min(text_points, 90 / len(m)), **place)
    named = reference(axes, single)
    for seed in by_seed if len(by_seed) > 1 else ():
        (named["each seed"],) = axes.plot(m, seed, linestyle="", marker="_", color=INK, markersize=7, zorder=3)
    small_legend(axes, named, "upper right", text_points)
    values = [*(error for seed in by_seed for error in seed), *single]
    room = max(max(values) - min(values), 0.02 * max(values), 0.1)
    axes.set(xlabel="m, snapshots in the ensemble", xlim=(0.4, len(m) + 0.6))
    axes.set_ylim(max(0, min(values) - 0.6 * room), max(values) + 0.45 * room)
    axes.set_xticks(m)
    return points


def reference(axes: Any, errors: Sequence[float]) -> dict[str, Any]:
    """The mean error of the single model as a dashed line; returns {label: line} for a small legend."""
    if not errors:
        return {}
    level = float(np.mean(errors))
    line = axes.axhline(level, color=BASELINE, linestyle="--", linewidth=1.3, label="single model", zorder=3)
    return {f"single model {level:.2f}": line}


def small_legend(axes: Any, named: Mapping[str, Any], place: str, text_points: float = _SMALL) -> None:
    """A legend in small type; none if `named` is empty."""
    if named:
        look = {"fontsize": text_points, "labelcolor": BASELINE, "handlelength": 2.4, "borderaxespad": 0, **_FRAME}
        axes.legend(list(named.values()), list(named), loc=place, **look)


def by_size(axes: Any, points: Mapping[int, Sequence[float]], label: str, colour: str, marker: str) -> None:
    """The mean error at each size, and every value if there are several."""
    sizes = sorted(points)
    axes.plot(sizes, [np.mean(points[size]) for size in sizes], color=colour, marker=marker, label=label)
    for size, values in points.items():
        if len(values) > 1:
            axes.plot([size] * len(values), values, linestyle="", marker="_", color=colour, markersize=7)
    axes.set(ylabel="test error, %")


def legend_above(axes: Any) -> None:
    """A legend in the upper right corner, with room for it above the data."""
    axes.legend(loc="upper right", **_FRAME)
    leave_room(axes, 0.3)


def legend_outside(axes: Any) -> None:
    """A legend in one row above the axes, where it never covers data."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))


def leave_room(axes: Any, share: float) -> None:
    """Extend the vertical axis upwards."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + share * (high - low))


def small_note(axes: Any, text: str) -> None:
    """A note in the upper right corner."""
    place = {"xycoords": "axes fraction", "ha": "right", "va": "top", "size": _SMALL, "color": MUTED}
    axes.annotate(text, (1, 1), bbox=CLEARING, **place)
    leave_room(axes, 0.1)


def matrix(axes: Any, values: Floats, form: str, limits: tuple[float, float] | None = None) -> tuple[float, float]:
    """A value for each pair of snapshots, without the diagonal; returns the limits of the colours."""
    count = len(values)
    apart = ~np.eye(count, dtype=bool)
    size = min(10.5, 80 / count)
    low, high = limits or (float(values[apart].min()), float(values[apart].max()))
    rectangle = package("matplotlib.patches", "report").Rectangle
    for row, column in zip(*np.nonzero(apart), strict=True):
        share = (values[row, column] - low) / (high - low) if high - low > 1e-6 else 0.5  # a single pair has no range
        look = {"facecolor": ENSEMBLE, "alpha": 0.08 + 0.42 * float(np.clip(share, 0, 1)), "linewidth": 0}
        axes.add_patch(rectangle((column + 0.53, row + 0.53), 0.94, 0.94, **look))
        if size > 5:  # otherwise it is not legible
            axes.text(column + 1, row + 1, form.format(values[row, column]), ha="center", va="center", fontsize=size)
    axes.set(xlim=(0.5, count + 0.5), ylim=(count + 0.5, 0.5), aspect="equal", xlabel="snapshot", ylabel="snapshot")
    axes.set(xticks=range(1, count + 1), yticks=range(1, count + 1))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return low, high


def lines_between(axes: Any, between: Between, statistics: str) -> None:
    """The error between the last snapshot and each earlier one, with the number of the earlier one at the left.

    `statistics` selects the BatchNorm statistics: "interpolated" or "estimated".
    """
    errors = [getattr(line, f"{statistics}_percent") for line in between.lines]
    for k, values in enumerate(errors, 1):
        axes.plot(between.last_share, values, color=ENSEMBLE, alpha=0.35 + 0.65 * k / len(errors))
    low, high = min(map(min, errors)), max(map(max, errors))
    height = high - low or 1
    places = separated([values[0] for values in errors], height / 16, low, high)
    for line, place in zip(between.lines, places, strict=True):
        axes.text(-0.02, place, str(line.snapshot), ha="right", va="center")
    axes.set(ylabel="test error, %", ylim=(low - 0.05 * height, high + 0.05 * height), xlim=(-0.07, 1))


def separated(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions of labels near `heights`, in the same order, at least `gap` apart, if possible from `low` to `high`."""
    order, places = np.argsort(heights, kind="stable"), list(heights)
    for below, above in pairwise(order.tolist()):
        places[above] = max(places[above], places[below] + gap)
    shift = float(np.mean(heights) - np.mean(places))
    shift = max(min(shift, high - max(places)), low - min(places))
    return [place + shift for place in places]


def reliability(axes: Any, predictors: Mapping[str, tuple[Sequence[Any], str, str]]) -> None:
    """Accuracy by confidence: the bins, the colour and the marker of each predictor, by its label."""
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    for label, (bins, colour, marker) in predictors.items():
        for few in (False, True):
            some = [found for found in bins if (found.examples < FEW_EXAMPLES) == few]
            points = ([100 * getattr(found, name) for found in some] for name in ("confidence", "accuracy"))
            look = {"linestyle": "", "alpha": 0.4} if few else {"label": label}
            axes.plot(*points, color=colour, marker=marker, **look)
    axes.set(xlabel="confidence, %", ylabel="accuracy, %")


def early_exit(axes: Any, exits: Exits, fitted: tuple[float, float] | None) -> None:
    """The error by the mean number of members evaluated: always the last m, and early exit at each confidence.

    `fitted` is the point of a fitted combination.
    """
    m = np.arange(1, len(exits.error) + 1)
    axes.plot(m, 100 * exits.error[:, -1], color=SINGLE, marker="o", label="always the last m")
    axes.plot(exits.used[-1], 100 * exits.error[-1], color=ENSEMBLE, marker=".", label="early exit")
    if fitted is not None:
        axes.plot(*fitted, color=INK, linestyle="", marker="D", markersize=6, label="fitted", zorder=3)
    axes.set_xticks(m)
    axes.set(xlabel="members evaluated, mean")
    legend_outside(axes)
