"""What networks, data sets and methods are called in print, as in the paper."""

NETWORKS = {
    "resnet110": "ResNet-110",
    "wrn32": "Wide-ResNet-32",
    "densenet40": "DenseNet-40",
    "densenet100": "DenseNet-100",
    "resnet50": "ResNet-50",
}
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "tinyimagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
}
SHORT = {"CIFAR-10": "C10", "CIFAR-100": "C100"}
"""At the head of a column."""
METHODS = {
    "single": "Single model",
    "dropout": "Dropout",
    "nocycle": "NoCycle Snapshot Ensemble",
    "singlecycle": "SingleCycle Ensembles",
    "snapshot-0.1": "Snapshot Ensemble (α₀ = 0.1)",
    "snapshot-0.2": "Snapshot Ensemble (α₀ = 0.2)",
}


def network(cell: str) -> str:
    """That of a cell, by the cell's name."""
    return NETWORKS[cell.split("-")[0]]


def dataset(cell: str) -> str:
    """That of a cell, by the cell's name.

    Examples:
        >>> dataset("wrn32-svhn-snapshot-0.1")
        'SVHN'
    """
    return DATASETS[cell.split("-")[1]]


def method(cell: str) -> str:
    """That of a cell, by the cell's name; `m8` is a Snapshot Ensemble of eight cycles.

    Examples:
        >>> method("densenet40-cifar100-m8")
        'Snapshot Ensemble (M = 8)'
    """
    name = cell.split("-", 2)[2]
    return METHODS[name] if name in METHODS else f"Snapshot Ensemble (M = {name.removeprefix('m')})"
