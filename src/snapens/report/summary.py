"""Summary: every number of a report, as plain data, from run folders alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from ..lab.records.run import Run, require_same_test
from ..lab.records.scores import Running
from .account import Account
from .comparison import Method, compare
from .details import Details
from .evidence import Difference
from .verdict import Finding, basis, verdict


@dataclass(frozen=True)
class Summary:
    """One run in all detail, a baseline for it if there is one, and all runs side by side."""

    focus: Account
    """The first Snapshot Ensemble; where there is none, the first of fresh cycles, or else of all."""
    details: Details
    baseline: Account | None
    """A run on the standard schedule: the one that is most like the focus."""
    accounts: tuple[Account, ...]
    methods: tuple[Method, ...]
    findings: tuple[Finding, ...]
    basis: str

    @property
    def over_last(self) -> Difference:
        """The ensemble's error less the last snapshot's."""
        return Difference.of(self.focus.wrong[1], self.focus.wrong[0])

    @property
    def over_baseline(self) -> Difference | None:
        """The ensemble's error less that of the baseline's last snapshot."""
        return _over(self.focus, self.baseline)


_SAME_TASK = (
    "network",
    "dataset",
    "epochs",
    "batch",
    "dropout",
    "weight_decay",
    "momentum",
    "held_out",
    "held_out_seed",
)
"""What a baseline has in common with the run that it is held against; the rate is its own."""


_RANKS = {"singlecycle": 1, "single": 2}
"""A report is about the first run of the lowest rank."""


def summarise(runs: Sequence[Run]) -> Summary:
    """Read each run once; they must have been tested on the same images."""
    if not runs:
        raise ArgumentError("runs must name at least one run folder, got none")
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ArgumentError(f"runs must be different folders, got {', '.join(str(run.path) for run in runs)}")
    chosen = min(range(len(runs)), key=lambda k: _RANKS.get(runs[k].recipe.method, 0))
    order = [chosen, *(k for k in range(len(runs)) if k != chosen)]  # one run's outputs in memory at a time
    found: dict[int, Account] = {}
    for k in order:
        outputs = runs[k].outputs()
        if k == chosen:
            labels = outputs.labels
        require_same_test(runs[chosen], labels, runs[k], outputs.labels)
        running = Running.of(outputs.probabilities, outputs.labels)
        found[k] = Account.of(runs[k], outputs, running)
        if k == chosen:
            details = Details.of(runs[k], found[k], outputs, running)
    accounts = tuple(found[k] for k in range(len(runs)))
    baseline = _baseline(found[chosen], accounts)
    over = _over(found[chosen], baseline)
    return Summary(
        found[chosen],
        details,
        baseline,
        accounts,
        tuple(compare(accounts)),
        tuple(verdict(details.evidence, over and -over)),
        basis(details.evidence),
    )


def _baseline(focus: Account, accounts: Sequence[Account]) -> Account | None:
    if focus.recipe.method == "single":
        return None
    singles = [
        account
        for account in accounts
        if account.recipe.method == "single"
        and account.complete
        and all(getattr(account.recipe, name) == getattr(focus.recipe, name) for name in _SAME_TASK)
    ]
    return min(singles, key=lambda single: len(single.recipe.differences(focus.recipe)), default=None)


def _over(focus: Account, baseline: Account | None) -> Difference | None:
    return None if baseline is None else Difference.of(focus.wrong[1], baseline.wrong[0])
