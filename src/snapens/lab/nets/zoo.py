"""The networks of torchvision and timm, if these are installed."""

import importlib
from typing import Any

import torch
from torch import nn

from ...errors import ArgumentError
from ..recipe.value import unknown


def from_torchvision(*, name: str, classes: int, channels: int = 3) -> nn.Module:
    """Build a classifier of torchvision, with fresh weights."""
    models = _library("torchvision", name).models
    if name not in models.list_models(module=models):
        raise unknown("torchvision network", name, models.list_models(module=models))
    if channels != 3:
        raise ArgumentError(f"channels must be 3 for a torchvision network, got {channels}: use timm:NAME")
    return models.get_model(name, weights=None, num_classes=classes)  # type: ignore[no-any-return]


def from_timm(*, name: str, classes: int, channels: int = 3, dropout: float = 0.0) -> nn.Module:
    """Build a network of timm, with fresh weights."""
    timm = _library("timm", name)
    if name not in timm.list_models():
        raise unknown("timm network", name, timm.list_models())
    return timm.create_model(  # type: ignore[no-any-return]
        name, pretrained=False, num_classes=classes, in_chans=channels, drop_rate=dropout
    )


def _library(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises RuntimeError
        raise ArgumentError(
            f"network '{library}:{name}' needs {library}, which cannot be imported ({error}): "
            f"install a version of {library} that supports torch {torch.__version__}"
        ) from error
