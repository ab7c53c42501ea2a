"""The README's table of results: what was measured, beside what the paper prints, with n and hardware."""

import html

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.paper.ledger import Entries, measured, origins
from . import names
from .formats import markdown_row
from .tables import Value

BEGIN = "<!-- results: begin (made from the ledger; do not edit) -->"
END = "<!-- results: end -->"


def results(entries: Entries) -> str:
    """A table in Markdown: one line for each published number that we measured, however many tables have it."""
    rows = [
        ["network", "data", "method", "paper, %", "ours, %", "difference, points", "n", "hardware"],
        ["---", "---", "---", "---:", "---:", "---:", "---:", "---"],
    ]
    numbers: dict[tuple[object, ...], paper.Cell] = {}
    for cell in paper.cells():
        numbers.setdefault((cell.recipe, cell.reads, cell.seeds), cell)
    for cell in sorted(numbers.values(), key=_network_and_dataset):
        value = Value(cell, tuple(measured(cell, entries)))
        if value.difference is not None:
            rows.append(_row(value, sorted({origin.device for origin in origins(cell, entries)})))
    return "\n".join(map(markdown_row, rows)) if len(rows) > 2 else "Nothing has been measured yet."


def update(text: str, block: str) -> str:
    """A text with what stands between its two markers made anew."""
    begin, end = text.find(BEGIN), text.find(END)
    if not (text.count(BEGIN) == text.count(END) == 1 and begin < end):
        raise ArgumentError(f"text must hold the lines {BEGIN} and {END}, in this order and once each: add them")
    return f"{text[: begin + len(BEGIN)]}\n\n{block}\n\n{text[end:]}"


def _network_and_dataset(cell: paper.Cell) -> tuple[int, int]:
    network, dataset = cell.name.split("-")[:2]
    return list(names.NETWORKS).index(network), list(names.DATASETS).index(dataset)


def _row(value: Value, hardware: list[str]) -> list[str]:
    name = value.cell.name
    spread = "" if value.spread is None else f" ± {value.spread:.2f}"
    return [
        names.network(name),
        names.dataset(name),
        names.method(name),
        value.published.replace("*", "\\*"),
        f"{value.mean:.2f}{spread}",
        f"{value.difference:+.2f}",
        str(value.n),
        ", ".join(map(_escaped, hardware)),
    ]


def _escaped(words: str) -> str:
    """As itself in a cell of a Markdown table, whatever the characters."""
    return "".join(f"&#{ord(mark)};" if mark in "|\\`*_[]~:" else mark for mark in html.escape(words))
