"""Several runs side by side: one row per method, with mean and standard deviation over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..lab.recipe.recipe import Recipe
from .account import Account
from .spread import Spread


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
    """Empty where a run has not finished."""


def compare(accounts: Sequence[Account]) -> list[Method]:
    """Group finished runs that differ only in their seed, in the order in which they are given."""
    groups: dict[Recipe, list[Account]] = {}
    for account in accounts:
        if account.complete:
            groups.setdefault(replace(account.recipe, seed=0), []).append(account)
    names = _names(list(groups))
    return [_method(name, group) for name, group in zip(names, groups.values(), strict=True)]


def _method(name: str, group: list[Account]) -> Method:
    seconds = [account.trace.seconds for account in group if account.trace.seconds is not None]
    return Method(
        name,
        len(group),
        Spread(tuple(account.single.error for account in group)),
        Spread(tuple(account.ensemble.error for account in group)),
        Spread(tuple(account.ensemble.nll for account in group)),
        Spread(tuple(account.ensemble.ece for account in group)),
        Spread(tuple(seconds) if len(seconds) == len(group) else ()),
    )


def _names(recipes: list[Recipe]) -> list[str]:
    """The method of each recipe, and the settings in which the recipes differ."""
    flat = [recipe.flat() for recipe in recipes]
    every = dict.fromkeys(name for one in flat for name in one if name not in ("method.kind", "seed"))
    differing = [name for name in every if any(one.get(name) != flat[0].get(name) for one in flat)]
    return [
        ", ".join([one["method.kind"], *(f"{label(name)} {shown(one.get(name))}" for name in differing)])
        for one in flat
    ]


def label(setting: str) -> str:
    """The name of a setting in print, without the part of the recipe that it belongs to.

    Examples:
        >>> label("budget.warmup_epochs"), label("network.name"), label("seed")
        ('warmup epochs', 'network', 'seed')
    """
    part, _, name = setting.rpartition(".")
    return (part if name in ("name", "kind") else name).replace("_", " ")


def shown(value: Any) -> str:
    """The value of a setting as text; an item of several kinds by its kind."""
    if isinstance(value, tuple):
        return " ".join(getattr(item, "kind", None) or str(item) for item in value) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
