"""A table as plain text, Markdown, CSV or LaTeX."""

import csv as comma_separated
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import names
from .tables import Group, Row, Table, Value

UNMEASURED = "–"
_WHOSE = ["paper", "ours"]

_NOTE = (
    "Paper: the published value; * copied by the paper from the DenseNet paper. Ours: the mean over n seeds ± their "
    "standard deviation, and the difference from the paper in points. – means not published (paper) or not measured "
    "yet (ours). {best} marks the best value of a group, among our values the best measured one."
)


@dataclass(frozen=True)
class _Marks:
    """The notation of a format for the best value, a star, a spread and the evidence."""

    best: str
    star: str
    spread: str
    evidence: str


_TEXT = _Marks("[{}]", "*", " ± {:.2f}", "(n = {n}, {difference:+.2f})")
_MARKDOWN = _Marks("**{}**", "\\*", " ± {:.2f}", "(n = {n}, {difference:+.2f})")
_LATEX = _Marks("\\textbf{{{}}}", "$^*$", " $\\pm$ {:.2f}", "($n={n}$, ${difference:+.2f}$)")

_FIELDS = (
    *("table", "cell", "network", "dataset", "method", "paper_percent", "starred", "paper_is_best"),
    *("ours_percent", "n", "spread_points", "difference_points", "ours_is_best"),
)


def terminal(table: Table, most: int = 1000) -> str:
    """As aligned text, with the best values in brackets; columns beyond `most` characters continue below."""
    head = [["", "", *(text for name in table.columns for text in (name, ""))], ["", ""] + _WHOSE * len(table.columns)]
    blocks = [head, *(_lines(group, _TEXT) for group in table.groups)]
    widths = [max(map(len, column)) for column in zip(*(line for block in blocks for line in block), strict=True)]
    parts, columns = [], [0, 1]
    for k in range(2, len(widths), 2):
        if len(columns) > 2 and sum(widths[c] + 2 for c in (*columns, k, k + 1)) - 2 > most:
            parts.append(_aligned(blocks, widths, columns))
            columns = [0, 1]
        columns += [k, k + 1]
    body = "\n\n".join([*parts, _aligned(blocks, widths, columns)])
    across = max(80, *map(len, body.splitlines()))
    note = textwrap.fill(_NOTE.format(best="[ ]"), min(across, most))
    return f"{textwrap.fill(f'Table {table.number}. {table.title}', most)}\n\n{body}\n{note}\n"


def _aligned(blocks: Sequence[Sequence[Sequence[str]]], widths: Sequence[int], columns: Sequence[int]) -> str:
    """Some columns of lines of text, with rules between the blocks."""
    texts = [
        "\n".join("  ".join(line[c].ljust(widths[c]) for c in columns).rstrip() for line in block) for block in blocks
    ]
    return f"\n{'─' * (sum(widths[c] + 2 for c in columns) - 2)}\n".join([*texts, ""]).rstrip("\n")


def markdown(table: Table) -> str:
    """As a GitHub Markdown table, with the best values in bold."""
    heads = [f"{name}, {whose}" for name in table.columns for whose in _WHOSE]
    lines = [["network", "method", *heads], ["---"] * (2 + len(heads))]
    lines += [line for group in table.groups for line in _lines(group, _MARKDOWN)]
    note = _NOTE.format(best="Bold").replace("*", "\\*")
    return "\n".join([f"**Table {table.number}.** {table.title}", "", *map(markdown_row, lines), "", note, ""])


def markdown_row(texts: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(texts)} |"


