"""Commands that read the outputs of members: fit a combination, and evaluate."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Column, Table
from tyro.conf import Positional

from ..errors import ArgumentError, MismatchError
from .messages import NO_BREAK, paragraphs, say
from .options import Flag, arg

if TYPE_CHECKING:  # --help does not wait for torch
    from ..combination import Combination
    from ..combine import Gain
    from ..combine.evaluation import Evaluation
    from ..lab.records.run import Run
    from ..outputs import Outputs

Folder = Annotated[Path, Positional, arg("RUN", "(required)")]
_HARDLY_MORE_THAN_ONE = 1.1
_WITHOUT = {"temperature": "--no-temperature", "members": "--members all", "weights": "--weights equal"}


@dataclass(frozen=True)
class Combine:
    """Fit a combination of the members on held-out examples (combination.json)."""

    run: Folder
    """A run folder with outputs for held-out examples."""
    members: str = "all"
    """all; a number m: the last m; last: the last m, with the m of the lowest NLL; greedy: members and weights,
    selected one at a time; drop-early: all except early members that raise the NLL."""
    weights: Literal["equal", "simplex"] = "equal"
    """simplex: the weights with the lowest negative log-likelihood (NLL)."""
    exit_loss: float = 0.0
    """Early exit may raise the error by this many percentage points; 0: not at all."""
    no_exit: Flag = False
    """Always evaluate all members."""
    no_temperature: Flag = False
    """Do not fit a temperature."""
    like: Annotated[Path | None, arg("RUN")] = None
    """Use the combination of this other run, instead of fitting one: its member k becomes member k."""
    part: str = "held_out"
    """The name under which the outputs were saved."""
    format: Literal["table", "json"] = "table"
    """json: all numbers, and the combination."""

    def __call__(self) -> int:
        """Print the gain of each choice, and store the combination."""
        from .. import combine

        if self.like is not None:
            return self._transfer(self.like)
        if not math.isfinite(self.exit_loss) or not 0 <= self.exit_loss < 100:
            raise ArgumentError(f"exit-loss must be from 0 to 100 (percentage points), got {self.exit_loss}")
        outputs = _outputs(self.run, self.part, unsuitable="test")
        members = int(self.members) if self.members.isdecimal() else self.members
        options: dict[str, Any] = {
            "members": members,
            "weights": self.weights,
            "temperature": not self.no_temperature,
            "exit_loss": None if self.no_exit else self.exit_loss / 100,
        }
        combination, gains = combine.fit(outputs, **options), combine.gains(outputs, **options)
        combination.save(self.run)
        if self.format == "json":
            sys.stdout.write(_gains_as_json(self.run, outputs, combination, gains) + "\n")
            return 0
        if gains:
            _show_gains(outputs, gains)
        self._show(combination, len(outputs.members))
        if gains and gains[-1].used < _HARDLY_MORE_THAN_ONE < len(combination.members):
            say(
                "snapens: early exit evaluates only the last snapshot for almost every example: use --no-exit if you "
                "need the probabilities of the ensemble, or its mutual information"
            )
        return 0

    def _transfer(self, other: Path) -> int:
        """Store the combination of another run for this run."""
        from ..combination import Combination
        from ..lab.records.run import Run
        from ..lab.records.runs import same_data

        if replace(self, like=None) != Combine(self.run):
            raise ArgumentError("like must be given alone, because nothing is fitted, got other options: remove them")
        run, like = Run(self.run), Run(other)
        if not same_data(run, like):
            raise MismatchError(
                f"like must be a run with the same classes and test images, got {other}: choose another"
            )
        members = run.snapshots.members
        combination = Combination.load(other).transferred(like.snapshots.members, members)
        combination.save(self.run)
        self._show(combination, len(members))
        return 0

    def _show(self, combination: "Combination", existing: int) -> None:
        words = f"{in_words(combination, existing)}\n{self.run / 'combination.json'}"
        Console(highlight=False).print(words, soft_wrap=True)


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
        outputs = _outputs(self.run, part)
        networks = [_outputs(path, part) for path in self.baseline]
        choices = {
            "last snapshot": Combination(outputs.members[-1:]),
            f"mean of {len(outputs.members)}": Combination(outputs.members),
        }
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
                Console(highlight=False).print(f"combination.json: {words}", soft_wrap=True)
                if part != "test":
                    note = "if combination.json was fitted on these examples, its results here are too good"
                    Console(highlight=False).print(note, soft_wrap=True)
        return 0


def in_words(combination: "Combination", existing: int) -> str:
    """A combination as a sentence; `existing` is the number of members of the run."""
    if combination.newest is not None:
        members = f"the last {combination.newest} of {existing} members"
    else:
        steps = ", ".join(f"{step:,}" for _, step in combination.members)
        members = f"{len(combination.members)} of {existing} members (steps {steps})"
    weights = f" with the weights {', '.join(f'{w:.3g}' for w in combination.weights)}" if combination.weights else ""
    threshold = combination.exit_threshold
    stop = "no early exit" if threshold is None else f"early exit at a confidence of {threshold:.4f}"
    return f"{members}{weights}, temperature {combination.temperature:.3f}, {stop}"


def combination_of(run: "Run", last: int | None) -> "Combination | None":
    """The last m members, or the combination in the run folder; None if there is neither. It says what is used."""
    from ..combination import Combination
    from ..storage import durable

    path = run.path / "combination.json"
    if last is not None:
        if durable.exists(path):
            say(f"{path} is not used, because --last {last} was given")
        return Combination.last(last)
    if (found := Combination.find(run.path)) is not None:
        say(f"using {path}: {in_words(found, len(run.snapshots.steps))}")
    return found


def _outputs(path: Path, part: str, unsuitable: str | None = None) -> "Outputs":
    """The outputs of a part; if there are none, the error does not propose the `unsuitable` part."""
    from ..lab.records.run import Run
    from ..storage import parts

    run = Run(path)
    run.require_snapshot()
    if run.has_outputs(part):
        return run.outputs(part)
    others = [name for name in parts.names(path) if name != unsuitable]
    train = "train again with --held-out N and another --out" if part == "held_out" and run.exists else None
    raise parts.no_outputs(path, part, others, train)


def _default_part(path: Path) -> str:
    from ..storage import parts

    found = parts.names(path)
    if "test" in found or not found:
        return "test"
    if len(found) > 1:
        raise ArgumentError(f"part must be one of {', '.join(found)}, got none: choose one with --part")
    return found[0]


def _classes(path: Path, count: int) -> list[str]:
    """The names of the classes, which only a run of the lab knows."""
    from ..lab.records.run import Run

    run = Run(path)
    names = run.data.get("classes", []) if run.exists else []
    return names if len(names) == count else [str(k) for k in range(count)]


def _show_gains(outputs: "Outputs", gains: "Sequence[Gain]") -> None:
    names = ("choice", "error, %", "change", "NLL", "change", "members")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None, pad_edge=False)
    Console(highlight=False).print(
        f"The changes of the error and the NLL by each choice, on {len(outputs.labels):,} held-out examples: fitted on "
        "one half and measured on the other (± one paired standard error; negative is better)\n"
    )
    for gain in gains:
        table.add_row(
            gain.choice.replace("_", " "),
            f"{100 * gain.error:.2f}",
            f"{-100 * gain.error_gain.mean:+.2f} ± {100 * gain.error_gain.standard_error:.2f}",
            f"{gain.nll:.4f}",
            f"{-gain.nll_gain.mean:+.4f} ± {gain.nll_gain.standard_error:.4f}",
            f"{gain.used:.2f}",
        )
    Console(highlight=False).print(table)
    Console(highlight=False).print()
    for gain in gains:
        clearly_worse = gain.nll_gain.mean < -2 * gain.nll_gain.standard_error
        if gain.choice in _WITHOUT and clearly_worse:
            say(
                f"snapens: the choice of the {gain.choice} raised the NLL of examples that it was not fitted on: "
                f"use {_WITHOUT[gain.choice]}"
            )


def _gains_as_json(path: Path, outputs: "Outputs", combination: "Combination", gains: "Sequence[Gain]") -> str:
    content = {"run": str(path), "examples": len(outputs.labels), "combination": asdict(combination)}
    differences = [{name: getattr(gain, name)._asdict() for name in ("nll_gain", "error_gain")} for gain in gains]
    rows = [{**vars(gain), **found} for gain, found in zip(gains, differences, strict=True)]
    return json.dumps({**content, "gains": rows}, indent=1, allow_nan=False)


def _show(title: str, found: "dict[str, Evaluation]", classes: list[str], *, with_baseline: bool) -> None:
    console, first = Console(highlight=False), next(iter(found.values()))
    console.print(f"{title}: {first.examples:,} examples\n", soft_wrap=True)
    table = Table(*(Column(name, no_wrap=True) for name in ("", *found)), box=None, pad_edge=False)
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
    console.print(table)
    worst = sorted(
        ((error, name) for error, name in zip(list(found.values())[-1].class_errors, classes, strict=True) if error),
        reverse=True,
    )[:5]
    if worst:
        errors = ", ".join(f"{_class(name)}: {100 * error:.1f} %".replace(" ", NO_BREAK) for error, name in worst)
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
    return "–" if value is None else f"{value:.4f}"


def _networks(equivalent: float | None) -> str:
    if equivalent is None:
        return "–"
    return "more than given" if equivalent == math.inf else f"{equivalent:.2f}"
