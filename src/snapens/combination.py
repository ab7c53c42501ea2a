"""Combination: how members are combined into one prediction."""

import math
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path

from .errors import ArgumentError, StoreError
from .storage import durable, manifest, sealed


@dataclass(frozen=True)
class Combination:
    """Which members are averaged, with which weights, at which temperature, and when a prediction may stop early.

    - `members`: (run, step) of each snapshot; or, instead, `newest`: use this many of the last members of a run.
    - `weights`: one per member, in the same order (with `newest`, oldest first); empty for equal weights.
    - `temperature`: the pooled log-probabilities are divided by it.
    - `exit_threshold`: the confidence at which no further member is evaluated; None evaluates all of them.

    Examples:
        >>> Combination.last(3).newest
        3
        >>> Combination((("a" * 32, 4), ("a" * 32, 8)), weights=(1.0, 3.0)).weights
        (1.0, 3.0)
    """

    members: tuple[tuple[str, int], ...] = ()
    weights: tuple[float, ...] = ()
    temperature: float = 1.0
    exit_threshold: float | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple((str(run), int(step)) for run, step in self.members))
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))
        count = len(self.members) if self.newest is None else self.newest
        if (self.newest is not None and self.members) or count < 1:
            raise ArgumentError(
                f"members must be at least one (run, step), or newest at least 1 instead, "
                f"got members={self.members} and newest={self.newest}"
            )
        if len(set(self.members)) != len(self.members):
            raise ArgumentError(f"members must be distinct, got {self.members}: use weights")
        if any(not run or step < 1 for run, step in self.members):
            raise ArgumentError(f"members must have the name of a run and a step of at least 1, got {self.members}")
        if self.weights and (
            len(self.weights) != count
            or not all(0 <= weight < math.inf for weight in self.weights)
            or not any(self.weights)
        ):
            raise ArgumentError(
                f"weights must be {count} finite numbers of at least 0, one per member, not all 0, got {self.weights}"
            )
        if not 0 < self.temperature < math.inf:
            raise ArgumentError(f"temperature must be a finite number greater than 0, got {self.temperature}")
        if self.exit_threshold is not None and not 0 < self.exit_threshold <= 1:
            raise ArgumentError(f"exit_threshold must be between 0 and 1, or None, got {self.exit_threshold}")

    @classmethod
    def last(cls, m: int) -> "Combination":
        """The last m members of a run, with equal weights."""
        return cls(newest=m)

    def save(self, folder: str | PathLike[str]) -> None:
        """Save it as `combination.json` in a run folder."""
        path = Path(folder) / "combination.json"
        content = sealed.encode("combination", str(manifest.read(Path(folder)).run), asdict(self))
        durable.write(path, content)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> "Combination":
        """The combination in a run folder."""
        path, run = Path(folder) / "combination.json", manifest.read(Path(folder)).run
        try:
            return sealed.read(path, "combination", cls, run=run).value
        except FileNotFoundError as error:
            raise StoreError(f"{folder} contains no combination.json: fit and save a combination first") from error