def csv(table: Table) -> str:
    """As CSV, with one line per number of the paper."""
    rows = []
    for value in table.values:
        cell = value.cell
        words = [cell.name, names.NETWORKS[cell.network], names.DATASETS[cell.dataset], names.METHODS[cell.method]]
        published = [f"{cell.published_percent:.2f}", int(cell.starred), int(value.published_is_best)]
        ours = [_digits(value.ours.mean), value.ours.n, _digits(value.ours.deviation), _digits(value.difference)]
        rows.append([table.number, *words, *published, *ours, int(value.ours_is_best)])
    return csv_lines([_FIELDS, *rows])


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV; an apostrophe precedes a text that a spreadsheet would take for a formula.

    Examples:
        >>> csv_lines([["name", "change"], ["=1+1", -0.5]])
        "name,change\\n'=1+1,-0.5\\n"
    """
    content = io.StringIO()
    cells = ([_harmless(cell) for cell in row] for row in rows)
    comma_separated.writer(content, lineterminator="\n").writerows(cells)
    return content.getvalue()


def latex(table: Table) -> str:
    """In the layout of the paper, at most as wide as the text; the first line lists the required packages."""
    columns = "ll" + "cc" * len(table.columns)
    heads = [f"\\multicolumn{{2}}{{c}}{{\\bf {_in_latex(name)}}}" for name in table.columns]
    lines = [
        "% needs \\usepackage{adjustbox, booktabs, multirow, xcolor}",
        "\\begin{table*}[t]",
        "\\centering\\small",
        "\\begin{adjustbox}{max width=\\textwidth}",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        " & ".join(["", "\\bf Method", *heads]) + " \\\\",
        " & ".join(["", "", *(_WHOSE * len(table.columns))]) + " \\\\",
    ]
    for group in table.groups:
        lines.append("\\midrule")
        for k, row in enumerate(group.rows):
            network = f"\\multirow{{{len(group.rows)}}}{{*}}{{{_in_latex(group.network)}}}" if k == 0 else ""
            form = "\\textcolor{{blue}}{{{}}}" if row.is_the_papers else "{}"
            shown = [form.format(text) if text.strip(UNMEASURED) else text for text in _shown(row, _LATEX)]
            lines.append(" & ".join([network, _in_latex(row.method), *shown]) + " \\\\")
    caption = f"{table.title}. {_NOTE.format(best='Bold')}"
    lines += [
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{adjustbox}",
        f"\\caption{{{_in_latex(caption)}}}",
        "\\end{table*}",
    ]
    return "\n".join(lines).replace("–", "--") + "\n"


FORMATS = {"terminal": terminal, "markdown": markdown, "csv": csv, "latex": latex}


def _lines(group: Group, marks: _Marks) -> list[list[str]]:
    """A line of texts per method; the first line names the network."""
    return [["" if k else group.network, row.method, *_shown(row, marks)] for k, row in enumerate(group.rows)]


def _shown(row: Row, marks: _Marks) -> list[str]:
    """Two texts per column: the paper's value and our value."""
    return [text for value in row.values for text in (_published(value, marks), _ours(value, marks))]


def _published(value: Value | None, marks: _Marks) -> str:
    if value is None:
        return UNMEASURED
    text = value.cell.published.replace("*", marks.star)
    return marks.best.format(text) if value.published_is_best else text


def _ours(value: Value | None, marks: _Marks) -> str:
    """Our value; empty if the paper has no number."""
    if value is None or value.ours.mean is None:
        return UNMEASURED if value else ""
    text = f"{value.ours.mean:.2f}"
    mean = marks.best.format(text) if value.ours_is_best else text
    spread = "" if value.ours.deviation is None else marks.spread.format(value.ours.deviation)
    return f"{mean}{spread} {marks.evidence.format(n=value.ours.n, difference=value.difference)}"


def _harmless(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _digits(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def _in_latex(text: str) -> str:
    """A plain text as LaTeX: `(α₀ = 0.1)` becomes a formula, % is escaped."""
    formula = re.sub(r"\((\S+) = (\S+)\)", r"($\1=\2$)", text.replace("%", "\\%"))
    return formula.replace("α₀", "\\alpha_0").replace("±", "$\\pm$").replace("; *", "; $^*$")
