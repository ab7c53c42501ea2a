"""The results of `bench/quality.py`, for our own pages: the quality of different ways to use the epochs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from snapens.errors import ArgumentError
from snapens.lab.paper import cells as paper
from snapens.lab.recipe.recipe import Recipe

from . import labels


@dataclass(frozen=True)
class Predictor:
    """One way to predict with the snapshots of a run."""

    values: dict[str, float]

    @property
    def percent(self) -> float:
        """The test error."""
        return 100 * self.values["error"]

    @property
    def error(self) -> str:
        """The test error in percent."""
        return f"{self.percent:.2f}"

    @property
    def held_out(self) -> str:
        """The error on the held-out images in percent."""
        return f"{100 * self.values['held_out_error']:.2f}"


@dataclass(frozen=True)
class Moment:
    """The end of a cycle: a snapshot, and all snapshots so far."""

    seconds: float
    """Since the start of training; for several runs, as if they were trained one after another."""
    error: float
    """The test error of the snapshot alone, a fraction."""
    error_so_far: float
    """The test error of all snapshots so far together."""


@dataclass(frozen=True)
class Quality:
    """The results of one run, or of several runs with different seeds whose members are pooled."""

    content: dict[str, Any]

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run, or of the first run."""
        return Recipe.of(self.content["recipe"])

    def __getitem__(self, predictor: str) -> Predictor:
        return Predictor(self.content["predictors"][predictor])

    def __contains__(self, predictor: str) -> bool:
        return predictor in self.content["predictors"]

    @property
    def remark(self) -> str:
        """How the code that trained the run differed from a later version with the same recipe; empty if it did not."""
        return str(self.content.get("remark", ""))

    @property
    def seedless(self) -> Recipe:
        """The recipe with seed 0, which runs with several seeds share."""
        return replace(self.recipe, seed=0)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(self.content.get("seeds", [self.recipe.seed]))

    @property
    def pooled(self) -> bool:
        """Whether the members of several runs are pooled."""
        return len(self.seeds) > 1

    @property
    def members(self) -> int:
        """The number of snapshots."""
        return len(self.content["members"])

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.recipe.dataset.name

    @property
    def epochs(self) -> int:
        """The budget: the epochs of all runs together."""
        return self.recipe.budget.epochs * len(self.seeds)

    @property
    def images(self) -> int:
        """The number of images that the run was trained on."""
        return paper.images(self.recipe)

    @property
    def minutes(self) -> float:
        """The training time."""
        return float(self.content["training"]["seconds"]) / 60

    @property
    def images_per_second(self) -> float:
        """The mean training speed, evaluations of the snapshots included."""
        return self.epochs * self.images / (60 * self.minutes)

    @property
    def device(self) -> str:
        """The hardware."""
        return str(self.content["training"]["device"])

    @property
    def way(self) -> str:
        """How the run uses its epochs: `cosine`, `cycles` or `fge`."""
        return labels.way(self.recipe)

    @property
    def averaged(self) -> bool:
        """Whether the snapshots are averages of the weights (EMA)."""
        return self.recipe.averaging is not None

    @property
    def transforms(self) -> tuple[str, ...]:
        """The kinds of the transforms; empty if they are the default of the data set."""
        return tuple(str(one.kind) for one in self.recipe.transforms or ())

    @property
    def changes(self) -> tuple[str, ...]:
        """The differences from the preset, in words, except for an EMA."""
        return labels.changes(self.recipe)

    @property
    def words(self) -> str:
        """The label of the run."""
        runs = f"{len(self.seeds)} independent runs of {self.recipe.budget.epochs} epochs: " if self.pooled else ""
        return runs + labels.words(self.recipe) + (f", {self.remark}" if self.remark else "")

    @property
    def predictors(self) -> dict[str, str]:
        """The predictors that a table shows, and their labels; the label of the run is the first."""
        if self.way == "cosine" and not self.pooled:
            return self._of_one_network
        found = {"all snapshots": self.words}
        if self.recipe.dataset.held_out:
            found["fitted"] = "… with temperature and early exit, fitted on held-out images"
        else:
            found["fitted"] = "… with temperature and early exit, fitted on held-out images of another run"
        found["last snapshot"] = "… the last snapshot alone" + (", of one run" if self.pooled else "")
        if self.way == "fge":
            found["weight average"] = "… the average of the snapshots' weights (SWA)"
        found["without averaging"] = "… the last weights, without averaging"
        return {name: label for name, label in found.items() if name in self}

    @property
    def history(self) -> list[Moment]:
        """The end of each cycle; empty if this was not recorded."""
        return [Moment(**moment) for moment in self.content.get("history", [])]

    def seconds_below(self, percent: float) -> float | None:
        """The time at which the error of all snapshots so far is lower than another error; None if it never is."""
        return next((moment.seconds for moment in self.history if 100 * moment.error_so_far < percent), None)

    @property
    def _of_one_network(self) -> dict[str, str]:
        if "without averaging" not in self:
            return {"last snapshot": self.words}
        plain = labels.words(replace(self.recipe, averaging=None))
        return {"without averaging": plain, "last snapshot": "… its exponential moving average (EMA)"}


@dataclass(frozen=True)
class Qualities:
    """Several runs, shorter budgets first; within a budget, the lowest error of all snapshots first."""

    runs: tuple[Quality, ...]

    def __iter__(self) -> Iterator[Quality]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def among(self, **properties: object) -> "Qualities":
        """The runs with these properties of `Quality`, such as `way="cosine", epochs=60`."""
        fits = [all(getattr(run, name) == value for name, value in properties.items()) for run in self]
        return Qualities(tuple(run for run, fit in zip(self, fits, strict=True) if fit))

    def one(self, **properties: object) -> Quality:
        """The only run with these properties."""
        found = self.among(**properties)
        if len(found) != 1:
            listed = "; ".join(f"{run.words}, {run.epochs} epochs, seeds {run.seeds}" for run in found)
            raise ArgumentError(
                f"properties must be those of exactly one run, got {properties}, which {len(found)} runs have"
                + (f" ({listed}): add a property" if listed else ": check them, or record the run")
            )
        return found.runs[0]

    def repetitions(self) -> list["Qualities"]:
        """The runs in groups that differ only in their seeds; the lowest mean error of all snapshots first."""
        groups: dict[tuple[Recipe, int, str], list[Quality]] = {}
        for run in self:
            groups.setdefault((run.seedless, len(run.seeds), run.remark), []).append(run)
        found = [Qualities(tuple(sorted(group, key=lambda run: run.seeds))) for group in groups.values()]
        return sorted(found, key=lambda group: mean(group.values("all snapshots", "error")))

    def values(self, predictor: str, name: str) -> list[float]:
        """One number of a predictor, such as `nll`, for each run."""
        return [run[predictor].values[name] for run in self]

    def of(self, recipe: Recipe) -> "Qualities":
        """The runs of a recipe, lowest seed first; those with a remark only if there are no others."""
        every = self.among(seedless=replace(recipe, seed=0), pooled=False)
        found = every.among(remark="") or every
        return Qualities(tuple(sorted(found, key=lambda run: run.seeds)))


def read(folder: Path) -> Qualities:
    """All runs in a folder."""
    found = [Quality(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return Qualities(tuple(sorted(found, key=lambda run: (run.epochs, run["all snapshots"].percent))))
