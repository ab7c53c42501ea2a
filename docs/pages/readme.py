"""The results in the README: our errors next to the published ones, with n and hardware."""

import html

from snapens.errors import ArgumentError
from snapens.lab.paper import cells as paper
from snapens.lab.paper.ledger import Entries, measured, origins
from snapens.report import names
from snapens.report.formats import markdown_row
from snapens.report.spread import Spread

from .qualities import Quality

BEGIN = "<!-- results: begin (made from the ledger; do not edit) -->"
END = "<!-- results: end -->"
HEADLINE = (("resnet110", "cifar100"), ("wrn32", "cifar100"), ("densenet40", "cifar100"))
"""The networks and data sets of the table."""
MODERN_COMMAND = (
    "snapens train --preset cifar100-modern --epochs 200 --first-cycle 2 --ema 0.999 --sam 0.1 \\\n"
    "    --held-out 5000 --data DIR"
)


def results(entries: Entries) -> str:
    """A table in Markdown: the single model and the Snapshot Ensemble of each network for which we have both."""
    rows = [
        ["network", "data", "single: paper", "single: ours", "ensemble: paper", "ensemble: ours", "n", "hardware"],
        ["---", "---", *["---:"] * 5, "---"],
    ]
    starred = False
    for network, dataset in HEADLINE:
        cells = [paper.find(f"{network}-{dataset}-{method}") for method in ("single", "snapshot-0.2")]
        ours = [Spread(tuple(measured(cell, entries))) for cell in cells]
        if all(spread.n for spread in ours):
            starred = starred or any(cell.starred for cell in cells)
            numbers = [text for pair in zip(cells, ours, strict=True) for text in _numbers(*pair)]
            hardware = sorted({origin.device for cell in cells for origin in origins(cell, entries)})
            counts = ", ".join(dict.fromkeys(str(spread.n) for spread in ours))
            places = [names.NETWORKS[network], names.DATASETS[dataset]]
            rows.append([*places, *numbers, counts, ", ".join(map(_escaped, hardware))])
    if len(rows) == 2:
        return "Nothing has been measured yet."
    notes = "Test errors in %, with a peak rate of 0.2 for the ensembles; n is the number of seeds."
    return "\n".join([*map(markdown_row, rows), "", notes + " \\* Copied from the DenseNet paper." * starred])


def modern(run: Quality, published_percent: float) -> str:
    """The error and the time of a run of the preset with a modern recipe, and the command that trains it."""
    first = next(moment for moment in run.history if 100 * moment.error_so_far < published_percent)
    sentence = (
        f"A modern recipe reaches a test error of {run['all snapshots'].error} % on {names.DATASETS[run.dataset]} "
        f"after {run.minutes:.0f} minutes on one {run.device} (n = {len(run.seeds)}, {run.images:,} training images). "
        f"The lowest error of the paper, {published_percent:.2f} %, is beaten after {first.seconds / 60:.0f} minutes:"
    )
    return f"{sentence}\n\n```sh\n{MODERN_COMMAND}\n```"


def update(text: str, block: str, name: str = "results") -> str:
    """A text in which the part between the two markers with a name is replaced."""
    first, last = (mark.replace("results", name) for mark in (BEGIN, END))
    begin, end = text.find(first), text.find(last)
    if not (text.count(first) == text.count(last) == 1 and begin < end):
        raise ArgumentError(f"text must have the lines {first} and {last}, once each and in this order: add them")
    return f"{text[: begin + len(first)]}\n\n{block}\n\n{text[end:]}"


def _numbers(cell: paper.Cell, ours: Spread) -> list[str]:
    """The published error of a cell, and ours."""
    deviation = "" if ours.deviation is None else f" ± {ours.deviation:.2f}"
    return [cell.published.replace("*", "\\*"), f"{ours.mean:.2f}{deviation}"]


def _escaped(words: str) -> str:
    """Text that a cell of a Markdown table shows unchanged."""
    return "".join(f"&#{ord(mark)};" if mark in "|\\`*_[]~:" else mark for mark in html.escape(words))
