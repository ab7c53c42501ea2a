"""The recipes of a sweep: all combinations of some settings."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from .recipe import Recipe
from .settings import Settings

_ONLY_FOR = {"pattern": ("method", "grow"), "momentum": ("optimizer", "sgd")}


def variations(values: Mapping[str, Sequence[Any]]) -> dict[Recipe, dict[str, Any]]:
    """One recipe per combination of values of `Settings`, each recipe once, with its values.

    If `method` includes grow, `pattern` applies to grow only; likewise `momentum` applies to sgd only.

    Examples:
        >>> found = variations({"method": ["single", "grow"], "pattern": [("warm", "fresh"), ("fresh",)], "seed": [7]})
        >>> [recipe.method.written() for recipe in found]
        [{'kind': 'single'}, {'kind': 'grow', 'pattern': ['warm', 'fresh']}, {'kind': 'grow'}]
    """
    found: dict[Recipe, dict[str, Any]] = {}
    for chosen in product(*values.values()):
        settings = dict(zip(values, chosen, strict=True))
        for name, (kind, needed) in _ONLY_FOR.items():
            if needed in values.get(kind, ()) and settings[kind] != needed:
                settings.pop(name, None)
        found[Settings(**settings).recipe()] = settings
    return found
