"""The pieces of a report as separate files: charts as images, tables as CSV or JSON."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ..lab.recipe.value import unknown
from ..lab.records.run import Run
from ..quality import THRESHOLDS, Difference, Score
from ..storage import durable, jsonfile
from . import page_charts
from .account import Account
from .formats import csv_lines
from .summary import Summary, summarise

Format = Literal["png", "svg", "csv", "json"]
Row = dict[str, Any]


def pieces(runs: Sequence[Run], folder: Path, format: Format, focus: str | None = None) -> list[Path]:
    """Write each chart (png, svg) or each table (csv, json) of some runs; returns the paths of the files."""
    if format not in get_args(Format):
        raise unknown("format", format, get_args(Format))
    contents = _contents(summarise(runs, focus), format)
    return [durable.write(folder / f"{name}.{format}", content) for name, content in contents]


def tables(summary: Summary) -> dict[str, list[Row]]:
    """Every table of a report by name; the rows of a table have the same keys."""
    details, trace = summary.details, summary.focus.trace
    return {
        "answer": list(_answer(summary)),
        "verdict": [vars(finding) for finding in summary.findings],
        "runs": [_run(account) for account in summary.accounts],
        "methods": list(_methods(summary)),
        "differences": list(_differences(summary)),
        "training": [
            dict(zip(("step", "epoch", "lr", "loss"), row, strict=True))
            for row in zip(trace.steps, trace.epochs, trace.rates, trace.losses, strict=True)
        ],
        "snapshots": list(_snapshots(summary.focus)),
        "combination": list(_combination(summary)),
        "exits": list(_exits(summary)),
        "correlation": list(_pairs("correlation", details.quality.correlation)),
        "disagreement": list(_pairs("disagreement", details.quality.disagreement)),
        "lines": list(_lines(summary)),
        "reliability": [
            {"predictor": predictor, **vars(found)}
            for predictor, bins in (("last", details.reliability_last), ("ensemble", details.reliability_ensemble))
            for found in bins
        ],
        "examples": list(_examples(summary)),
        "classes": [{**vars(found), "change": found.change} for found in (*details.gaining, *details.losing)],
    }


def _contents(summary: Summary, form: Format) -> Iterator[tuple[str, bytes]]:
    if form in ("png", "svg"):
        for name, chart in page_charts.draw(summary).items():
            yield name, chart.saved(form)
        return
    for name, rows in tables(summary).items():
        if rows:
            lines = [rows[0], *(row.values() for row in rows)]
            yield name, jsonfile.dumps(rows) if form == "json" else csv_lines(lines).encode("utf-8", "replace")


def _answer(summary: Summary) -> Iterator[Row]:
    focus, baseline = summary.focus, summary.baseline
    found: list[tuple[str, Account, Score, float]] = [
        ("last snapshot", focus, focus.single, 1),
        ("ensemble", focus, focus.ensemble, len(focus.members)),
    ]
    if baseline is not None:
        found.insert(0, ("standard schedule", baseline, baseline.single, 1))
    if fitted := summary.details.fitted:
        found.append(("fitted combination", focus, fitted.score, fitted.used))
    for what, account, score, passes in found:
        seconds, device = account.trace.seconds, account.trace.device
        cost = {"training_seconds": seconds, "device": device, "forward_passes": passes}
        yield {"predictor": what, "run": account.name, **vars(score), **cost}


def _run(account: Account) -> Row:
    return {
        "run": account.name,
        "method": account.recipe and account.recipe.method.kind,
        "seed": account.recipe and account.recipe.seed,
        "error_last": account.single.error,
        **{f"{name}_ensemble": value for name, value in vars(account.ensemble).items()},
        "training_seconds": account.trace.seconds,
    }


def _methods(summary: Summary) -> Iterator[Row]:
    for method in summary.methods:
        row: Row = {"method": method.name, "runs": method.runs}
        for name in ("last", "ensemble", "nll", "ece", "seconds"):
            spread = getattr(method, name)
            row |= {f"{name}_mean": spread.mean, f"{name}_deviation": spread.deviation}
        yield row


def _differences(summary: Summary) -> Iterator[Row]:
    """The error of the run that the report is about minus that of every other run, paired."""
    predictors = ("last snapshot", "ensemble")  # as in Account.wrong
    for predictor, wrong in zip(predictors, summary.focus.wrong, strict=True):
        for account in summary.accounts:
            for other, others_wrong in zip(predictors, account.wrong, strict=True):
                if account is not summary.focus or other != predictor:
                    found = Difference.of(wrong, others_wrong)
                    values = {"difference": found.value, "standard_error": found.standard_error}
                    yield {"predictor": predictor, "run": account.name, "other": other, **values}


def _snapshots(account: Account) -> Iterator[Row]:
    for k, step in enumerate(account.steps):
        alone = {f"{name}_alone": value for name, value in vars(account.members[k]).items()}
        together = {"error_first_k": account.first[k].error, "error_last_k": account.last[k].error}
        yield {"k": k + 1, "step": step, "epoch": account.minima[k] if account.minima else None, **alone, **together}


def _combination(summary: Summary) -> Iterator[Row]:
    if (fitted := summary.details.fitted) is None:
        return
    found = fitted.combination
    for k, (_, step), weight in zip(fitted.snapshots, found.members, fitted.shares, strict=True):
        common = {"temperature": found.temperature, "exit_threshold": found.exit_threshold}
        yield {"snapshot": k, "step": step, "weight": weight, **common}


def _exits(summary: Summary) -> Iterator[Row]:
    exits, part = summary.details.exits, summary.details.evidence.part
    for m, (errors, nlls, used) in enumerate(zip(exits.error, exits.nll, exits.used, strict=True), 1):
        for threshold, *found in zip(THRESHOLDS, errors.tolist(), nlls.tolist(), used.tolist(), strict=True):
            values = dict(zip(("error", "nll", "members_evaluated"), found, strict=True))
            yield {"part": part, "m": m, "confidence": threshold, **values}


def _pairs(name: str, values: Any) -> Iterator[Row]:
    for first, row in enumerate(values.tolist(), 1):
        for second, value in enumerate(row, 1):
            yield {"snapshot": first, "other": second, name: value}


def _lines(summary: Summary) -> Iterator[Row]:
    if (between := summary.details.between) is None:
        return
    for line in between.lines:
        for share, *found in zip(between.last_share, line.interpolated_percent, line.estimated_percent, strict=True):
            interpolated, estimated = (percent / 100 for percent in found)
            yield {"snapshot": line.snapshot, "lambda": share, "interpolated": interpolated, "estimated": estimated}


def _examples(summary: Summary) -> Iterator[Row]:
    members = len(summary.focus.members)
    for example in summary.details.examples:
        row: Row = {"part": summary.focus.part, "example": example.index, "file": example.file, "truth": example.truth}
        predictions = {f"snapshot_{members - k}": found for k, found in enumerate(example.members)}
        for name, found in {**predictions, "ensemble": example.means[-1]}.items():
            row |= {name: found.name, f"{name}_probability": found.probability}
        yield row
