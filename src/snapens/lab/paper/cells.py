"""The paper's numbers as data: every cell of its tables, and the runs of its figures that no table has.

Names are network-dataset-method: `resnet110-cifar100-snapshot-0.2`, `densenet40-cifar100-m8`, `resnet50-imagenet-m2`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from ..recipe.recipe import Recipe, unknown

IMAGES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "svhn-extra": 604_388,
    "tinyimagenet": 100_000,
    "imagenet": 1_281_167,
}
"""Training images of each data set, those held out included."""
TEST_IMAGES = {
    "cifar10": 10_000,
    "cifar100": 10_000,
    "svhn": 26_032,
    "svhn-extra": 26_032,
    "tinyimagenet": 10_000,
    "imagenet": 50_000,
}
"""Those that errors are measured on; of Tiny ImageNet and ImageNet the validation images, whose labels are known."""

IMAGES_PER_SECOND = {"resnet110": 23_000, "wrn32": 29_000, "densenet40": 45_000, "densenet100": 6_200}
"""Training speed of a pack on one H200, batch 64, CIFAR's images; `snapens bench train` measures it."""


@dataclass(frozen=True)
class Cell:
    """One number of the paper: the test error of the mean softmax of some members of some runs."""

    name: str
    recipe: Recipe
    """The run; of several, the one with the first seed."""
    where: str
    """The table or figure that it is a number of."""
    reads: Literal["last", "ensemble"]
    """The members of each run: its last snapshot alone, or all of them."""
    published_percent: float | None = None
    """None: the paper draws it, or means it, but does not print it."""
    starred: bool = False
    """Copied by the paper from the DenseNet paper."""
    seeds: int = 1
    """K: how many runs, one seed each, are averaged."""

    def recipes(self, repetition: int = 0) -> tuple[Recipe, ...]:
        """One for each seed; no two repetitions have a seed in common."""
        first = self.recipe.seed + repetition * self.seeds
        return tuple(replace(self.recipe, seed=first + k) for k in range(self.seeds))


# error in percent, a column for each data set; DenseNet-100 has the first two
_COLUMNS = ("cifar10", "cifar100", "svhn", "tinyimagenet")
_TABLE_1: dict[str, dict[str, tuple[float, ...]]] = {
    "resnet110": {
        "single": (5.52, 28.02, 1.96, 46.50),
        "nocycle": (5.49, 26.97, 1.78, 43.69),
        "singlecycle": (6.66, 24.54, 1.74, 42.60),
        "snapshot-0.1": (5.73, 25.55, 1.63, 40.54),
        "snapshot-0.2": (5.32, 24.19, 1.66, 39.40),
    },
    "wrn32": {
        "single": (5.43, 23.55, 1.90, 39.63),
        "dropout": (4.68, 22.82, 1.81, 36.58),
        "nocycle": (5.18, 22.81, 1.81, 38.64),
        "singlecycle": (5.95, 21.38, 1.65, 35.53),
        "snapshot-0.1": (4.41, 21.26, 1.64, 35.45),
        "snapshot-0.2": (4.73, 21.56, 1.51, 32.90),
    },
    "densenet40": {
        "single": (5.24, 24.42, 1.77, 39.09),
        "dropout": (6.08, 25.79, 1.79, 39.68),
        "nocycle": (5.20, 24.63, 1.80, 38.51),
        "singlecycle": (5.43, 22.51, 1.87, 38.00),
        "snapshot-0.1": (4.99, 23.34, 1.64, 37.25),
        "snapshot-0.2": (4.84, 21.93, 1.73, 36.61),
    },
    "densenet100": {
        "single": (3.74, 19.25),
        "dropout": (3.65, 18.77),
        "nocycle": (3.80, 19.30),
        "singlecycle": (4.52, 18.38),
        "snapshot-0.1": (3.57, 18.12),
        "snapshot-0.2": (3.44, 17.41),
    },
}
_STARRED = {
    "densenet40-cifar10-single",
    "densenet40-cifar100-single",
    "densenet40-svhn-dropout",
    "densenet100-cifar10-single",
    "densenet100-cifar100-single",
}
_TABLE_2_SINGLE = 24.01
_TABLE_2 = {2: 23.33, 3: 23.96}  # M -> percent
_TABLE_3 = {2: 22.92, 4: 22.07, 6: 21.93, 8: 21.89, 10: 22.16}

# a method of Table 1 -> its settings, and which members its number is of; Single and NoCycle are one run
_METHODS: dict[str, tuple[dict[str, Any], Literal["last", "ensemble"]]] = {
    "single": ({"method": "single"}, "last"),
    "dropout": ({"method": "single", "dropout": 0.2}, "last"),
    "nocycle": ({"method": "single"}, "ensemble"),
    "singlecycle": ({"method": "singlecycle", "lr": 0.1}, "ensemble"),  # the rate is ours: the paper states none
    "snapshot-0.1": ({"method": "snapshot", "lr": 0.1}, "ensemble"),
    "snapshot-0.2": ({"method": "snapshot", "lr": 0.2}, "ensemble"),
}
# ours: the paper says "from 60 to 300" epochs and shows no grid; 300 is in Table 1
_BUDGETS_EPOCHS = (60, 120, 180, 240)
_TRUE_ENSEMBLES = (2, 3, 4, 5, 6)  # K; ours, up to M
_SNAPSHOT_ENSEMBLES = (2, 3)  # K; ours: the introduction proposes an ensemble of Snapshot Ensembles and measures none


