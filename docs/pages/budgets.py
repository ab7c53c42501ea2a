"""The results of `bench/budgets.py`, for our own pages: the test error of each way to spend a budget."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from snapens.lab.recipe.averaging import EMA
from snapens.lab.recipe.recipe import Recipe
from snapens.report import style
from snapens.report.formats import markdown_row
from snapens.report.numbers import decimal, signed

_WAYS = {"snapshot": "Snapshot", "singlecycle": "SingleCycle", "grow": "Grow"}
_DRAWN = {
    "standard schedule": (style.BASELINE, "-", "x"),
    "one cosine": (style.INK, "-", "."),
    "Snapshot, M = 3": (style.ENSEMBLE, "--", "o"),
    "Snapshot, M = 5": (style.ENSEMBLE, "-", "o"),
    "SingleCycle, M = 3": (style.SINGLE, "--", "s"),
    "SingleCycle, M = 5": (style.SINGLE, "-", "s"),
}
"""The ways that the chart shows: colour, line style, marker."""
_CUT = 1.7  # times the lowest error; the errors of cycles that are much too short would hide all differences


@dataclass(frozen=True)
class Spending:
    """The results of one recipe, one value per seed."""

    recipe: Recipe
    seeds: tuple[int, ...]
    percent: tuple[float, ...]
    """Test errors of all snapshots together, or of one model."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Spending":
        """From an entry of the file."""
        recipe = Recipe.of(entry["recipe"])
        members = "last" if is_one_model(recipe) else "all"
        return cls(recipe, tuple(entry["seeds"]), tuple(entry[f"test {members}"]["error_percent"]))

    @property
    def way(self) -> str:
        """How the recipe spends its epochs."""
        method = self.recipe.method
        if method.kind == "single":
            return "standard schedule"
        if is_one_model(self.recipe):
            return "one cosine" + (f", EMA {self.decay:g}" if self.decay else "")
        return f"{_WAYS[str(method.kind)]}, M = {method.cycles}"

    @property
    def decay(self) -> float:
        """The decay of the average of the weights (EMA), 0 without one."""
        averaging = self.recipe.averaging
        return averaging.decay if isinstance(averaging, EMA) else 0.0

    @property
    def epochs(self) -> int:
        """The budget."""
        return self.recipe.budget.epochs

    @property
    def mean(self) -> float:
        """The mean test error in percent, not rounded."""
        return fmean(self.percent)

    @property
    def error(self) -> str:
        """The mean test error in percent."""
        return decimal(self.mean, 2)

    def __sub__(self, other: "Spending") -> str:
        """The difference of the test errors in points, seed by seed, with its standard deviation."""
        found = [mine - theirs for mine, theirs in zip(self.percent, other.percent, strict=True)]
        return f"{signed(fmean(found))} ± {stdev(found):.2f}"


@dataclass(frozen=True)
class Study:
    """All recipes of the file."""

    origin: dict[str, str]
    """The commit, the hardware and the version of torch."""
    spendings: tuple[Spending, ...]

    @property
    def budgets(self) -> list[int]:
        """The numbers of epochs, ascending."""
        return sorted({one.epochs for one in self.spendings})

    @property
    def ways(self) -> list[str]:
        """The ways to spend a budget: one model first, then more and more members."""
        return list(dict.fromkeys(one.way for one in sorted(self.spendings, key=_order)))

    def of(self, way: str, epochs: int) -> Spending:
        """The results of a way and a budget."""
        [found] = (one for one in self.spendings if (one.way, one.epochs) == (way, epochs))
        return found

    def best(self, epochs: int) -> str:
        """The way with the lowest error."""
        return min(self.ways, key=lambda way: self.of(way, epochs).mean)

    @property
    def table(self) -> str:
        """The errors of all ways and budgets in Markdown; the lowest one of each budget is bold."""
        rows = [["", *(f"{epochs} epochs" for epochs in self.budgets)], ["---", *["---:"] * len(self.budgets)]]
        for way in self.ways:
            found = [self.of(way, epochs) for epochs in self.budgets]
            rows.append([way, *(_error(one, self.best(one.epochs) == way) for one in found)])
        return "\n".join(map(markdown_row, rows))

    def chart(self) -> Any:
        """The mean test error by budget, as a matplotlib Figure."""
        with style.drawing():
            figure = style.figure(480, 330)
            axes = figure.subplots()
            for way, (colour, line, marker) in _DRAWN.items():
                errors = [self.of(way, epochs).mean for epochs in self.budgets]
                axes.plot(self.budgets, errors, color=colour, linestyle=line, marker=marker, label=way)
            axes.set_xscale("log", base=2)
            axes.set_xticks(self.budgets, [str(epochs) for epochs in self.budgets])
            axes.minorticks_off()
            axes.set(xlabel="training budget, epochs", ylabel="test error, %")
            lowest = min(one.mean for one in self.spendings)
            axes.set_ylim(lowest - 1, _CUT * lowest)
            axes.legend(loc="upper right", handlelength=2.4)
        return figure


def is_one_model(recipe: Recipe) -> bool:
    """Whether a recipe is evaluated as one model: one cycle, or the standard schedule."""
    return recipe.method.kind == "single" or recipe.method.cycles == 1


def read(path: Path) -> Study:
    """The content of a file."""
    content = json.loads(path.read_text())
    spendings = tuple(map(Spending.of, content.pop("recipes")))
    return Study(content, spendings)


def _order(one: Spending) -> tuple[bool, int, int, float]:
    method = one.recipe.method
    return not is_one_model(one.recipe), ["single", *_WAYS].index(str(method.kind)), method.cycles, one.decay


def _error(one: Spending, best: bool) -> str:
    text = f"{one.error} ± {stdev(one.percent):.2f}"
    return f"**{text}**" if best else text
