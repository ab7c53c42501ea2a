"""--preset: a name for many settings of `snapens train` and `snapens sweep`."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from ..lab.recipe.presets import PRESETS
from ..lab.recipe.value import look_up
from .messages import say


def with_flags_of_preset(arguments: Sequence[str]) -> list[str]:
    """Arguments of `train` with the flags of their preset before all others; the last of several equal flags counts.

    Examples:
        >>> with_flags_of_preset(["train", "--preset", "cifar10-modern", "--batch", "64"])[:5]
        ['train', '--network', 'wrn28x10', '--dataset', 'cifar10']
        >>> with_flags_of_preset(["train", "--batch", "64"])
        ['train', '--batch', '64']
    """
    command, rest = list(arguments[:1]), list(arguments[1:])
    names = [value for flag, value in pairwise(rest) if flag == "--preset"]
    names += [word.removeprefix("--preset=") for word in rest if word.startswith("--preset=")]
    if command != ["train"] or not names:
        return [*command, *rest]
    given = {word.partition("=")[0].removeprefix("--") for word in rest}
    flags: list[str] = []
    for name, value in values_of_preset(names[-1], given).items():
        words = [] if value is True else map(str, value) if isinstance(value, tuple) else [str(value)]
        flags += [f"--{name.replace('_', '-')}", *words]
    return [*command, *flags, *rest]


def values_of_preset(preset: str, given: Collection[str]) -> dict[str, Any]:
    """The settings of a preset that differ from their defaults; `given` are the names of those that the user sets."""
    make = look_up("preset", preset, PRESETS)
    settings = make()
    if settings.pretrained and "network" in given and "pretrained" not in given:  # its weights are not for this network
        settings = make(pretrained=False)
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {field.name: values[field.name] for field in fields(settings) if values[field.name] != field.default}


def note_random_weights(preset: str | None, networks: Collection[str]) -> None:
    """Print that a preset for pretrained weights starts from random ones, because no package that has some exists."""
    if preset != "folder-modern":
        return
    settings = PRESETS[preset]()
    if not settings.pretrained and settings.network in networks:
        say(
            f"timm and torchvision are not installed: {settings.network} is trained from random weights; "
            "pip install timm to start from pretrained ones"
        )
