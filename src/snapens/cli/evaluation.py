"""`snapens evaluate`: error, calibration and uncertainty on labelled examples."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table

from ..errors import ArgumentError, MismatchError
from ..report.numbers import decimal
from .combining import in_words, outputs_of
from .messages import NO_BREAK, paragraphs, show
from .options import Folder, arg

if TYPE_CHECKING:  # --help does not wait for torch
    from ..combine.evaluation import Evaluation
    from ..outputs import Outputs


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run on labelled examples: error, calibration, uncertainty."""

    run: Folder
    """A run folder with outputs."""
    part: Annotated[str | None, arg("NAME")] = None
    """The name under which the outputs were saved. By default test, or the only part."""
    baseline: Annotated[tuple[Path, ...], arg("[RUN ...]", "")] = ()
    """Runs whose last snapshots are independent networks; prints how many of them together are as good as this run."""
    format: Literal["table", "json"] = "table"
    """json: all numbers, including the error of each class."""

    def __call__(self) -> int:
        """Print the quality of the last snapshot, of the mean of all members, and of the fitted combination."""
        from ..combination import Combination
        from ..combine.evaluation import Evaluation

        part = self.part or _default_part(self.run)
        outputs = outputs_of(self.run, part)
        networks = [_comparable(outputs_of(path, part), outputs, path) for path in self.baseline]
        choices = {"last snapshot": Combination(outputs.members[-1:])}
        if len(outputs.members) > 1:
            choices[f"mean of {len(outputs.members)}"] = Combination(outputs.members)
        if (fitted := Combination.find(self.run)) is not None:
            choices["combination.json"] = fitted
        found = {name: Evaluation.of(outputs, choice, networks) for name, choice in choices.items()}
        classes = _classes(self.run, outputs.log_probabilities.shape[-1])
        if self.format == "json":
            sys.stdout.write(_as_json(self.run, part, found, classes) + "\n")
        else:
            _show(f"{self.run}, part {part}", found, classes, with_baseline=bool(self.baseline))
            if fitted is not None:
                words = in_words(fitted, len(outputs.members))
                sys.stdout.write(f"combination.json: {words}\n")
                if part != "test":
                    sys.stdout.write(
                        "if combination.json was fitted on these examples, its results here are too good\n"
                    )
        return 0


def _default_part(path: Path) -> str:
    from ..storage import parts

    found = parts.names(path)
    if "test" in found or not found:
        return "test"
    if len(found) > 1:
        raise ArgumentError(f"part must be one of {', '.join(found)}, got none: choose one with --part")
    return found[0]


def _comparable(baseline: "Outputs", outputs: "Outputs", path: Path) -> "Outputs":
    """The outputs of a baseline, if they are those of the same examples and classes."""
    same_shape = baseline.log_probabilities.shape[1:] == outputs.log_probabilities.shape[1:]
    if not same_shape or (baseline.labels != outputs.labels).any():
        raise MismatchError(
            f"baseline must name runs with the same classes and examples, got {path}: evaluate it on the same data"
        )
    return baseline


def _classes(path: Path, count: int) -> list[str]:
    """The names of the classes, which only a run of the lab knows."""
    from ..lab.records.run import Run

    run = Run(path)
    names = run.data.get("classes", []) if run.exists else []
    return names if len(names) == count else [str(k) for k in range(count)]


def _show(title: str, found: "dict[str, Evaluation]", classes: list[str], *, with_baseline: bool) -> None:
    first = next(iter(found.values()))
    sys.stdout.write(f"{title}: {first.examples:,} examples\n\n")
    table = Table("", *found, box=None, pad_edge=False)
    rows: dict[str, Callable[[Evaluation], str]] = {
        "error, %": lambda one: f"{100 * one.error:.2f}",
        "error of the most confident 80 %, %": lambda one: f"{100 * one.error_of_confident:.2f}",
        "NLL": lambda one: f"{one.nll:.4f}",
        "calibrated log-likelihood": lambda one: _likelihood(one.calibrated_log_likelihood),
        "Brier score": lambda one: f"{one.brier:.4f}",
        "ECE, %": lambda one: f"{100 * one.ece:.2f}",
        "members used": lambda one: f"{one.mean_members:.2f}",
    }
    if with_baseline:
        rows["equivalent independent networks"] = lambda one: _networks(one.equivalent)
    for name, shown in rows.items():
        table.add_row(name, *map(shown, found.values()))
    show(table)
    class_errors = zip(classes, list(found.values())[-1].class_errors, strict=True)
    worst = sorted(((name, error) for name, error in class_errors if error), key=lambda one: -one[1])[:5]
    if worst:
        errors = ", ".join(f"{_class(name)}: {100 * error:.1f} %".replace(" ", NO_BREAK) for name, error in worst)
        paragraphs(f"\nclasses with the highest errors: {errors}")


def _as_json(path: Path, part: str, found: "dict[str, Evaluation]", classes: list[str]) -> str:
    content = {
        name: {
            **asdict(one),
            "equivalent": one.equivalent if one.equivalent != math.inf else _networks(one.equivalent),
            "class_errors": dict(zip(classes, one.class_errors, strict=True)),
        }
        for name, one in found.items()
    }
    return json.dumps({"run": str(path), "part": part, "predictors": content}, indent=1, allow_nan=False)


def _class(name: str) -> str:
    """A class without a name is a number, which a reader could take for a part of its error."""
    return f"class {name}" if name.isdecimal() else name


def _likelihood(value: float | None) -> str:
    return "–" if value is None else decimal(value, 4)


def _networks(equivalent: float | None) -> str:
    if equivalent is None:
        return "–"
    return "more than given" if equivalent == math.inf else f"{equivalent:.2f}"
