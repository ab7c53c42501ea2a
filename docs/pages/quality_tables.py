"""Tables of runs that spend their epochs in different ways, grouped by the budget."""

from collections.abc import Iterable, Sequence
from statistics import mean

from snapens.report import names
from snapens.report.formats import UNMEASURED, markdown_row
from snapens.report.numbers import decimal

from .qualities import Qualities, Quality

ERRORS = ("epochs", "use of the epochs", "minutes", "last weights, %", "EMA of the weights, %", "all snapshots, %")
DETAILS = (
    "epochs",
    "predictor",
    "networks per image",
    "test error, %",
    "NLL",
    "ECE, %",
    "calibrated log-likelihood",
    "AUROC",
)
_COLUMNS = (("nll", 1, 3), ("ece", 100, 1), ("calibrated_log_likelihood", 1, 3), ("outside_auroc", 1, 3))
_ALL_IMAGES = ", all images"


def errors(runs: Qualities) -> str:
    """The time and the errors of each run; the best error of a budget is bold."""
    rows = []
    for budget, groups in _budgets(runs).items():
        found = [_errors(group) for group in groups]
        best = _lowest(values for columns in found for values in columns)
        for group, columns in zip(groups, found, strict=True):
            minutes = f"{mean(run.minutes for run in group):.1f}"
            label = _counted(group.runs[0].words, group)
            rows.append([budget, label, minutes, *(_error(values, best) for values in columns)])
    return "\n\n".join([_table(ERRORS, rows), *_notes(runs)])


def details(runs: Qualities) -> str:
    """Every predictor of each run; the best error of a budget is bold."""
    rows = []
    for budget, groups in _budgets(runs).items():
        lines = [(group, *line) for group in groups for line in _predictors(group).items()]
        best = _lowest(group.values(name, "error") for group, name, _ in lines)
        for group, name, label in lines:
            networks = f"{mean(group.values(name, 'mean_members')):.3g}"
            error = _error(group.values(name, "error"), best)
            rows.append([budget, _counted(label, group), networks, error, *_others(group, name)])
    return _table(DETAILS, rows)


def timeline(run: Quality, published_percent: float) -> str:
    """The errors at the end of each cycle of a run, and when they are lower than a published error."""
    rows = [
        [
            f"{moment.seconds / 60:.1f}",
            str(snapshots),
            *(f"{100 * error:.2f}" for error in (moment.error, moment.error_so_far)),
        ]
        for snapshots, moment in enumerate(run.history, 1)
    ]
    head = ("minutes", "snapshots", "this snapshot alone: error, %", "all snapshots so far: error, %")
    first = run.seconds_below(published_percent)
    below = f"below {published_percent:.2f} %, the paper's lowest error on {names.DATASETS[run.dataset]}"
    when = f"never {below}" if first is None else f"{below}, for the first time after {first / 60:.1f} minutes"
    about = f"{run.words}; {run.epochs} epochs, {run.images:,} images, seed {run.recipe.seed}"
    verdict = f"Measured at the end of each cycle, the error of all snapshots so far is {when}."
    return f"{verdict} Run: {about}.\n\n{_aligned(head, rows)}"


def _errors(group: Qualities) -> list[list[float] | None]:
    """The errors of a recipe in the last columns of the first table, one per seed."""
    run = group.runs[0]
    shown = (
        "without averaging" if run.averaged else "last snapshot",
        "last snapshot" if run.averaged else None,
        "all snapshots" if run.members > 1 else None,
    )
    return [group.values(name, "error") if name and all(name in run for run in group) else None for name in shown]


def _predictors(group: Qualities) -> dict[str, str]:
    """The labels of the predictors that all runs of a group have."""
    return {name: label for name, label in group.runs[0].predictors.items() if all(name in run for run in group)}


def _others(group: Qualities, name: str) -> list[str]:
    """The last columns of the second table: means over the seeds."""
    return [
        decimal(factor * mean(group.values(name, column)), decimals)
        if all(column in run[name].values for run in group)
        else UNMEASURED
        for column, factor, decimals in _COLUMNS
    ]


def _budgets(runs: Qualities) -> dict[str, list[Qualities]]:
    """The runs by the text of their budget, those with held-out images first."""
    ordered = sorted(runs, key=lambda run: (run.epochs, not run.recipe.dataset.held_out))
    found: dict[str, list[Quality]] = {}
    for run in ordered:
        found.setdefault(_budget(run), []).append(run)
    return {budget: Qualities(tuple(group)).repetitions() for budget, group in found.items()}


def _budget(run: Quality) -> str:
    return f"{run.epochs}{'' if run.recipe.dataset.held_out else _ALL_IMAGES}"


def _lowest(columns: Iterable[list[float] | None]) -> float:
    return min(mean(values) for values in columns if values is not None)


def _error(values: list[float] | None, best: float) -> str:
    """The mean error in percent, bold if it is the best one; with several seeds, also the lowest and the highest."""
    if values is None:
        return UNMEASURED
    text = f"{100 * mean(values):.2f}"
    text = f"**{text}**" if mean(values) == best else text
    return text if len(values) == 1 else f"{text} ({100 * min(values):.2f} to {100 * max(values):.2f})"


def _counted(label: str, group: Qualities) -> str:
    return label if len(group) == 1 else f"{label} (n = {len(group)})"


def _notes(runs: Qualities) -> list[str]:
    """What the reader must know about some rows, if there are any."""
    found = []
    if whole := [run for run in runs if not run.recipe.dataset.held_out]:
        found.append(f"All images: trained on {whole[0].images:,} images, none of which are held out.")
    if any(len(group) > 1 for group in runs.repetitions()):
        found.append("n: the mean over n seeds, with the lowest and the highest error in parentheses.")
    return [" ".join(found)] if found else []


def _table(head: Sequence[str], rows: list[list[str]]) -> str:
    """A Markdown table, where the first row of a budget shows the budget."""
    shown = [["" if k and rows[k - 1][0] == budget else budget, *others] for k, (budget, *others) in enumerate(rows)]
    return _aligned(head, shown, texts=2)


def _aligned(head: Sequence[str], rows: list[list[str]], texts: int = 0) -> str:
    """A Markdown table; the columns after the first `texts` ones are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(map(markdown_row, [list(head), rule, *rows]))
