"""The numbers of the ledger as text, for the sentences and tables of the documentation's templates.

A number that is typed into a page has no known origin and is not updated. So a template refers to it by name:
`{{ wide.single.error }}` is an error in percent, `{{ wide["snapshot-0.2"] - wide.single }}` a paired difference.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from snapens.errors import ArgumentError
from snapens.extras import package
from snapens.lab.paper import cells as paper
from snapens.lab.paper import differences, ledger
from snapens.lab.paper.entry import Entry, Exit
from snapens.report import names
from snapens.report.numbers import decimal, signed

SEED = 0
"""The seed whose runs the sentences are about; tables show all seeds."""
CONFIDENCE = 0.9
"""The confidence of the early exit that the pages describe."""
_STANDARD_ERRORS = 2.0  # of a clear difference


@dataclass(frozen=True)
class Change:
    """One test error minus another, in percentage points."""

    points: float
    standard_error: float | None
    """Paired; None if the outputs of both runs were never available together."""
    published: str
    """The same difference in the paper, or a dash."""

    def __str__(self) -> str:
        return signed(self.points) + ("" if self.standard_error is None else f" ± {self.standard_error:.2f}")

    @property
    def gain(self) -> float:
        """The reduction of the error, in points."""
        return -self.points

    @property
    def size(self) -> str:
        """The difference without its sign, for sentences that state the direction and `check` it."""
        return str(self)[1:]

    @property
    def lower(self) -> bool:
        """Whether the first error is clearly lower: by more than two standard errors."""
        return self.points < -self._noise

    @property
    def higher(self) -> bool:
        """Whether the first error is clearly higher."""
        return self.points > self._noise

    @property
    def unclear(self) -> bool:
        """Whether the first error is neither clearly lower nor clearly higher."""
        return not (self.lower or self.higher)

    @property
    def _noise(self) -> float:
        if self.standard_error is None:
            raise ArgumentError(
                f"a statement about the difference {self} must have a standard error, got none: "
                "record its runs in one call of `snapens paper record`"
            )
        return _STANDARD_ERRORS * self.standard_error


@dataclass(frozen=True)
class Measured:
    """The last snapshot of a run of the ledger, or all its snapshots together."""

    entry: Entry
    members: str
    """`last` or `ensemble`."""
    published_percent: float | None
    paired: differences.Differences

    def __sub__(self, other: "Measured") -> Change:
        one, two = (f"{measured.entry.name} {measured.members}" for measured in (self, other))
        found = differences.between(one, two, self.paired)
        published = None
        if self.published_percent is not None and other.published_percent is not None:
            published = self.published_percent - other.published_percent
        error = None if found is None else found.standard_error
        return Change(self.percent - other.percent, error, "–" if published is None else signed(published))

    @property
    def last(self) -> "Measured":
        """The last snapshot alone."""
        return replace(self, members="last", published_percent=None)

    @property
    def ensemble(self) -> "Measured":
        """All snapshots together."""
        return replace(self, members="ensemble", published_percent=None)

    @property
    def minus_last(self) -> Change:
        """All snapshots together minus the last one."""
        return self.ensemble - self.last

    @property
    def percent(self) -> float:
        """The test error."""
        return self.entry.last_percent[self._index]

    @property
    def error(self) -> str:
        """The test error in percent."""
        return f"{self.percent:.2f}"

    @property
    def over_paper(self) -> float:
        """Our error minus the published one, in points."""
        if self.published_percent is None:
            raise ArgumentError(f"{self.entry.name} must have a published error, got none: name a cell of the paper")
        return self.percent - self.published_percent

    @property
    def nll(self) -> str:
        """The negative log-likelihood in nats."""
        return f"{self.entry.last_nll[self._index]:.3f}"

    @property
    def ece(self) -> str:
        """The expected calibration error in percent."""
        return f"{100 * self.entry.last_ece[self._index]:.1f}"

    @property
    def test_images(self) -> str:
        """The number of test images."""
        return f"{self.entry.test_images:,}"

    @property
    def budget(self) -> str:
        """The epochs and the snapshots of the run."""
        return f"{self.entry.recipe.budget.epochs} epochs, {self.entry.recipe.method.cycles} snapshots"

    @property
    def sizes(self) -> str:
        """The errors of the last m snapshots, m = 1 … M, in percent."""
        return ", ".join(f"{percent:.2f}" for percent in self.entry.last_percent)

    @property
    def over_best(self) -> float:
        """The error of all snapshots together minus that of the best m, in points."""
        return self.entry.last_percent[-1] - min(self.entry.last_percent)

    @property
    def neighbours(self) -> list[float]:
        """The share of test images, in percent, on which each snapshot and the next predict different classes."""
        return [100 * row[k + 1] for k, row in enumerate(self.entry.disagreement[:-1])]

    @property
    def rises(self) -> list[float]:
        """How far the error between each earlier snapshot and the last rises, in points; empty if not measured."""
        return [line.bump_points for line in self.entry.between.lines] if self.entry.between else []

    @property
    def peaks(self) -> list[float]:
        """The highest error on each of these lines with BatchNorm statistics interpolated, in percent."""
        return [max(line.interpolated_percent) for line in self.entry.between.lines] if self.entry.between else []

    @property
    def early(self) -> Exit:
        """Early exit at a confidence of CONFIDENCE."""
        return next(found for found in self.entry.early_exit if found.threshold == CONFIDENCE)

    @property
    def early_loss(self) -> float:
        """The error of early exit minus that of all snapshots together, in points."""
        return self.early.error_percent - self.entry.last_percent[-1]

    @property
    def _index(self) -> int:
        return 0 if self.members == "last" else -1


Group = dict[str, Measured]
"""The measured runs of a network on a data set, by the methods of Table 1."""


def rendered(template: str, folder: Path, **values: object) -> str:
    """A template of the documentation with the numbers of a ledger; `values` are further names that it may use."""
    entries, paired = ledger.entries(folder), differences.read(folder)

    groups: dict[tuple[str, str], Group] = {}
    for cell in paper.cells():
        entry = entries.get(paper.run_name(replace(cell.recipe, seed=SEED)))
        if cell.where == "table 1" and isinstance(entry, Entry):
            members = "last" if cell.reads == "last" else "ensemble"
            group = groups.setdefault((cell.network, cell.dataset), {})
            group[cell.method] = Measured(entry, members, cell.published_percent, paired)

    def measured(network: str, dataset: str) -> Group:
        """The measured runs of a network on a data set, by the methods of Table 1."""
        return groups[network, dataset]

    def all_measured(*datasets: str) -> dict[str, Group]:
        """The same for every network that was measured, by the network and the data set in print."""
        chosen = [(network, name) for name in datasets for network, found in groups if found == name]
        return {f"{names.NETWORKS[network]}, {names.DATASETS[name]}": groups[network, name] for network, name in chosen}

    def ensembles(*datasets: str) -> list[Measured]:
        """Every Snapshot Ensemble that was measured on some data sets, so that all pages are about the same runs."""
        return [run for group in all_measured(*datasets).values() for run in _ensembles(group)]

    def ensembles_minus(method: str, *datasets: str, last: bool = False) -> list[Change]:
        """Each of them, or its last snapshot, minus the run of its network with another method."""
        groups = [group for group in all_measured(*datasets).values() if method in group]
        return [(run.last if last else run) - group[method] for group in groups for run in _ensembles(group)]

    jinja = package("jinja2", "report")
    look = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = jinja.Environment(autoescape=False, undefined=jinja.StrictUndefined, **look)
    vocabulary = {
        "measured": measured,
        "all_measured": all_measured,
        "ensembles": ensembles,
        "ensembles_minus": ensembles_minus,
        "span": span,
        "decimal": decimal,
        "check": check,
        "confidence": CONFIDENCE,
    }
    environment.globals |= {**vocabulary, **values}
    text: str = environment.from_string(template).render()
    return text


def _ensembles(group: Group) -> list[Measured]:
    return [run for run in group.values() if run.entry.recipe.method.kind == "snapshot"]


def series(values: Iterable[float], decimals: int) -> str:
    """Numbers in a row; a dash if there are none.

    Examples:
        >>> series([1.25, -0.04], 1), series([], 1)
        ('1.2, 0.0', '–')
    """
    return ", ".join(decimal(value, decimals) for value in values) or "–"


def span(values: Iterable[float], decimals: int) -> str:
    """The lowest and the highest of some numbers.

    Examples:
        >>> span([2.6, 6.1, 3.0], 0), span([2, 2.01], 1)
        ('3 to 6', '2.0')
    """
    found = list(values)
    low, high = (decimal(value, decimals) for value in (min(found), max(found)))
    return low if low == high else f"{low} to {high}"


def check(*conditions: bool) -> str:
    """An empty text; an error if one of the conditions that the next sentence states in words does not hold."""
    if not all(conditions):
        raise ArgumentError(
            f"conditions must hold for the sentence after them, got {conditions}: rewrite this sentence of the template"
        )
    return ""
