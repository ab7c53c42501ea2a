"""The results in the README: our errors next to the published ones, with n and hardware."""

import html
from dataclasses import replace
from statistics import fmean

from snapens.errors import ArgumentError
from snapens.lab.paper import cells as paper
from snapens.lab.paper.ledger import Entries, measured, origins
from snapens.lab.recipe.presets import cifar100_modern
from snapens.report import names
from snapens.report.formats import markdown_row
from snapens.report.spread import Spread

from .qualities import Qualities

BEGIN = "<!-- results: begin (made from the ledger; do not edit) -->"
END = "<!-- results: end -->"
HEADLINE = (("resnet110", "cifar100"), ("wrn32", "cifar100"), ("densenet40", "cifar100"))
"""The networks and data sets of the table."""
MODERN_COMMAND = (
    "snapens train --preset cifar100-modern --epochs 200 --first-cycle 2 --ema 0.999 --sam 0.1 \\\n"
    "    --held-out 5000 --data DIR"
)
MODERN = replace(cifar100_modern(), epochs=200, first_cycle=2, ema=0.999, sam=0.1, held_out=5000).recipe()
"""The recipe that this command trains."""


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


def modern(runs: Qualities, published_percent: float) -> str:
    """The error and the time of the runs of a modern recipe, and the command that trains one of them."""
    run, error = runs.runs[0], Spread(tuple(100 * value for value in runs.values("all snapshots", "error")))
    earlier = "; measured with an earlier version" if run.remark else ""
    sentence = (
        f"A modern recipe reaches a test error of {_mean(error)} % on {names.DATASETS[run.dataset]} after "
        f"{fmean(one.minutes for one in runs):.0f} minutes of training on one {run.device} (n = {error.n}, "
        f"{run.images:,} training images{earlier}). "
    )
    beaten = [seconds for one in runs if (seconds := one.seconds_below(published_percent)) is not None]
    if len(beaten) == len(runs):
        minutes = f"{fmean(beaten) / 60:.0f} minutes"
        sentence += f"The lowest error of the paper, {published_percent:.2f} %, is beaten after {minutes}"
    return f"{sentence.rstrip('. ')}. This command trains the model:\n\n```sh\n{MODERN_COMMAND}\n```"


def update(text: str, block: str, name: str = "results") -> str:
    """A text in which the part between the two markers with a name is replaced."""
    first, last = (mark.replace("results", name) for mark in (BEGIN, END))
    begin, end = text.find(first), text.find(last)
    if not (text.count(first) == text.count(last) == 1 and begin < end):
        raise ArgumentError(f"text must have the lines {first} and {last}, once each and in this order: add them")
    return f"{text[: begin + len(first)]}\n\n{block}\n\n{text[end:]}"


def _numbers(cell: paper.Cell, ours: Spread) -> list[str]:
    """The published error of a cell, and ours."""
    return [cell.published.replace("*", "\\*"), _mean(ours)]


def _mean(values: Spread) -> str:
    """The mean of some errors and, if there are several, their standard deviation."""
    return f"{values.mean:.2f}" + ("" if values.deviation is None else f" ± {values.deviation:.2f}")


def _escaped(words: str) -> str:
    """Text that a cell of a Markdown table shows unchanged."""
    return "".join(f"&#{ord(mark)};" if mark in "|\\`*_[]~:" else mark for mark in html.escape(words))
