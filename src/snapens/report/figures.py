"""The paper's figures, drawn from the ledger; a panel that nobody measured says so."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.paper import figures as paper_figures
from ..lab.paper.cells import Cell
from ..lab.paper.ledger import Entries, measured, origins
from ..lab.recipe.recipe import unknown
from . import names, panels, style

Draw = Callable[[Any, Sequence[Cell], Entries], bool]
Place = tuple[Draw, str, Sequence[Cell]]
"""How a panel is drawn, what it is called, and of which cells."""

UNMEASURED = "not measured yet"


@dataclass(frozen=True)
class Layout:
    """How the panels of a figure stand on the page."""

    draws: tuple[Draw, ...]
    """All panels are drawn by each in turn."""
    columns: int
    panel_points: tuple[float, float]
    """Width and height."""
    first_seed: bool = False
    """Where no mean over seeds is drawn."""
    legend: bool = False
    """One for all panels."""
    comparable: bool = False
    """Panels that differ in the last of their words alone have one scale."""


_LEAST_POINTS = 360  # of width, however few the panels are
_MARGIN_POINTS = 70  # for what stands above and below the panels
_LINE_POINTS = 15  # for each further line of it
_TITLE_POINTS = 6.6  # of a character
_LAYOUTS = {
    "2": Layout((panels.losses,), 1, (540, 270), first_seed=True),
    "3": Layout((panels.bars,), 4, (225, 215), comparable=True),
    "4": Layout((panels.sizes,), 3, (270, 230)),
    "5": Layout(
        tuple(partial(panels.between, statistics=how) for how in ("interpolated", "estimated")),
        4,
        (205, 215),
        first_seed=True,
        legend=True,
    ),
    "6": Layout((panels.correlation,), 2, (285, 290), first_seed=True),
    "S": Layout((panels.over_time,), 4, (215, 170), legend=True, comparable=True),
}
_WORDS = {
    **names.NETWORKS,
    **names.DATASETS,
    "snapshot-0.2": "cycles, α₀ = 0.2",
    "nocycle": "no cycles",
    "restarts at 0.1": "α₀ = 0.1",
    "restarts at 0.2": "α₀ = 0.2",
}

_THINGS = {*names.NETWORKS.values(), *names.DATASETS.values()}


def figure(name: str, entries: Entries, network: str | None = None, *, measured_only: bool = False) -> Any:
    """Figure "2" to "6" or the supplement's, "S", as matplotlib's Figure.

    `network` draws the same for another network of the paper's, and the title says so; `measured_only` leaves out the
    panels that nobody has measured, unless that is all of them.
    """
    if name not in _LAYOUTS:
        raise unknown("figure", name, _LAYOUTS)
    layout, shown = _LAYOUTS[name], _panels(name, network)
    places = [(draw, words, cells) for draw in layout.draws for words, cells in shown.items()]
    with style.drawing():
        if measured_only:  # on axes that nobody sees
            scratch = style.figure().subplots()
            places = [place for place in places if place[0](scratch, place[2], entries)] or places
        columns = min(layout.columns, -(-len(places) // len(layout.draws)))
        rows = -(-len(places) // columns)
        width = max(layout.panel_points[0] * columns, _LEAST_POINTS)
        title = textwrap.wrap(_title(name, network), int(width / _TITLE_POINTS))
        height = layout.panel_points[1] * rows + _MARGIN_POINTS + _LINE_POINTS * (len(title) - 1)
        drawn = style.figure(width, height)
        drawn.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        grid = drawn.subplots(rows, columns, squeeze=False)
        evidence = _draw_panels(grid, places, entries, layout)
        _label_outermost(grid)
        drawn.suptitle("\n".join(title), x=0.01, ha="left", fontsize=12)
        made = drawn.supxlabel(_made(evidence, entries), x=0.01, ha="left", fontsize=8.5, color=style.MUTED)
        if layout.legend:
            _share_legend(drawn, grid, made)
        drawn.draw_without_rendering()  # has everything in its place, where it stays however often it is saved
        drawn.set_layout_engine("none")
    return drawn


def _draw_panels(grid: Any, places: Sequence[Place], entries: Entries, layout: Layout) -> list[Cell]:
    """Draw each on axes of its own, with its title; the cells of those that were measured."""
    evidence: list[Cell] = []
    scales: dict[str, list[Any]] = {}
    for axes in grid.flat[len(places) :]:
        axes.set_visible(False)
    for axes, (draw, words, cells) in zip(grid.flat, places, strict=False):
        found = entries if draw(axes, cells, entries) else {}
        if found:
            evidence += cells
            scales.setdefault(words.rpartition(", ")[0], []).append(axes)
        else:
            _leave_empty(axes)
        axes.set_title(_panel_title(words, cells, found, layout), fontsize=9.5, loc="left", color=style.INK)
    for alike in scales.values() if layout.comparable else ():
        lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_ylim(min(lows), max(highs))
    return evidence


def svg(drawn: Any) -> bytes:
    """A figure as SVG, the same bytes each time."""
    return style.saved(drawn, "svg", salt="snapens")


def png(drawn: Any) -> bytes:
    """A figure as PNG, the same bytes each time."""
    return style.saved(drawn, "png", salt="snapens")


FORMATS = {"svg": svg, "png": png}


def _panels(name: str, network: str | None) -> dict[str, list[Cell]]:
    """The cells of each panel, by what is written over it; with another network, those that the paper has of it."""
    found = _panels_of(name, network)
    if not any(found.values()):
        those = [other for other in names.NETWORKS if any(_panels_of(name, other).values())]
        raise ArgumentError(
            f"network must be one of which the paper has cells for figure {name}, got {network!r}: "
            f"try one of {', '.join(those)}"
        )
    return found


def _panels_of(name: str, network: str | None) -> dict[str, list[Cell]]:
    known = {cell.name: cell for cell in paper.cells()}
    found: dict[str, list[Cell]] = {}
    for words, cells in paper_figures.figure(name).panels.items():
        if name == "S" and network not in (None, words.split(", ")[0]):
            continue
        wanted = [cell if network is None else f"{network}-{cell.split('-', 1)[1]}" for cell in cells]
        found[words] = [known[cell] for cell in wanted if cell in known]
    return found


def _leave_empty(axes: Any) -> None:
    axes.text(0.5, 0.5, UNMEASURED, transform=axes.transAxes, ha="center", va="center", color=style.MUTED)
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.set(xticks=[], yticks=[])


def _panel_title(words: str, cells: Sequence[Cell], entries: Entries, layout: Layout) -> str:
    """The network and data set; under it the setting, how many seeds, how many of the cells where some are missing."""
    about = [_WORDS.get(word, word) for word in words.split(", ")]
    things = [word for word in about if word in _THINGS] or [names.dataset(cell.name) for cell in cells[:1]]
    setting = [word for word in about if word not in _THINGS]
    counts = [repetitions for cell in cells if (repetitions := len(measured(cell, entries)))]
    if counts:
        least, most = min(counts), max(counts)
        n = f"n = {least}" if least == most else f"n = {least} to {most}"
        setting.append("one seed" if layout.first_seed else n)
    if 0 < len(counts) < len(cells):
        setting.append(f"{len(counts)} of {len(cells)} cells")
    return "\n".join(", ".join(line) for line in (things, setting) if line)


def _title(name: str, network: str | None) -> str:
    drawn = paper_figures.figure(name)
    shows = drawn.shows.replace(
        "m = 1 … M", "m\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}…\N{NO-BREAK SPACE}M"
    )
    if name == "S":
        return f"Supplement: {shows}"
    own = names.network(next(iter(drawn.panels.values()))[0])
    shown = own if network is None else names.NETWORKS[network]
    return f"Figure {name}, {shown}{'' if shown == own else f' (in the paper {own})'}: {shows}"


def _label_outermost(grid: Any) -> None:
    """Keep the axes' names at the left and at the bottom; those between say the same."""
    for row in grid:
        for axes in [axes for axes in row if axes.get_ylabel()][1:]:
            axes.set_ylabel("")
    for column in grid.T:
        for axes in [axes for axes in column if axes.get_xlabel()][:-1]:
            axes.set_xlabel("")


