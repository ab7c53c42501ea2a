"""The paper's figures, drawn from the ledger; a panel without measurements is marked as such."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..lab.paper import figures as paper_figures
from ..lab.paper.cells import Cell
from ..lab.paper.figures import Panel
from ..lab.paper.ledger import Entries, measured, origins
from . import names, panels, style

Draw = Callable[[Any, Sequence[Cell], Entries], bool]

UNMEASURED = "not measured yet"


@dataclass(frozen=True)
class Layout:
    """How the panels of a figure are arranged."""

    draws: tuple[Draw, ...]
    """Each of these functions draws all panels."""
    columns: int
    panel_points: tuple[float, float]
    """Width and height."""
    first_seed: bool = False
    """Whether only the first seed is drawn, not a mean over seeds."""
    legend: bool = False
    """Whether all panels share one legend."""
    comparable: bool = False
    """Whether panels of the same network and data set share a scale."""


_LEAST_POINTS = 360  # of width
_MARGIN_POINTS = 70  # for the text above and below the panels
_LINE_POINTS = 15  # for each further line of text
_TITLE_POINTS = 6.6  # per character
_LAYOUTS = {
    "2": Layout((panels.losses,), 1, (540, 270), first_seed=True),
    "3": Layout((panels.last_members,), 4, (225, 215), comparable=True),
    "4": Layout((panels.sizes,), 3, (270, 230)),
    "5": Layout(
        tuple(partial(panels.between, statistics=how) for how in ("interpolated", "estimated")),
        4,
        (205, 215),
        first_seed=True,
    ),
    "6": Layout((panels.correlation,), 2, (285, 290), first_seed=True),
    "S": Layout((panels.growing,), 4, (215, 170), legend=True, comparable=True),
}


def figure(
    name: str, entries: Entries, network: str | None = None, *, measured_only: bool = False, columns: int | None = None
) -> Any:
    """Figure "2" to "6", or "S" for the supplement, as a matplotlib Figure.

    `network` draws it for another network of the paper, which the title then names. `measured_only` omits panels
    without measurements, unless there are no others. `columns` is the largest number of panels side by side.
    """
    described = paper_figures.figure(name)
    layout = _LAYOUTS[name]
    if not (panels_of_figure := described.panels(network)):
        choices = ", ".join(other for other in names.NETWORKS if described.panels(other))
        raise ArgumentError(
            f"network must be one with cells of the paper for figure {name}, got {network!r}: choose from {choices}"
        )
    places = [(draw, panel) for draw in layout.draws for panel in panels_of_figure]
    with style.drawing():
        if measured_only:  # tried on axes that are thrown away
            scratch = style.figure().subplots()
            places = [place for place in places if place[0](scratch, place[1].cells, entries)] or places
        columns = min(columns or layout.columns, layout.columns, -(-len(places) // len(layout.draws)))
        rows = -(-len(places) // columns)
        width = max(layout.panel_points[0] * columns, _LEAST_POINTS)
        title = textwrap.wrap(_title(name, described, network), int(width / _TITLE_POINTS))
        height = layout.panel_points[1] * rows + _MARGIN_POINTS + _LINE_POINTS * (len(title) - 1)
        drawn = style.figure(width, height)
        drawn.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        grid = drawn.subplots(rows, columns, squeeze=False)
        evidence = _draw_panels(grid, places, entries, name)
        _label_outermost(grid)
        drawn.suptitle("\n".join(title), x=0.01, ha="left", fontsize=12)
        origin = drawn.supxlabel(_origin(evidence, entries), x=0.01, ha="left", fontsize=8.5, color=style.MUTED)
        if layout.legend:
            _share_legend(drawn, grid, origin)
        drawn.draw_without_rendering()  # fixes the layout, so that every save gives the same picture
        drawn.set_layout_engine("none")
    return drawn


def measured_networks(name: str, entries: Entries) -> list[str]:
    """The networks of the paper for which at least one panel of a figure has measurements."""
    described, draws = paper_figures.figure(name), _LAYOUTS[name].draws
    with style.drawing():
        scratch = style.figure().subplots()
        return [
            network
            for network in names.NETWORKS
            if any(draw(scratch, panel.cells, entries) for draw in draws for panel in described.panels(network))
        ]


def _draw_panels(grid: Any, places: Sequence[tuple[Draw, Panel]], entries: Entries, name: str) -> list[Cell]:
    """Draw each panel with its title; the cells of the panels that have measurements."""
    evidence: list[Cell] = []
    scales: dict[tuple[str, str], list[Any]] = {}
    layout = _LAYOUTS[name]
    for axes in grid.flat[len(places) :]:
        axes.set_visible(False)
    for axes, (draw, panel) in zip(grid.flat, places, strict=False):
        found = entries if draw(axes, panel.cells, entries) else {}
        if found:
            evidence += panel.cells
            scales.setdefault((panel.network, panel.dataset), []).append(axes)
        else:
            _leave_empty(axes)
        title = _panel_title(panel, found, with_network=name == "S", first_seed=layout.first_seed)
        axes.set_title(title, fontsize=9.5, loc="left", color=style.INK)
    for alike in scales.values() if layout.comparable else ():
        lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_ylim(min(lows), max(highs))
    return evidence


def _leave_empty(axes: Any) -> None:
    axes.text(0.5, 0.5, UNMEASURED, transform=axes.transAxes, ha="center", va="center", color=style.MUTED)
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.set(xticks=[], yticks=[])


def _panel_title(panel: Panel, entries: Entries, *, with_network: bool, first_seed: bool) -> str:
    """The data set, and below it the setting, the number of seeds, and how many cells are measured if not all are."""
    subject = [names.NETWORKS[panel.network]] * with_network + [names.DATASETS[panel.dataset]]
    setting = [panel.setting] if panel.setting else []
    counts = [repetitions for cell in panel.cells if (repetitions := len(measured(cell, entries)))]
    if counts:
        least, most = min(counts), max(counts)
        n = f"n = {least}" if least == most else f"n = {least} to {most}"
        setting.append("one seed" if first_seed else n)
    if 0 < len(counts) < len(panel.cells):
        setting.append(f"{len(counts)} of {len(panel.cells)} cells")
    return "\n".join(", ".join(line) for line in (subject, setting) if line)


def _title(name: str, described: paper_figures.Figure, network: str | None) -> str:
    shows = described.shows.replace("m = 1 … M", "m = 1 … M".replace(" ", "\N{NO-BREAK SPACE}"))
    if described.network is None:
        return f"Supplement: {shows}"
    other = f" (in the paper {names.NETWORKS[described.network]})" if network not in (None, described.network) else ""
    return f"Figure {name}, {names.NETWORKS[network or described.network]}{other}: {shows}"


def _label_outermost(grid: Any) -> None:
    """Name the axes only at the left and at the bottom of the grid."""
    for row in grid:
        for axes in [axes for axes in row if axes.get_ylabel()][1:]:
            axes.set_ylabel("")
    for column in grid.T:
        for axes in [axes for axes in column if axes.get_xlabel()][:-1]:
            axes.set_xlabel("")


def _share_legend(drawn: Any, grid: Any, origin: Any) -> None:
    """One legend below all panels, in as many lines as it needs; `origin` moves above it where they would overlap."""
    found = (axes.get_legend_handles_labels() for axes in grid.flat)
    handles, labels = max(found, key=lambda pair: len(pair[1]))
    for lines in range(1, len(labels) + 1):
        legend = drawn.legend(handles, labels, loc="outside lower right", ncols=-(-len(labels) // lines))
        drawn.draw_without_rendering()
        if lines == len(labels) or legend.get_window_extent().width < drawn.bbox.width:
            break
        legend.remove()
    if labels and legend.get_window_extent().overlaps(origin.get_window_extent()):
        origin.set_text(origin.get_text() + "\n" * (lines + 1))
        drawn.set_figheight(drawn.get_figheight() + lines * _LINE_POINTS / 72)


def _origin(cells: Sequence[Cell], entries: Entries) -> str:
    found = [origin for cell in cells for origin in origins(cell, entries)]
    if not found:
        return ""
    commits = sorted({origin.commit[:7] for origin in found})
    some = f"{', '.join(commits[:3])}{' …' * (len(commits) > 3)}"
    devices = ", ".join(sorted({origin.device for origin in found}))
    return textwrap.shorten(f"commit {some}, measured on {devices}", 80, placeholder=" …")