def cells() -> tuple[Cell, ...]:
    """All cells: the 88 that are published, then Figure 4's that no table has, then K × M."""
    return tuple(_cells().values())


def find(name: str) -> Cell:
    """The cell of a name.

    Examples:
        >>> find("densenet100-cifar100-snapshot-0.2").published_percent
        17.41
    """
    if name not in _cells():
        raise unknown("cell", name, _cells())
    return _cells()[name]


def runs(cells: Iterable[Cell], repetition: int = 0) -> dict[Recipe, tuple[Cell, ...]]:
    """What to train for some cells: each recipe once, with the cells that its run has a part in."""
    found: dict[Recipe, tuple[Cell, ...]] = {}
    for cell in cells:
        for recipe in cell.recipes(repetition):
            found[recipe] = (*found.get(recipe, ()), cell)
    return found


def run_name(recipe: Recipe) -> str:
    """What the folder of a run is called: the cell it is for and its seed, or what sets the recipe apart."""
    if cell := _run_names().get(replace(recipe, seed=0)):
        return f"{cell}-seed{recipe.seed}"
    name = f"{recipe.network}-{recipe.dataset}-{recipe.method}-{recipe.lr:g}-{recipe.epochs}-epochs-seed{recipe.seed}"
    return name.replace(":", "-").replace("/", "-")


def run_names(cell: Cell, repetition: int = 0) -> list[str]:
    """The names of a cell's runs."""
    return [run_name(recipe) for recipe in cell.recipes(repetition)]


@cache
def _run_names() -> dict[Recipe, str]:
    return {recipe: found[0].name for recipe, found in runs(cells()).items()}


def hours(recipe: Recipe) -> float | None:
    """What a run of a recipe takes of a GPU that it shares with others; None where that was never measured."""
    speed = IMAGES_PER_SECOND.get(recipe.network)
    return None if speed is None else recipe.epochs * images(recipe) / speed / 3600


def images(recipe: Recipe) -> int:
    """How many images a recipe trains on: those of its data set that are not held out."""
    if recipe.dataset not in IMAGES:
        raise unknown("dataset", recipe.dataset, IMAGES)
    return IMAGES[recipe.dataset] - recipe.held_out


@cache
def _cells() -> dict[str, Cell]:
    found = (*_table_1(), *_table_2(), *_table_3(), *_figure_4(), *_snapshot_ensembles())
    return {cell.name: cell for cell in found}


def _table_1() -> Iterator[Cell]:
    for network, rows in _TABLE_1.items():
        for method, row in rows.items():
            settings, reads = _METHODS[method]
            for dataset, percent in zip(_COLUMNS, row, strict=False):
                name = f"{network}-{dataset}-{method}"
                recipe = replace(_budget(network, dataset), **settings)
                yield Cell(name, recipe, "table 1", reads, percent, starred=name in _STARRED)


def _budget(network: str, dataset: str) -> Recipe:
    """What all methods of a network on a data set have in common."""
    recipe = Recipe(network=network, dataset=dataset)
    if dataset == "svhn":
        # 1.5 to 2 % are reached only with the extra images, as in the DenseNet paper, though the text counts 73,257
        return replace(recipe, dataset="svhn-extra", epochs=40, cycles=5, held_out=6_000)
    if dataset == "tinyimagenet":
        batch = 64 if network.startswith("densenet") else 128
        return replace(recipe, epochs=150, cycles=6, batch=batch, stem_stride=2)
    if network.startswith("densenet"):
        return replace(recipe, epochs=300, cycles=6)
    return replace(recipe, epochs=200, cycles=5)


def _table_2() -> Iterator[Cell]:
    # the rate of 0.1 is ours: the paper states none
    common = Recipe(network="resnet50", dataset="imagenet", epochs=90, batch=256, lr=0.1)
    single = replace(common, method="single", cycles=1)
    yield Cell("resnet50-imagenet-single", single, "table 2", "last", _TABLE_2_SINGLE)
    for cycles, percent in _TABLE_2.items():
        recipe = replace(common, method="snapshot", cycles=cycles)
        yield Cell(f"resnet50-imagenet-m{cycles}", recipe, "table 2", "ensemble", percent)


def _table_3() -> Iterator[Cell]:
    for cycles, percent in _TABLE_3.items():
        recipe = replace(_budget("densenet40", "cifar100"), method="snapshot", lr=0.2, cycles=cycles)
        yield Cell(f"densenet40-cifar100-m{cycles}", recipe, "table 3", "ensemble", percent)


def _figure_4() -> Iterator[Cell]:
    for dataset in _COLUMNS[:2]:
        for method in ("snapshot-0.1", "singlecycle"):
            settings, reads = _METHODS[method]
            for epochs in _BUDGETS_EPOCHS:
                recipe = replace(_budget("densenet40", dataset), **settings, epochs=epochs)
                yield Cell(f"densenet40-{dataset}-{method}-{epochs}-epochs", recipe, "figure 4", reads)
    single = replace(_budget("densenet40", "cifar100"), method="single")
    for seeds in _TRUE_ENSEMBLES:
        yield Cell(f"densenet40-cifar100-single-x{seeds}", single, "figure 4", "last", seeds=seeds)


def _snapshot_ensembles() -> Iterator[Cell]:
    recipe = replace(_budget("densenet40", "cifar100"), method="snapshot", lr=0.2)
    for seeds in _SNAPSHOT_ENSEMBLES:
        yield Cell(f"densenet40-cifar100-snapshot-0.2-x{seeds}", recipe, "introduction", "ensemble", seeds=seeds)
