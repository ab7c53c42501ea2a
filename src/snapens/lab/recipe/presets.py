"""Presets: functions that return complete recipes for a purpose."""

from dataclasses import replace

from .methods import Single, Snapshot
from .optimizers import SGD
from .recipe import Budget, Dataset, Network, Recipe


def demo(seed: int) -> tuple[Recipe, Recipe]:
    """A baseline and a Snapshot Ensemble with the same budget, small enough for two CPU cores.

    Their settings were chosen on seeds 0 to 4; docs/lab.md has the results of seeds 5 to 14.
    """
    snapshot = Recipe(
        Network("small"), Dataset("glyphs"), Snapshot(cycles=5), Budget(epochs=40), SGD(lr=0.2), seed=seed
    )
    return replace(snapshot, method=Single(cycles=5), optimizer=SGD(lr=0.1)), snapshot