def _share_legend(drawn: Any, grid: Any, made: Any) -> None:
    """One legend below all panels, in as many lines as it needs, and `made` above it where one line has not both."""
    found = (axes.get_legend_handles_labels() for axes in grid.flat)
    handles, labels = max(found, key=lambda pair: len(pair[1]))
    for lines in range(1, len(labels) + 1):
        legend = drawn.legend(handles, labels, loc="outside lower right", ncols=-(-len(labels) // lines))
        drawn.draw_without_rendering()
        if lines == len(labels) or legend.get_window_extent().width < drawn.bbox.width:
            break
        legend.remove()
    if labels and legend.get_window_extent().overlaps(made.get_window_extent()):
        made.set_text(made.get_text() + "\n" * (lines + 1))
        drawn.set_figheight(drawn.get_figheight() + lines * _LINE_POINTS / 72)


def _made(cells: Sequence[Cell], entries: Entries) -> str:
    made = [origin for cell in cells for origin in origins(cell, entries)]
    if not made:
        return ""
    commits = sorted({origin.commit[:7] for origin in made})
    some = f"{', '.join(commits[:3])}{' …' * (len(commits) > 3)}"
    devices = ", ".join(sorted({origin.device for origin in made}))
    return textwrap.shorten(f"commit {some}, measured on {devices}", 80, placeholder=" …")
