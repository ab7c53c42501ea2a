"""The look of charts: one font size, thin lines, and a few colours, each with a name that a page can redefine."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..extras import package

INK, MUTED, RULE, PAPER = "#1c2127", "#5a626c", "#dde1e5", "#ffffff"
ENSEMBLE, SINGLE, BASELINE = "#1d5fa6", "#b4530a", "#6a727d"
COLOURS = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    PAPER: "paper",
    ENSEMBLE: "ensemble",
    SINGLE: "single",
    BASELINE: "baseline",
}
"""The name of each colour in the page's style sheet."""
CLEARING = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
"""A background for text that a line may cross."""

_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10.5,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.borderaxespad": 0.2,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.labelcolor": MUTED,
    "lines.dashed_pattern": (5, 3),
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 200,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.color": RULE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


@contextmanager
def drawing() -> Iterator[None]:
    """A context in which charts have this look, independent of the user's own settings."""
    matplotlib = package("matplotlib", "report")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def figure(width: float = 350, height: float = 235) -> Any:
    """An empty figure with a size in points; it needs no display."""
    return package("matplotlib.figure", "report").Figure(figsize=(width / 72, height / 72))


def saved(drawn: Any, kind: str, salt: str = "snapens") -> bytes:
    """A figure as "svg" or "png", the same bytes each time; `salt` keeps ids of different figures distinct."""
    content = io.BytesIO()
    with drawing():
        package("matplotlib", "report").rcParams["svg.hashsalt"] = salt
        drawn.get_layout_engine().execute(drawn)
        drawn.set_layout_engine("none")  # a second layout of the same figure would differ slightly
        drawn.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return content.getvalue()
