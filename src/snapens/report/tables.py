"""The paper's tables in their own layout, with our measured values beside the published ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import ArgumentError
from ..lab.paper import cells as paper
from ..lab.paper.cells import Cell
from ..lab.paper.ledger import Entries, measured
from . import names
from .spread import Spread


@dataclass(frozen=True)
class Value:
    """One number of a table: the published value and ours, in percent."""

    cell: Cell
    ours: Spread
    """One value per repetition."""
    published_is_best: bool = False
    """Whether it is the best of its group and column; the paper prints it in bold."""
    ours_is_best: bool = False
    """Whether it is the best of several measured values in its group and column."""

    @property
    def difference(self) -> float | None:
        """Our mean minus the published value, in points."""
        published = self.cell.published_percent
        return None if self.ours.mean is None or published is None else self.ours.mean - published


@dataclass(frozen=True)
class Row:
    """A method; the value is None where the paper has no number for a column."""

    method: str
    values: tuple[Value | None, ...]
    is_the_papers: bool
    """Whether it is a Snapshot Ensemble with cycles; the paper prints its numbers in blue."""


@dataclass(frozen=True)
class Group:
    """A network and the methods that it was trained with."""

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
        """The values for which the paper has a number, row by row."""
        return tuple(value for group in self.groups for row in group.rows for value in row.values if value)


_TITLES = {
    1: "Error rates (%). All methods of a group have the same training budget. SVHN includes its extra training images",
    2: "Top-1 error rates (%) of ResNet-50 on the validation images of ImageNet, by number of cycles",
    3: "Error rates (%) of a DenseNet-40 Snapshot Ensemble on CIFAR-100, by number of cycles M",
}


def table(number: int, entries: Entries) -> Table:
    """Table 1, 2 or 3.

    Examples:
        >>> table(3, {}).groups[0].rows[3].values[0].cell.published
        '21.89'
    """
    if number not in _TITLES:
        raise ArgumentError(f"number must be 1, 2 or 3, the tables of the paper, got {number!r}")
    cells = [cell for cell in paper.cells() if cell.where == f"table {number}"]
    datasets = _distinct(cell.dataset for cell in cells)
    values = [Value(cell, Spread(tuple(measured(cell, entries)))) for cell in cells]
    groups = tuple(
        _group(network, datasets, [value for value in values if value.cell.network == network])
        for network in _distinct(cell.network for cell in cells)
    )
    columns = tuple(names.SHORT.get(dataset, names.DATASETS[dataset]) for dataset in datasets)
    return Table(number, _TITLES[number], columns, groups)


def _group(network: str, datasets: tuple[str, ...], values: list[Value]) -> Group:
    columns = ([value for value in values if value.cell.dataset == dataset] for dataset in datasets)
    marked = [value for column in columns for value in _marked(column)]
    rows = []
    for method in _distinct(value.cell.method for value in marked):
        of_method = {value.cell.dataset: value for value in marked if value.cell.method == method}
        cyclic = all(value.cell.recipe.method.kind == "snapshot" for value in of_method.values())
        rows.append(Row(names.METHODS[method], tuple(of_method.get(dataset) for dataset in datasets), cyclic))
    return Group(names.NETWORKS[network], tuple(rows))


def _marked(column: list[Value]) -> list[Value]:
    """The same values with the best ones marked; values that are printed alike count as equal."""
    published = [round(v.cell.published_percent, 2) for v in column if v.cell.published_percent is not None]
    ours = [round(value.ours.mean, 2) for value in column if value.ours.mean is not None]
    return [
        replace(
            value,
            published_is_best=value.cell.published_percent == min(published, default=None),
            ours_is_best=len(ours) > 1 and value.ours.mean is not None and round(value.ours.mean, 2) == min(ours),
        )
        for value in column
    ]


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
