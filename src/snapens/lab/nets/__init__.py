"""The networks of the lab, by name, and networks of your own. Reading the names does not import torch."""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError
from ..recipe.recipe import Recipe
from ..recipe.value import unknown

if TYPE_CHECKING:
    from torch import nn

# name -> the callable that builds this family of networks, and the settings of one of its members
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet110": ("snapens.lab.nets.resnet:cifar", {"blocks_per_stage": 18}),
    "wrn32": ("snapens.lab.nets.resnet:cifar", {"blocks_per_stage": 5, "widen": 4}),
    "wrn28x10": ("snapens.lab.nets.resnet:wide", {"depth": 28, "widen": 10}),
    "wrn28x8": ("snapens.lab.nets.resnet:wide", {"depth": 28, "widen": 8}),
    "wrn16x8": ("snapens.lab.nets.resnet:wide", {"depth": 16, "widen": 8}),
    "resnet50": ("snapens.lab.nets.resnet:imagenet", {"blocks_per_stage": (3, 4, 6, 3)}),
    "densenet40": ("snapens.lab.nets.dense.densenet:densenet", {"depth": 40, "growth": 12}),
    "densenet100": ("snapens.lab.nets.dense.densenet:densenet", {"depth": 100, "growth": 24}),
    "small": ("snapens.lab.nets.small:small", {}),
    "mlp": ("snapens.lab.nets.mlp:mlp", {"hidden": (256, 256)}),
}
_LIBRARIES = ("torchvision", "timm")
_RGB = {"channels": 3}


def build(
    name: str,
    *,
    classes: int,
    inputs: Mapping[str, int] = _RGB,
    channels: int | None = None,
    dropout: float = 0.0,
    stem_stride: int = 1,
    pretrained: bool = False,
    seed: int = 0,
    cycle: int = 0,
) -> "nn.Module":
    """Build a network that maps a batch of examples to (examples, classes) logits, with the weights of (seed, cycle).

    `name` is one of `NETWORKS`, `torchvision:NAME`, `timm:NAME`, or your own `module:callable`. The callable receives
    `classes` and `inputs` as keywords, and `dropout`, `stem_stride` and `pretrained` where they differ from their
    defaults. `inputs` describes an example: `{"channels": 3}` for images, or `channels=3` for short;
    `{"features": 20}` for rows of a table. The network is built on the CPU, or on meta if that is the default
    device; the global random generator is left unchanged.

    Examples:
        >>> network = build("densenet40", classes=10)
        >>> sum(weights.numel() for weights in network.parameters())
        1019722
        >>> build("mlp", classes=2, inputs={"features": 20})[0]
        Linear(in_features=20, out_features=256, bias=False)
    """
    import torch

    from .dropout import keyed

    factory, settings = _resolved(name, classes, dropout, stem_stride, pretrained)
    settings |= inputs if channels is None else {**inputs, "channels": channels}
    _require_accepted(name, factory, settings)
    device = "meta" if torch.empty(0).device.type == "meta" else "cpu"
    with torch.device(device), torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the generators of the GPUs
        torch.default_generator.manual_seed(_mixed(seed, cycle))
        network = factory(**settings)
        if not isinstance(network, torch.nn.Module):
            raise ArgumentError(f"network must build a torch.nn.Module, got {type(network).__name__} from {name!r}")
        return keyed(network)


def of(
    recipe: Recipe, classes: int, inputs: Mapping[str, int], cycle: int = 0, *, pretrained: bool = True
) -> "nn.Module":
    """Build the network of a recipe, with the weights at the beginning of one of its cycles.

    With `pretrained=False` no pretrained weights are downloaded: a snapshot replaces them.
    """
    network = replace(recipe.network, pretrained=recipe.network.pretrained and pretrained)
    return build(**vars(network), classes=classes, inputs=inputs, seed=recipe.seed, cycle=cycle)


def is_own(name: str) -> bool:
    """Whether a name is module:callable, which is code of a user.

    Examples:
        >>> is_own("mynets:tiny"), is_own("timm:resnet50"), is_own("wrn32")
        (True, False, False)
    """
    library, colon, _ = name.partition(":")
    return bool(colon) and library not in _LIBRARIES


