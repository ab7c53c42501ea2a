"""`snapens combine`: fit a combination of the members; and what other commands do with one."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table

from ..errors import ArgumentError, MismatchError
from ..report.numbers import signed
from .messages import paragraphs, say, show
from .options import Flag, Folder, arg

if TYPE_CHECKING:  # --help does not wait for torch
    from ..combination import Combination
    from ..combine import Gain
    from ..lab.records.run import Run
    from ..outputs import Outputs

_HARDLY_MORE_THAN_ONE = 1.1
_WITHOUT = {"temperature": "--no-temperature", "members": "--members all", "weights": "--weights equal"}


@dataclass(frozen=True)
class Combine:
    """Fit a combination of the members on held-out examples (combination.json)."""

    run: Folder
    """A run folder with outputs for held-out examples."""
    members: str = "all"
    """all; a number m: the last m; last: the last m, with the m of the lowest NLL;
    greedy: members and weights, selected one at a time; drop-early: all except early members that raise the NLL."""
    weights: Literal["equal", "simplex"] = "equal"
    """simplex: the weights with the lowest negative log-likelihood (NLL)."""
    exit_loss: float = 0.0
    """Early exit may raise the error by this many percentage points; 0: not at all."""
    no_exit: Flag = False
    """Always evaluate all members."""
    no_temperature: Flag = False
    """Do not fit a temperature."""
    like: Annotated[Path | None, arg("RUN")] = None
    """Use the combination of this other run, instead of fitting one: its member k becomes member k of this run."""
    part: str = "held_out"
    """The name under which the outputs were saved."""
    format: Literal["table", "json"] = "table"
    """json: all numbers, and the combination."""

    def __call__(self) -> int:
        """Print the gain of each choice, and store the combination."""
        from .. import combine
        from ..lab.records.run import Run

        if self.like is not None:
            return self._transfer(self.like)
        if not math.isfinite(self.exit_loss) or not 0 <= self.exit_loss < 100:
            raise ArgumentError(f"exit-loss must be from 0 to 100 (percentage points), got {self.exit_loss}")
        outputs = outputs_of(self.run, self.part, unsuitable="test")
        members = int(self.members) if self.members.isdecimal() else self.members
        options: dict[str, Any] = {
            "members": members,
            "weights": self.weights,
            "temperature": not self.no_temperature,
            "exit_loss": None if self.no_exit else self.exit_loss / 100,
        }
        combination, gains = combine.fit(outputs, **options), combine.gains(outputs, **options)
        combination.save(self.run)
        if (run := Run(self.run)).exists and not run.finished:
            say("combine again when the run is finished: its other snapshots are not in this combination")
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
        sys.stdout.write(f"{in_words(combination, existing)}\n{self.run / 'combination.json'}\n")


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
    note_unfinished(run)
    if last is not None:
        if durable.exists(path):
            say(f"{path} is not used, because --last {last} was given")
        return Combination.last(last)
    if (found := Combination.find(run.path)) is not None:
        say(f"using {path}: {in_words(found, len(run.snapshots.steps))}")
    return found


def note_unfinished(run: "Run") -> None:
    """Print how many snapshots of an unfinished run of the lab exist."""
    if run.exists and 0 < (found := len(run.snapshots.steps)) < (cycles := run.recipe.method.cycles):
        say(f"{run.path} is not finished: {found} of {cycles} snapshots exist")


def outputs_of(path: Path, part: str, unsuitable: str | None = None) -> "Outputs":
    """The outputs of a part; if there are none, the error does not propose the `unsuitable` part."""
    from ..lab.records.run import Run
    from ..storage import parts

    run = Run(path)
    run.require_snapshot()
    if run.has_outputs(part):
        note_unfinished(run)
        return run.outputs(part)
    others = [name for name in parts.names(path) if name != unsuitable]
    train = "train again with --held-out N and another --out" if part == "held_out" and run.exists else None
    raise parts.no_outputs(path, part, others, train)


def _show_gains(outputs: "Outputs", gains: "Sequence[Gain]") -> None:
    names = ("choice", "error, %", "change", "NLL", "change", "members")
    table = Table(*names, box=None, pad_edge=False)
    paragraphs(
        f"The changes of the error and the NLL by each choice, on {len(outputs.labels):,} held-out examples: fitted on "
        "one half and measured on the other (± one paired standard error; negative is better)\n\n"
    )
    for gain in gains:
        table.add_row(
            gain.choice.replace("_", " "),
            f"{100 * gain.error:.2f}",
            f"{signed(-100 * gain.error_gain.mean)} ± {100 * gain.error_gain.standard_error:.2f}",
            f"{gain.nll:.4f}",
            f"{signed(-gain.nll_gain.mean, 4)} ± {gain.nll_gain.standard_error:.4f}",
            f"{gain.used:.2f}",
        )
    show(table)
    sys.stdout.write("\n")
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
