"""Presets: functions that return complete recipes for a purpose, or settings that the command line can override."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from .methods import Single, Snapshot
from .optimizers import SGD
from .recipe import Budget, Dataset, Network, Recipe
from .settings import Settings


def demo(seed: int) -> tuple[Recipe, Recipe]:
    """A baseline and a Snapshot Ensemble with the same budget, small enough for two CPU cores.

    The rate was chosen on held-out images; docs/start/demo.md has the results of other seeds and budgets.
    """
    snapshot = Recipe(
        Network("small"), Dataset("glyphs"), Snapshot(cycles=5), Budget(epochs=40), SGD(lr=0.8), seed=seed
    )
    return replace(snapshot, method=Single(cycles=5)), snapshot


def cifar100_modern() -> Settings:
    """A wide network with strong augmentation, for one GPU; docs/results.md has errors of runs with other budgets."""
    return Settings(
        network="wrn28x10",
        dataset="cifar100",
        epochs=150,
        cycles=3,
        batch=256,
        lr=0.2,
        weight_decay=5e-4,
        decays="weights",
        warmup_epochs=1,
        transforms=("mirror", "trivialaugment", "cutout=16"),
    )


def cifar10_modern() -> Settings:
    """The same for CIFAR-10."""
    return replace(cifar100_modern(), dataset="cifar10")


def folder_modern(pretrained: bool = True) -> Settings:
    """For your own photos: a ResNet-50 with pretrained weights of timm or torchvision; without these, fresh weights.

    The settings are customary ones, not measured ones.
    """
    common = Settings(
        dataset="folder", cycles=3, decays="weights", warmup_epochs=1, transforms=("mirror", "trivialaugment")
    )
    for library in ("timm", "torchvision"):
        if pretrained and find_spec(library) is not None:
            return replace(common, network=f"{library}:resnet50", pretrained=True, epochs=15, lr=0.02)
    return replace(common, network="resnet50", epochs=90, lr=0.1)


PRESETS: dict[str, Callable[..., Settings]] = {
    "cifar10-modern": cifar10_modern,
    "cifar100-modern": cifar100_modern,
    "folder-modern": folder_modern,
}