def require(
    name: str,
    *,
    dropout: float = 0.0,
    stem_stride: int = 1,
    pretrained: bool = False,
    inputs: Mapping[str, int] | None = None,
) -> None:
    """Reject an unknown network, or settings or inputs that it does not accept, without building it.

    `inputs` are those of `build`; None: the data are not known yet.
    """
    factory, settings = _resolved(name, 2, dropout, stem_stride, pretrained)
    _require_accepted(name, factory, {**settings, **(inputs or {})}, partly=inputs is None)
    library, _, inner = name.partition(":")
    if library in _LIBRARIES:
        from . import zoo

        zoo.require(library, inner)


def accelerate(network: "nn.Module") -> bool:
    """Switch on the GPU kernels of a network, and return whether it has any; only DenseNet has.

    Call this only for a network that was built by its name, and do not change its modules afterwards: the kernels do
    not look at them again. Where the kernels cannot run (docs/maintain/kernels.md lists the cases), the modules are
    used. Second derivatives need a network without kernels. A copy of the network (`copy.deepcopy`, pickle) has them
    switched off.
    """
    from .dense.densenet import DenseNet

    return type(network) is DenseNet and network.accelerate()


def blocks(network: "nn.Module") -> "list[nn.Module]":
    """The repeated blocks of a network of the lab, which are compiled one by one; empty for any other network."""
    return [module for module in network.modules() if getattr(type(module), "repeats", False)]


def _resolved(
    name: str, classes: int, dropout: float, stem_stride: int, pretrained: bool
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The callable of a network, and the keywords for it that do not depend on the inputs."""
    library, colon, inner = name.partition(":")
    if not colon and name not in NETWORKS:
        raise unknown("network", name, NETWORKS, "timm:NAME, torchvision:NAME or your own module:callable")
    path, settings = NETWORKS.get(name, (name, {}))
    if library in _LIBRARIES:
        path, settings = f"snapens.lab.nets.zoo:from_{library}", {"name": inner}
    given = {"dropout": (dropout, 0.0), "stem_stride": (stem_stride, 1), "pretrained": (pretrained, False)}
    optional = {key: value for key, (value, default) in given.items() if value != default}
    return _imported(path), {**settings, "classes": classes, **optional}


def _imported(path: str) -> Callable[..., Any]:
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module can raise anything
        raise ArgumentError(
            f"network must be module:callable that Python can import, got {path!r} ({type(error).__name__}: {error}): "
            "check the spelling and the module, or add its folder to PYTHONPATH"
        ) from error
    if not callable(factory):
        raise ArgumentError(f"network must be module:callable, got {path!r}, which is a {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]


def _require_accepted(
    name: str, factory: Callable[..., Any], settings: dict[str, Any], *, partly: bool = False
) -> None:
    """Reject keywords that a callable does not take, and, unless they are only a part, missing keywords too."""
    known: Collection[str] = ()
    try:
        signature = inspect.signature(factory)
        known = signature.parameters
        (signature.bind_partial if partly else signature.bind)(**settings)
    except (TypeError, ValueError) as error:
        _require_kind(name, known, settings)
        listed = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise ArgumentError(
            f"network {name!r} must accept the settings and the inputs, got {listed} ({error}): "
            "leave the setting at its default, or choose a network that accepts it"
        ) from error


def _require_kind(name: str, known: Collection[str], settings: Mapping[str, Any]) -> None:
    """Reject an image network for a table, and the reverse; `known` are the parameters of the network."""
    for given, other, data, takes, example in (
        ("features", "channels", "tables", "images", "mlp"),
        ("channels", "features", "images", "tables", "small"),
    ):
        if given in settings and other not in settings and other in known and given not in known:
            raise ArgumentError(
                f"network {name!r} takes {takes} ({other}), but the data are {data} ({given}): use a network for "
                f"{data}, such as --network {example}"
            )


def _mixed(seed: int, cycle: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(cycle,)).generate_state(1, np.uint64)[0])
