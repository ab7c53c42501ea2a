"""The results of `bench/quality.py` as text, for our own pages: the quality of different ways to use the epochs."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..lab.paper import cells as paper
from ..lab.recipe.recipe import Recipe
from . import formats
from .numbers import decimal

HEAD = (
    "how the epochs are used",
    "epochs",
    "minutes",
    "networks per image",
    "test error, %",
    "NLL",
    "ECE, %",
    "calibrated log-likelihood",
    "AUROC",
)


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

    @property
    def members(self) -> float:
        """The number of networks that are evaluated per image."""
        return self.values["mean_members"]

    def row(self) -> list[str]:
        """The line of a table, without its first columns."""
        found = self.values
        return [
            f"{self.members:.3g}",
            self.error,
            f"{found['nll']:.3f}",
            f"{100 * found['ece']:.1f}",
            decimal(found["calibrated_log_likelihood"], 3),
            f"{found['outside_auroc']:.3f}",
        ]


@dataclass(frozen=True)
class Quality:
    """The results of one run."""

    content: dict[str, Any]

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return Recipe.of(self.content["recipe"])

    def __getitem__(self, predictor: str) -> Predictor:
        return Predictor(self.content["predictors"][predictor])

    @property
    def minutes(self) -> str:
        """The training time."""
        return f"{self.content['training']['seconds'] / 60:.1f}"

    @property
    def images_per_second(self) -> float:
        """The mean training speed, evaluations of the snapshots included."""
        return self.recipe.budget.epochs * paper.images(self.recipe) / float(self.content["training"]["seconds"])

    @property
    def device(self) -> str:
        """The hardware."""
        return str(self.content["training"]["device"])

    @property
    def way(self) -> str:
        """How the run uses its epochs: `cosine`, `cycles` or `fge`."""
        method = self.recipe.method
        return "cosine" if method.cycles == 1 else "fge" if method.later_peak < 1 else "cycles"

    @property
    def words(self) -> str:
        """The same in words, with the transforms if they are not those of the preset."""
        method, epochs = self.recipe.method, self.recipe.budget.epochs
        if self.way == "cosine":
            words = "one cosine"
        elif self.way == "cycles":
            words = f"Snapshot Ensemble, {method.cycles} cycles"
            words += f", the first {method.first_cycle:g} times as long" if method.first_cycle > 1 else ""
        else:
            short = (epochs - self.recipe.budget.warmup_epochs) / (method.first_cycle + method.cycles - 1)
            words = (
                f"FGE: one cosine, then {method.cycles - 1} cycles of {short:.0f} epochs "
                f"from {method.later_peak:g} of the peak"
            )
        kinds = [transform.kind for transform in self.recipe.transforms or ()]
        return words + (", CutMix instead of cutout" if "cutmix" in kinds else "")

    def rows(self) -> list[list[str]]:
        """The lines of a table."""
        if self.way == "cosine":
            labels = {"without averaging": self.words, "last snapshot": "… its exponential moving average (EMA)"}
        else:
            labels = {
                "all snapshots": self.words,
                "fitted": "… with temperature and early exit, fitted on held-out images",
                "last snapshot": "… the last snapshot alone",
            }
            if self.way == "fge":
                labels["weight average"] = "… the average of the snapshots' weights (SWA)"
        cost = [str(self.recipe.budget.epochs), self.minutes]
        return [
            [label, *cost, *self[name].row()] for name, label in labels.items() if name in self.content["predictors"]
        ]


def read(folder: Path) -> list[Quality]:
    """All runs, shorter budgets first; within a budget, the lowest error of all snapshots first."""
    found = [Quality(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda one: (one.recipe.budget.epochs, one["all snapshots"].percent))


def table(qualities: list[Quality]) -> str:
    """A Markdown table with all runs."""
    rows = [row for quality in qualities for row in quality.rows()]
    return "\n".join(map(formats.markdown_row, [list(HEAD), ["---", *["---:"] * (len(HEAD) - 1)], *rows]))
