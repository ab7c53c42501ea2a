"""The paper's tables in its own layout, our measured values beside the published ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.paper.cells import Cell
from ..lab.paper.ledger import Entries, measured
from . import names


@dataclass(frozen=True)
class Value:
    """One number of a table: what the paper prints, and what we measured, in percent."""

    cell: Cell
    ours: tuple[float, ...]
    """One for each repetition."""
    published_is_best: bool = False
    """Of its group and column; the paper has it in bold."""
    ours_is_best: bool = False
    """Of what was measured in its group and column, where that is more than one."""

    @property
    def published(self) -> str:
        """As the paper prints it, with its star."""
        percent = self.cell.published_percent
        return "–" if percent is None else f"{percent:.2f}{'*' * self.cell.starred}"

    @property
    def n(self) -> int:
        """How many repetitions there are."""
        return len(self.ours)

    @property
    def mean(self) -> float | None:
        """Of our repetitions; None where there are none."""
        return fmean(self.ours) if self.ours else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over our repetitions; None where there is no more than one."""
        return stdev(self.ours) if self.n > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the published value, in points."""
        published = self.cell.published_percent
        return None if self.mean is None or published is None else self.mean - published


@dataclass(frozen=True)
class Row:
    """A method; where the paper has no number for a column, its value is None."""

    method: str
    values: tuple[Value | None, ...]
    is_the_papers: bool
    """A Snapshot Ensemble with cycles: the paper has its numbers in blue."""


@dataclass(frozen=True)
class Group:
    """A network, and the methods that it was trained with."""

    network: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    number: int
    title: str
    columns: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """All that the paper has a number for, row by row."""
        return tuple(value for group in self.groups for row in group.rows for value in row.values if value)


_TITLES = {
    1: "Error rates (%), all methods of a group with the same training budget; SVHN with its extra training images",
    2: "Top-1 error rates (%) of ResNet-50 on ImageNet's validation images, by number of cycles",
    3: "Error rates (%) of a DenseNet-40 Snapshot Ensemble on CIFAR-100, by number of cycles M",
}


def table(number: int, entries: Entries) -> Table:
    """Table 1, 2 or 3.

    Examples:
        >>> table(3, {}).groups[0].rows[3].values[0].published
        '21.89'
    """
    if number not in _TITLES:
        raise ArgumentError(f"number must be that of a table of the paper, 1, 2 or 3, got {number!r}")
    cells = [cell for cell in paper.cells() if cell.where == f"table {number}"]
    datasets = _distinct(names.dataset(cell.name) for cell in cells)
    values = {cell.name: Value(cell, tuple(measured(cell, entries))) for cell in cells}
    groups = tuple(
        _group(network, datasets, [value for name, value in values.items() if names.network(name) == network])
        for network in _distinct(names.network(cell.name) for cell in cells)
    )
    return Table(number, _TITLES[number], tuple(names.SHORT.get(name, name) for name in datasets), groups)


def _group(network: str, datasets: tuple[str, ...], values: list[Value]) -> Group:
    columns = {dataset: [v for v in values if names.dataset(v.cell.name) == dataset] for dataset in datasets}
    marked = {value.cell.name: value for column in columns.values() for value in _marked(column)}
    rows = []
    for method in _distinct(names.method(name) for name in marked):
        of_method = {names.dataset(name): value for name, value in marked.items() if names.method(name) == method}
        cyclic = all(value.cell.recipe.method == "snapshot" for value in of_method.values())
        rows.append(Row(method, tuple(of_method.get(dataset) for dataset in datasets), cyclic))
    return Group(network, tuple(rows))


def _marked(column: list[Value]) -> list[Value]:
    """With the best ones marked, as printed: two that look equal are equal."""
    published = [round(v.cell.published_percent, 2) for v in column if v.cell.published_percent is not None]
    ours = [round(value.mean, 2) for value in column if value.mean is not None]
    return [
        replace(
            value,
            published_is_best=value.cell.published_percent == min(published, default=None),
            ours_is_best=len(ours) > 1 and value.mean is not None and round(value.mean, 2) == min(ours),
        )
        for value in column
    ]


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
