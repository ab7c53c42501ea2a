"""The results of `bench/finetuning.py`, for our own pages."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from snapens.lab.recipe.value import look_up
from snapens.report.formats import markdown_row
from snapens.report.numbers import signed
from snapens.report.spread import Spread

_WAYS = {
    "linear": ("the Trainer's default (linear)", 1),
    "cosine": ("one cosine", 1),
    "snapshot-3": ("Snapshot Ensemble, M = 3", 3),
    "snapshot-5": ("Snapshot Ensemble, M = 5", 5),
    "fresh-3": ("pretrained weights in each of 3 cycles", 3),
}
"""The label of each way, and its number of networks."""


@dataclass(frozen=True)
class Way:
    """The runs of one schedule with its chosen rate, one per seed."""

    label: str
    networks: int
    lr: float
    last: Spread
    """Test errors of the last snapshot, in percent."""
    error: Spread
    """Test errors of all snapshots together, in percent."""
    nll: Spread
    """The NLL of all snapshots together, with a temperature that is fitted on held-out examples."""

    def __sub__(self, other: "Way") -> str:
        """The difference of the test errors in points, seed by seed, with its standard deviation."""
        found = [mine - theirs for mine, theirs in zip(self.error.values, other.error.values, strict=True)]
        return f"{signed(fmean(found))} ± {stdev(found):.2f}"


@dataclass(frozen=True)
class Study:
    """The runs of the file."""

    ways: dict[str, Way]

    def of(self, name: str) -> Way:
        """The runs of a way, by its name in the file."""
        return look_up("way", name, self.ways)

    @property
    def table(self) -> str:
        """One row per way in Markdown; the lowest error is bold."""
        head = ["schedule", "networks", "peak rate", "last snapshot, %", "all snapshots, %", "NLL of all"]
        rows = [head, ["---", *["---:"] * 5]]
        best = min(self.ways.values(), key=lambda way: way.error.mean or 0.0)
        for way in self.ways.values():
            error = f"**{_mean(way.error)}**" if way is best else _mean(way.error)
            rows.append([way.label, str(way.networks), f"{way.lr:g}", _mean(way.last), error, _mean(way.nll, 3)])
        return "\n".join(map(markdown_row, rows))


def read(path: Path) -> Study:
    """The content of a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return Study({name: _way(name, found) for name in _WAYS if (found := [one for one in lines if one["way"] == name])})


def _way(name: str, lines: list[dict[str, Any]]) -> Way:
    """The runs of a way with the rate that has the lowest held-out error for the first seed."""
    first = [one for one in lines if one["seed"] == min(one["seed"] for one in lines)]
    lr = min(first, key=lambda one: float(one["held_out"]["all"]["error_percent"]))["lr"]
    runs = sorted((one for one in lines if one["lr"] == lr), key=lambda one: int(one["seed"]))

    def test(members: str, value: str) -> tuple[float, ...]:
        return tuple(one["test"][members][value] for one in runs)

    label, networks = _WAYS[name]
    last, error = (Spread(test(members, "error_percent")) for members in ("last", "all"))
    return Way(label, networks, lr, last, error, Spread(test("all", "calibrated_nll")))


def _mean(spread: Spread, decimals: int = 2) -> str:
    """The mean and, for several seeds, the standard deviation."""
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.{decimals}f}"
    return f"{spread.mean:.{decimals}f}{deviation}"
