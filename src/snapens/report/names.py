"""The names of networks, data sets and methods in print, as in the paper."""

NETWORKS = {
    "resnet110": "ResNet-110",
    "wrn32": "Wide-ResNet-32",
    "wrn28x10": "WRN-28-10",
    "wrn28x8": "WRN-28-8",
    "wrn16x8": "WRN-16-8",
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
SHORT = {"cifar10": "C10", "cifar100": "C100"}
"""For the head of a column."""
METHODS = {
    "single": "Single model",
    "dropout": "Dropout",
    "nocycle": "NoCycle Snapshot Ensemble",
    "singlecycle": "SingleCycle Ensembles",
    "snapshot-0.1": "Snapshot Ensemble (α₀ = 0.1)",
    "snapshot-0.2": "Snapshot Ensemble (α₀ = 0.2)",
    **{f"m{cycles}": f"Snapshot Ensemble (M = {cycles})" for cycles in (2, 3, 4, 6, 8, 10)},
}
