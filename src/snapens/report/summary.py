"""Summary: every number of a report as plain data, computed from run folders alone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError, StoreError
from ..lab.recipe.recipe import Recipe
from ..lab.recipe.value import look_up
from ..lab.records.run import Run
from ..lab.records.runs import require_same_test, same_data
from ..quality import Difference
from ..storage import parts
from .account import Account, Part
from .basis import basis
from .comparison import Method, compare
from .details import Details
from .verdict import Finding, relation, verdict

log = logging.getLogger("snapens")

_METHOD_SETTINGS = {"method.kind", "method.cycles", "method.pattern", "optimizer.lr", "seed"}
"""The settings in which a run and its baseline may differ."""
_RANKS = {"singlecycle": 1, "single": 2}
"""A report is about a run of the lowest rank; that of all other methods is 0."""


@dataclass(frozen=True)
class Summary:
    """One run in detail, its baseline if there is one, and all runs side by side."""

    focus: Account
    """The run that the report is about."""
    details: Details
    baseline: Account | None
    """A finished run with the standard schedule that matches the focus; of several, the most similar one."""
    accounts: tuple[Account, ...]
    methods: tuple[Method, ...]
    findings: tuple[Finding, ...]
    basis: str
    over_last: Difference
    """The ensemble's error minus that of the last snapshot."""
    over_baseline: Difference | None
    """The ensemble's error minus that of the baseline's last snapshot."""

    @property
    def outcome(self) -> str:
        """In one sentence, whether the ensemble is better than its last snapshot, and than the baseline."""
        found, other = relation(-self.over_last), "a single model with the standard schedule"
        text = f"The ensemble is {found} its last snapshot"
        if self.over_baseline is None:
            return f"{text}."
        of_baseline = relation(-self.over_baseline)
        if of_baseline == found:
            return f"{text} and {found.split()[-1]} {other}."
        link = "but" if "better than" in (found, of_baseline) else "and"
        return f"{text}, {link} {of_baseline} {other}."


def summarise(runs: Sequence[Run], focus: str | None = None) -> Summary:
    """Read each run once; all must have been tested on the same examples.

    `focus` names the folder of the run that the report is about. By default that is a Snapshot Ensemble; of several,
    the one with the most matching baselines, then a complete one, then the first by name.
    """
    if not runs:
        raise ArgumentError("runs must name at least one run folder, got none")
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ArgumentError(f"runs must be different folders, got {', '.join(str(run.path) for run in runs)}")
    chosen = in_focus(runs, focus)
    part = _part(chosen)
    outputs = chosen.outputs(part)
    labels, about = outputs.labels, Account.of(chosen, outputs)
    details, found = Details.of(chosen, about, outputs), {chosen: about}
    for run in runs:
        if run is not chosen:
            outputs = run.outputs(part)  # of one run in memory at a time
            require_same_test(chosen, labels, run, outputs.labels)
            found[run] = Account.of(run, outputs)
    accounts = tuple(found[run] for run in runs)
    baseline = _baseline(about, accounts)
    over = None if baseline is None else Difference.of(about.wrong[1], baseline.wrong[0])
    return Summary(
        about,
        details,
        baseline,
        accounts,
        tuple(compare(accounts)),
        tuple(verdict(details.evidence, over and -over)),
        basis(details.evidence),
        Difference.of(about.wrong[1], about.wrong[0]),
        over,
    )


def with_data_of_focus(runs: Sequence[Run], focus: str | None = None) -> list[Run]:
    """The runs that have the same data as the one that a report is about; a warning names each of the others."""
    chosen = in_focus(runs, focus)
    for run in runs:
        if not same_data(run, chosen):
            log.warning(
                "%s is left out: its data are not those of %s, which the report is about", run.path, chosen.path
            )
    return [run for run in runs if same_data(run, chosen)]


def in_focus(runs: Sequence[Run], name: str | None = None) -> Run:
    """The run that a report of these runs is about."""
    names = {run.path.resolve().name: run for run in reversed(runs)}
    if name is not None:
        return look_up("focus", name, names)

    complete = [run.recipe for run in runs if not run.is_own_loop and _is_complete(run)]

    def order(run: Run) -> tuple[int, int, bool, str]:
        name = run.path.resolve().name
        if run.is_own_loop:
            return 0, 0, False, name
        baselines = sum(_is_baseline(recipe, run.recipe) for recipe in complete)
        return _RANKS.get(str(run.recipe.method.kind), 0), -baselines, not _is_complete(run), name

    return min(runs, key=order)


def _part(run: Run) -> Part:
    """The part of the data that the errors of a report are from; the lab always has outputs for test examples."""
    if not run.is_own_loop or run.has_outputs("test"):
        return "test"
    if run.has_outputs("held_out"):
        return "held_out"
    found = ", ".join(parts.names(run.path)) or "none"
    raise StoreError(
        f"{run.path} must contain outputs of the part 'test' or 'held_out', got {found}: "
        f"{parts.how_to_save(run.path, 'test')}"
    )


def _is_baseline(recipe: Recipe, focus: Recipe) -> bool:
    """Whether a recipe is the standard schedule for the same task and budget."""
    differing = {line.partition(":")[0] for line in recipe.differences(focus)}
    return recipe.method.kind == "single" != focus.method.kind and differing <= _METHOD_SETTINGS


def _is_complete(run: Run) -> bool:
    return run.recipe.method.cycles == len(run.snapshots.steps)


def _baseline(focus: Account, accounts: Sequence[Account]) -> Account | None:
    if (recipe := focus.recipe) is None:
        return None
    matching = [
        (len(account.recipe.differences(recipe)), account)
        for account in accounts
        if account.recipe and not account.missing and _is_baseline(account.recipe, recipe)
    ]
    return min(matching, key=lambda found: found[0])[1] if matching else None
