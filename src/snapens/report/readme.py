"""The README's table of results: our values beside the published ones, with n and hardware."""

import html

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.paper.ledger import Entries, measured, origins
from . import names
from .formats import markdown_row
from .spread import Spread
from .tables import Value

BEGIN = "<!-- results: begin (made from the ledger; do not edit) -->"
END = "<!-- results: end -->"


def results(entries: Entries) -> str:
    """A table in Markdown: one line per published number that we measured, even if several tables show it."""
    rows = [
        ["network", "data", "method", "paper, %", "ours, %", "difference, points", "n", "hardware"],
        ["---", "---", "---", "---:", "---:", "---:", "---:", "---"],
    ]
    numbers: dict[tuple[object, ...], paper.Cell] = {}
    for cell in paper.cells():
        numbers.setdefault((cell.recipe, cell.reads, cell.seeds), cell)
    networks, datasets = list(names.NETWORKS), list(names.DATASETS)
    for cell in sorted(numbers.values(), key=lambda one: (networks.index(one.network), datasets.index(one.dataset))):
        value = Value(cell, Spread(tuple(measured(cell, entries))))
        if value.difference is not None:
            rows.append(_row(value, sorted({origin.device for origin in origins(cell, entries)})))
    return "\n".join(map(markdown_row, rows)) if len(rows) > 2 else "Nothing has been measured yet."


def update(text: str, block: str, name: str = "results") -> str:
    """A text in which the part between the two markers with a name is replaced."""
    first, last = (mark.replace("results", name) for mark in (BEGIN, END))
    begin, end = text.find(first), text.find(last)
    if not (text.count(first) == text.count(last) == 1 and begin < end):
        raise ArgumentError(f"text must have the lines {first} and {last}, once each and in this order: add them")
    return f"{text[: begin + len(first)]}\n\n{block}\n\n{text[end:]}"


def _row(value: Value, hardware: list[str]) -> list[str]:
    cell, ours = value.cell, value.ours
    spread = "" if ours.deviation is None else f" ± {ours.deviation:.2f}"
    return [
        names.NETWORKS[cell.network],
        names.DATASETS[cell.dataset],
        names.METHODS[cell.method],
        cell.published.replace("*", "\\*"),
        f"{ours.mean:.2f}{spread}",
        f"{value.difference:+.2f}",
        str(ours.n),
        ", ".join(map(_escaped, hardware)),
    ]


def _escaped(words: str) -> str:
    """Text that a cell of a Markdown table shows unchanged."""
    return "".join(f"&#{ord(mark)};" if mark in "|\\`*_[]~:" else mark for mark in html.escape(words))
