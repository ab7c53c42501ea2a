"""The paper's figures as data: what each figure shows, and the cells of its panels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..recipe.value import look_up
from .cells import BUDGETS_EPOCHS, TRUE_ENSEMBLES, Cell, cells

_CIFAR = ("cifar10", "cifar100")
_RATES = ("0.1", "0.2")


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: its network and data set, the setting that it is drawn for, and its cells."""

    network: str
    dataset: str
    setting: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Figure:
    """What a figure of the paper shows, and for which network; None if it is drawn for all networks."""

    shows: str
    network: str | None
    panels_of: Callable[[str], Iterable[Panel]]

    def panels(self, network: str | None = None) -> tuple[Panel, ...]:
        """The panels for the paper's network, or for another one; a panel without cells is left out."""
        chosen = network or self.network
        networks = [chosen] if chosen else dict.fromkeys(cell.network for cell in cells() if cell.where == "table 1")
        return tuple(panel for one in networks for panel in self.panels_of(one) if panel.cells)


def figure(name: str) -> Figure:
    """The figure with a number, or "S" for the supplement."""
    return look_up("figure", name, FIGURES)


def _panel(network: str, dataset: str, setting: str, methods: Iterable[str]) -> Panel:
    known = {cell.method: cell for cell in cells() if (cell.network, cell.dataset) == (network, dataset)}
    return Panel(network, dataset, setting, tuple(known[method] for method in methods if method in known))


def _losses(network: str) -> Iterable[Panel]:
    # 0.1 is our choice: the paper states no rate
    yield _panel(network, "cifar10", "", ("single", "snapshot-0.1"))


def _by_rate(network: str) -> Iterable[Panel]:
    for lr in _RATES:
        for dataset in _CIFAR:
            yield _panel(network, dataset, f"α₀ = {lr}", (f"snapshot-{lr}", "single"))


def _sizes(network: str) -> Iterable[Panel]:
    for dataset in _CIFAR:  # the budget of 300 epochs is in Table 1
        budgets = (*(f"-{epochs}-epochs" for epochs in BUDGETS_EPOCHS), "")
        methods = [f"{method}{budget}" for method in ("snapshot-0.1", "singlecycle") for budget in budgets]
        yield _panel(network, dataset, "by epochs", methods)
    # 0.2 is our choice, the better rate of Table 1: the paper states no rate
    true_ensembles = (f"single-x{seeds}" for seeds in TRUE_ENSEMBLES)
    yield _panel(network, "cifar100", "by models", ("snapshot-0.2", "single", *true_ensembles))


def _cyclic_or_not(network: str, datasets: Iterable[str]) -> Iterable[Panel]:
    for method, setting in (("snapshot-0.2", "cycles, α₀ = 0.2"), ("nocycle", "no cycles")):
        for dataset in datasets:
            yield _panel(network, dataset, setting, (method,))


def _supplement(network: str) -> Iterable[Panel]:
    for dataset in dict.fromkeys(cell.dataset for cell in cells() if cell.where == "table 1"):
        for lr in _RATES:
            yield _panel(network, dataset, f"α₀ = {lr}", (f"snapshot-{lr}", "single"))


FIGURES = {
    "2": Figure("training loss with the standard and the cyclic schedule (dotted: snapshots)", "densenet100", _losses),
    # the caption says DenseNet-100, the text DenseNet-40
    "3": Figure("error of the last m snapshots, m = 1 … M, and of the single model", "densenet100", _by_rate),
    "4": Figure("error by training budget; error of m snapshots and of m fully trained models", "densenet40", _sizes),
    "5": Figure(
        "error between the weights of each earlier snapshot (its number) and of the last one",
        "densenet40",
        lambda network: _cyclic_or_not(network, _CIFAR),
    ),
    # CIFAR-100 is our choice: the paper names no data set
    "6": Figure(
        "correlation between the softmax outputs of every two snapshots",
        "densenet100",
        lambda network: _cyclic_or_not(network, ("cifar100",)),
    ),
    "S": Figure("error of each snapshot, of the first m, m = 1 … M, and of the single model", None, _supplement),
}
