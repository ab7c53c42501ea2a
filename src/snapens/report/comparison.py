"""Several runs side by side: one row per method, with mean and standard deviation over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..lab.recipe.recipe import Recipe
from ..lab.recipe.value import Value
from .account import Account
from .spread import Spread

_COUNTS = {"method.cycles", "budget.epochs", "budget.warmup_epochs"}


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seed."""

    name: str
    runs: int
    last: Spread
    """The errors of the last snapshots, as fractions."""
    ensemble: Spread
    """The errors of all snapshots together."""
    nll: Spread
    ece: Spread
    seconds: Spread
    """The training times; empty if one of them is unknown."""


def compare(accounts: Sequence[Account]) -> list[Method]:
    """Group finished runs that differ only in their seed, in the order in which they are given.

    Runs without a recipe belong to no group.
    """
    groups: dict[Recipe, list[Account]] = {}
    for account in accounts:
        if account.recipe and not account.missing:
            groups.setdefault(replace(account.recipe, seed=0), []).append(account)
    names = _names(list(groups))
    return [_method(name, group) for name, group in zip(names, groups.values(), strict=True)]


def _method(name: str, group: list[Account]) -> Method:
    seconds = [account.trace.seconds for account in group if account.trace.seconds is not None]
    last = Spread(tuple(account.single.error for account in group))
    error, nll, ece = (
        Spread(tuple(getattr(account.ensemble, metric) for account in group)) for metric in ("error", "nll", "ece")
    )
    return Method(name, len(group), last, error, nll, ece, Spread(tuple(seconds) if len(seconds) == len(group) else ()))


def _names(recipes: list[Recipe]) -> list[str]:
    """The method of each recipe, and the settings in which the recipes differ, where a recipe has them.

    Recipes with parts of different kinds, such as two optimizers, are not distinguished by the defaults of these kinds.
    """
    flat = [recipe.flat() for recipe in recipes]
    every = dict.fromkeys(name for one in flat for name in one if name not in ("method.kind", "seed"))
    differing = [
        name for name in every if len({one.get(name) for one in flat if name in one or not _is_nested(name)}) > 1
    ]
    named = []
    for recipe, one in zip(recipes, flat, strict=True):
        settings = [name for name in differing if one.get(name) and not _is_implied(name, recipe, differing)]
        named.append(", ".join([one["method.kind"], *(_named(name, one[name]) for name in settings)]))
    return named


def _is_nested(setting: str) -> bool:
    """Whether a setting belongs to a teacher, which is named only where the teachers of several recipes differ."""
    return setting.count(".") > 1


def _is_implied(setting: str, recipe: Recipe, differing: list[str]) -> bool:
    """Whether a setting is a default of a kind that is named already."""
    part, _, name = setting.rpartition(".")
    if f"{part}.kind" not in differing or setting in {*_COUNTS, "optimizer.lr"} or name == "kind":
        return False
    return name not in getattr(recipe, part).written()


def _named(setting: str, value: Any) -> str:
    """A setting with its value: `lr 0.1`; a kind and a number of things need no more words: `adamw`, `40 epochs`."""
    words, text = label(setting), shown(value)
    if setting.endswith((".kind", ".name")):
        return text
    return f"{text} {words}" if setting in _COUNTS else f"{words} {text}"


def label(setting: str) -> str:
    """The name of a setting in print, without the part of the recipe that it belongs to.

    Examples:
        >>> label("budget.warmup_epochs"), label("network.name"), label("objective.teacher.run"), label("seed")
        ('warmup epochs', 'network', 'teacher run', 'seed')
    """
    part, _, name = setting.partition(".")
    return (part if name in ("name", "kind", "") else name).replace("_", " ").replace(".", " ")


def shown(value: Any) -> str:
    """The value of a setting as text; an item of several kinds by its kind and its settings.

    Examples:
        >>> from snapens.lab.recipe import Cutout, Mirror
        >>> shown((Mirror(), Cutout(4))), shown(("warm", "fresh")), shown(0.10)
        ('mirror, cutout 4', 'warm fresh', '0.1')
    """
    if isinstance(value, Value):
        return " ".join(shown(setting) for setting in value.flat().values())
    if isinstance(value, tuple):
        return (", " if any(isinstance(item, Value) for item in value) else " ").join(map(shown, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
