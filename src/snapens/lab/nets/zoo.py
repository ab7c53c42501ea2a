"""The networks of torchvision and timm, if these are installed."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...errors import ArgumentError
from ..recipe.value import unknown


def from_torchvision(*, name: str, classes: int, channels: int = 3, pretrained: bool = False) -> nn.Module:
    """Build a classifier of torchvision, with fresh weights, or with pretrained ones and a new last layer."""
    models = require("torchvision", name).models
    if channels != 3:
        raise ArgumentError(f"channels must be 3 for a torchvision network, got {channels}: use timm:NAME")
    if not pretrained:
        return models.get_model(name, weights=None, num_classes=classes)  # type: ignore[no-any-return]
    network = _downloaded(f"torchvision:{name}", lambda: models.get_model(name, weights="DEFAULT"))
    return _with_classes(network, classes, name)


def from_timm(
    *, name: str, classes: int, channels: int = 3, dropout: float = 0.0, pretrained: bool = False
) -> nn.Module:
    """Build a network of timm, with fresh weights, or with pretrained ones and a new last layer."""
    timm = require("timm", name)

    def create() -> nn.Module:
        settings = {"num_classes": classes, "in_chans": channels, "drop_rate": dropout}
        return timm.create_model(name, pretrained=pretrained, **settings)  # type: ignore[no-any-return]

    return _downloaded(f"timm:{name}", create) if pretrained else create()


def require(library: str, name: str) -> Any:
    """The package, which must be installed and have a network of this name."""
    found = _imported(library, name)
    known = found.models.list_models(module=found.models) if library == "torchvision" else found.list_models()
    base = name.partition(".")[0] if library == "timm" else name  # a dot separates the name of pretrained weights
    if base not in known:
        raise unknown(f"{library} network", name, known)
    return found


def _downloaded(name: str, create: Callable[[], nn.Module]) -> nn.Module:
    try:
        return create()
    except (OSError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"network {name!r} must have pretrained weights that can be downloaded or were before, got {error}: "
            "check the connection, or train from fresh weights without --pretrained"
        ) from error


def _with_classes(network: nn.Module, classes: int, name: str) -> nn.Module:
    """Replace the last linear layer, with which almost every classifier of torchvision ends."""
    linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ArgumentError(
            f"network 'torchvision:{name}' must end with a linear layer to start from pretrained weights, got none: "
            "choose another network, or timm:NAME"
        )
    parent, _, last = linear[-1].rpartition(".")
    features = network.get_submodule(linear[-1]).in_features
    setattr(network.get_submodule(parent), last, nn.Linear(features, classes))  # type: ignore[arg-type]
    return network


def _imported(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises RuntimeError
        raise ArgumentError(
            f"network '{library}:{name}' needs {library}, which cannot be imported ({error}): "
            f"install a version that supports torch {torch.__version__}, with pip install {library}"
        ) from error
