"""The paper's figures as data: what each shows, and the cells that its panels are drawn from."""

from dataclasses import dataclass

from ..recipe.recipe import unknown
from .cells import cells

_CIFAR = ("cifar10", "cifar100")
_RATES = ("0.1", "0.2")


@dataclass(frozen=True)
class Figure:
    """What a figure of the paper shows, and the cells whose runs it is drawn from, panel by panel."""

    shows: str
    panels: dict[str, tuple[str, ...]]


def figure(name: str) -> Figure:
    """A figure by its number, or the supplement's."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]


def _named(begin: str, end: str = "") -> tuple[str, ...]:
    return tuple(cell.name for cell in cells() if cell.name.startswith(begin) and cell.name.endswith(end))


def _by_epochs(dataset: str) -> tuple[str, ...]:
    """All budgets of two methods; the last is in Table 1."""
    methods = [f"densenet40-{dataset}-{method}" for method in ("snapshot-0.1", "singlecycle")]
    return tuple(name for method in methods for name in (*_named(f"{method}-", "-epochs"), method))


def _pairs() -> tuple[tuple[str, str], ...]:
    """The networks and data sets of Table 1."""
    single = [cell.name for cell in cells() if cell.where == "table 1" and cell.name.endswith("-single")]
    return tuple((network, dataset) for network, dataset, _ in (name.split("-") for name in single))


FIGURES = {
    "2": Figure(
        "training loss under the standard and the cyclic schedule",
        # the rate of 0.1 is ours: the paper states none
        {"cifar10": ("densenet100-cifar10-single", "densenet100-cifar10-snapshot-0.1")},
    ),
    # the caption says DenseNet-100, the text DenseNet-40
    "3": Figure(
        "error of the last m snapshots, m = 1 … M, and of the single model",
        {
            f"{dataset}, restarts at {lr}": (f"densenet100-{dataset}-snapshot-{lr}", f"densenet100-{dataset}-single")
            for lr in _RATES
            for dataset in _CIFAR
        },
    ),
    "4": Figure(
        "error by training budget; error of as many snapshots and fully trained models",
        {
            "cifar10, by epochs": _by_epochs("cifar10"),
            "cifar100, by epochs": _by_epochs("cifar100"),
            # the rate of 0.2 is ours, Table 1's better one: the paper states none
            "cifar100, by models": (
                "densenet40-cifar100-snapshot-0.2",
                "densenet40-cifar100-single",
                *_named("densenet40-cifar100-single-x"),
            ),
        },
    ),
    "5": Figure(
        "error between the last snapshot's weights and each earlier one's",
        {
            f"{dataset}, {method}": (f"densenet40-{dataset}-{method}",)
            for method in ("snapshot-0.2", "nocycle")
            for dataset in _CIFAR
        },
    ),
    "6": Figure(
        "correlation of every two snapshots' softmax outputs",
        # CIFAR-100 is ours: the paper names no data set
        {method: (f"densenet100-cifar100-{method}",) for method in ("snapshot-0.2", "nocycle")},
    ),
    "S": Figure(
        "error of each snapshot, of the first m together, m = 1 … M, and of the single model",
        {
            f"{network}, {dataset}, restarts at {lr}": (
                f"{network}-{dataset}-snapshot-{lr}",
                f"{network}-{dataset}-single",
            )
            for network, dataset in _pairs()
            for lr in _RATES
        },
    ),
}
