"""The networks of the lab by name, and your own; the names load without torch."""

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError
from ..recipe.recipe import Recipe, unknown

if TYPE_CHECKING:
    from torch import nn

# name -> the callable of its family, and what sets it apart within the family
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet110": ("snapens.lab.nets.resnet:cifar", {"blocks_per_stage": 18}),
    "wrn32": ("snapens.lab.nets.resnet:cifar", {"blocks_per_stage": 5, "widen": 4}),
    "resnet50": ("snapens.lab.nets.resnet:imagenet", {"blocks_per_stage": (3, 4, 6, 3)}),
    "densenet40": ("snapens.lab.nets.dense.densenet:densenet", {"depth": 40, "growth": 12}),
    "densenet100": ("snapens.lab.nets.dense.densenet:densenet", {"depth": 100, "growth": 24}),
    "small": ("snapens.lab.nets.small:small", {}),
}


def build(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    dropout: float = 0.0,
    stem_stride: int = 1,
    seed: int = 0,
    cycle: int = 0,
) -> "nn.Module":
    """A network with the fresh weights of (seed, cycle): (images, channels, height, width) -> (images, classes) logits.

    `name` is one of `NETWORKS`, `torchvision:NAME`, `timm:NAME`, or your own `module:callable`, which is called with
    `classes` and `channels`, and with `dropout` and `stem_stride` where these are asked for.
    It is built on the CPU, whatever the default device (only meta is followed), and leaves the global generator alone.

    Examples:
        >>> network = build("densenet40", classes=10)
        >>> sum(weights.numel() for weights in network.parameters())
        1019722
    """
    import torch

    from .dropout import keyed

    factory, settings = _resolved(name, classes, channels, dropout, stem_stride)
    device = "meta" if torch.get_default_device().type == "meta" else "cpu"
    with torch.device(device), torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would reseed the GPUs' generators too
        torch.default_generator.manual_seed(_mixed(seed, cycle))
        network = factory(**settings)
        if not isinstance(network, torch.nn.Module):
            raise ArgumentError(f"network must build a torch.nn.Module, got {type(network).__name__} from {name!r}")
        return keyed(network)


def of(recipe: Recipe, classes: int, channels: int, cycle: int = 0) -> "nn.Module":
    """The network of a recipe, with the fresh weights of one of its cycles."""
    return build(
        recipe.network,
        classes=classes,
        channels=channels,
        dropout=recipe.dropout,
        stem_stride=recipe.stem_stride,
        seed=recipe.seed,
        cycle=cycle,
    )


def require(name: str, *, dropout: float = 0.0, stem_stride: int = 1) -> None:
    """Make sure that there is such a network, and that it takes these settings, without building it."""
    _resolved(name, 2, 3, dropout, stem_stride)


def blocks(network: "nn.Module") -> "list[nn.Module]":
    """The blocks that a network of ours repeats, each worth compiling by itself; none for any other network."""
    return [module for module in network.modules() if getattr(type(module), "repeats", False)]


def _resolved(
    name: str, classes: int, channels: int, dropout: float, stem_stride: int
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable that a name means and all that it is to be called with."""
    factory, settings = _factory(name)
    settings = {**settings, "classes": classes, "channels": channels}
    if dropout:
        settings["dropout"] = dropout
    if stem_stride != 1:
        settings["stem_stride"] = stem_stride
    _require_accepted(name, factory, settings)
    return factory, settings


def _factory(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable that a network's name means, and the settings that go with the name."""
    if name in NETWORKS:
        path, settings = NETWORKS[name]
        return _imported(path), settings
    library, colon, inner = name.partition(":")
    if not colon:
        raise unknown("network", name, NETWORKS)
    if library in ("torchvision", "timm"):
        return _imported(f"snapens.lab.nets.zoo:from_{library}"), {"name": inner}
    return _imported(name), {}


def _imported(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's own can fail in any way
        raise ArgumentError(
            f"network must be module:callable that Python can import, got {path!r} ({type(error).__name__}: {error}): "
            "check the spelling and the module, or put its folder on PYTHONPATH"
        ) from error
    if not callable(factory):
        raise ArgumentError(f"network must be module:callable, got {path!r}, which is a {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]


def _require_accepted(name: str, factory: Callable[..., Any], settings: dict[str, Any]) -> None:
    try:
        inspect.signature(factory).bind(**settings)
    except (TypeError, ValueError) as error:
        asked = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise ArgumentError(
            f"network {name!r} must accept what is asked of it, got {asked} ({error}): "
            "leave that setting at its default, or take a network that has it"
        ) from error


def _mixed(seed: int, cycle: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(cycle,)).generate_state(1, np.uint64)[0])
