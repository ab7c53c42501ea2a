"""--preset: a name for many flags of `snapens train`."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from ..lab.recipe.presets import PRESETS
from ..lab.recipe.settings import Settings
from ..lab.recipe.value import look_up


def with_flags_of_preset(arguments: Sequence[str]) -> list[str]:
    """Arguments with the flags of the preset that they name, before all others: of equal flags the last one counts.

    Pretrained weights belong to the network of the preset, not to another network.

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
    settings = look_up("preset", names[-1], PRESETS)()
    if any(word.partition("=")[0] == "--network" for word in rest):
        settings = replace(settings, pretrained=False)
    return [*command, *flags(settings), *rest]


def flags(settings: Settings) -> list[str]:
    """The settings that differ from their defaults, as flags."""
    found: list[str] = []
    for field in fields(settings):
        value: Any = getattr(settings, field.name)
        if value != field.default:
            found.append(f"--{field.name.replace('_', '-')}")
            found += [] if value is True else map(str, value) if isinstance(value, tuple) else [str(value)]
    return found
