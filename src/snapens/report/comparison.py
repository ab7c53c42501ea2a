"""Several runs side by side: one row a method, with mean and spread over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..lab.recipe.recipe import Recipe
from .account import Account


@dataclass(frozen=True)
class Spread:
    """The mean over runs, and their standard deviation (of a sample; None for one run)."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value a run."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Method:
    """Runs that differ in their seed alone."""

    name: str
    runs: int
    last: Spread
    """Errors of the last snapshots, fractions."""
    ensemble: Spread
    """Errors of all snapshots together."""
    nll: Spread
    ece: Spread
    seconds: Spread | None
    """None where a run has not finished."""


def compare(accounts: Sequence[Account]) -> list[Method]:
    """Group finished runs by all of their recipe but the seed, in the order in which they come."""
    groups: dict[Recipe, list[Account]] = {}
    for account in accounts:
        if account.complete:
            groups.setdefault(replace(account.recipe, seed=0), []).append(account)
    names = _names(list(groups))
    return [_method(name, group) for name, group in zip(names, groups.values(), strict=True)]


def _method(name: str, group: list[Account]) -> Method:
    def spread(value: Callable[[Account], float]) -> Spread:
        return Spread.of([value(account) for account in group])

    seconds = [account.trace.seconds for account in group if account.trace.seconds is not None]
    return Method(
        name,
        len(group),
        spread(lambda account: account.single.error),
        spread(lambda account: account.ensemble.error),
        spread(lambda account: account.ensemble.nll),
        spread(lambda account: account.ensemble.ece),
        Spread.of(seconds) if len(seconds) == len(group) else None,
    )


def _names(recipes: list[Recipe]) -> list[str]:
    """The method of each, and the fields in which the recipes differ."""
    differing = [
        field.name
        for field in fields(Recipe)
        if field.name not in ("method", "seed") and len({getattr(recipe, field.name) for recipe in recipes}) > 1
    ]
    return [", ".join([recipe.method, *(_said(recipe, name) for name in differing)]) for recipe in recipes]


def _said(recipe: Recipe, name: str) -> str:
    value = getattr(recipe, name)
    shown = " ".join(value) or "none" if isinstance(value, tuple) else f"{value:g}" if name == "lr" else str(value)
    return f"{name.replace('_', ' ')} {shown}"
