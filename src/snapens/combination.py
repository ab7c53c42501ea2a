"""Combination: how members are combined into one prediction."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path

from .errors import ArgumentError, StoreError, shortened, whole_number
from .storage import durable, manifest, sealed

Member = tuple[str, int]
"""A run and the step of one of its snapshots."""


@dataclass(frozen=True)
class Combination:
    """Which members are averaged, with which weights, at which temperature, and when a prediction may stop early.

    - `members`: (run, step) of each snapshot, evaluated from the last to the first; or, instead, `newest`: the
      number of the last members of each run to use.
    - `weights`: one per entry of `members`; empty for equal weights.
    - `temperature`: the logarithm of the mean is divided by it, followed by a softmax.
    - `exit_threshold`: a prediction stops when the largest probability of the mean of the members evaluated so far
      (before the temperature) reaches this value; None evaluates all members.

    Examples:
        >>> Combination.last(3).newest
        3
        >>> Combination((("a" * 32, 4), ("a" * 32, 8)), weights=(1.0, 3.0)).weights
        (1.0, 3.0)
    """

    members: tuple[Member, ...] = ()
    weights: tuple[float, ...] = ()
    temperature: float = 1.0
    exit_threshold: float | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple((str(run), int(step)) for run, step in self.members))
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))
        count = len(self.members)
        if (self.newest is None) is (not self.members):
            raise ArgumentError(
                f"members must have at least one (run, step), or newest must be given instead, "
                f"got members={self.members} and newest={self.newest}"
            )
        if self.newest is not None:
            object.__setattr__(self, "newest", whole_number("newest", self.newest, 1))
        if len(set(self.members)) != count:
            raise ArgumentError(f"members must be distinct, got {self.members}: use weights")
        if any(not run or step < 1 for run, step in self.members):
            raise ArgumentError(f"members must have the name of a run and a step of at least 1, got {self.members}")
        if self.weights and (
            len(self.weights) != count
            or not all(0 <= weight < math.inf for weight in self.weights)
            or not any(self.weights)
        ):
            raise ArgumentError(
                f"weights must be {count} finite numbers of at least 0, one per entry of members, not all 0, "
                f"got {self.weights}"
            )
        if not 0 < self.temperature < math.inf:
            raise ArgumentError(f"temperature must be a finite number greater than 0, got {self.temperature}")
        if self.exit_threshold is not None and not 0 < self.exit_threshold < 1:
            raise ArgumentError(
                f"exit_threshold must be greater than 0 and less than 1, or None to evaluate all members, "
                f"got {self.exit_threshold}"
            )

    @classmethod
    def last(cls, m: int) -> "Combination":
        """The last m members of each run, with equal weights."""
        return cls(newest=whole_number("last", m, 1))

    def among(self, existing: Sequence[Member]) -> "Combination":
        """The same combination of members that exist, listed explicitly and without those of weight 0.

        `existing` is ordered from the oldest to the newest member.

        Examples:
            >>> Combination.last(1).among([("a", 4), ("b", 4), ("a", 8), ("b", 8)]).members
            (('a', 8), ('b', 8))
        """
        if self.newest is not None:
            steps = {run: [step for other, step in existing if other == run] for run, _ in existing}
            if (most := min(map(len, steps.values()), default=0)) < self.newest:
                raise ArgumentError(
                    f"last must be between 1 and {most} (the number of members), got {self.newest}: lower it"
                )
            kept = tuple((run, step) for run, step in existing if step in steps[run][-self.newest :])
            return replace(self, members=kept, newest=None)
        if missing := [member for member in self.members if member not in existing]:
            raise ArgumentError(
                f"members must be among {shortened([str(member) for member in existing])}, got {missing[0]}: "
                "load that run too, or fit the combination again"
            )
        used = [pair for pair in zip(self.members, self.weights or self.shares, strict=True) if pair[1]]
        members, weights = (tuple(column) for column in zip(*used, strict=True))
        return replace(self, members=members, weights=weights if self.weights else ())

    def transferred(self, before: Sequence[Member], after: Sequence[Member]) -> "Combination":
        """The same combination for another run: member k of `before` becomes member k of `after`.

        A combination that was fitted with held-out examples can so be used for a run that trained on all examples.

        Examples:
            >>> combination = Combination((("a", 4), ("a", 12)), temperature=1.2)
            >>> combination.transferred([("a", 4), ("a", 8), ("a", 12)], [("b", 5), ("b", 10), ("b", 15)]).members
            (('b', 5), ('b', 15))
        """
        if len(before) != len(after):
            raise ArgumentError(
                f"both runs must have the same number of members, got {len(before)} and {len(after)}: "
                "use a run with as many cycles"
            )
        chosen = self.among(before)
        return replace(chosen, members=tuple(after[list(before).index(member)] for member in chosen.members))

    @property
    def shares(self) -> tuple[float, ...]:
        """The weight of each entry of `members`, relative to the largest one; 1 for each if no weights are given."""
        largest = max(self.weights, default=1.0)  # so that no sum overflows or vanishes in float32
        return tuple(weight / largest for weight in self.weights) or (1.0,) * len(self.members)

    def save(self, folder: str | PathLike[str]) -> None:
        """Save it as `combination.json` in a run folder."""
        path = Path(folder) / "combination.json"
        content = sealed.encode("combination", str(manifest.read(Path(folder)).run), asdict(self))
        durable.write(path, content)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> "Combination":
        """The combination in a run folder."""
        if (found := cls.find(folder)) is None:
            raise StoreError(f"{folder} contains no combination.json: fit and save a combination first")
        return found

    @classmethod
    def find(cls, folder: str | PathLike[str]) -> "Combination | None":
        """The combination in a run folder, or None if it has none."""
        path = Path(folder) / "combination.json"
        if (content := durable.find(path)) is None:
            return None
        return sealed.decode(path, content, "combination", cls, run=manifest.read(Path(folder)).run).value
