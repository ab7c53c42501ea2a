"""Outputs: the predictions of the members of a run for one part of the data."""

from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .combination import Member
from .errors import ArgumentError, DamagedError
from .quality import Quality


@dataclass(frozen=True, eq=False)
class Outputs:
    """Log-probabilities (members, examples, classes) in float16, oldest member first, with the labels (examples,).

    `members` lists the (run, step) of each member. A run folder stores outputs by `part`: the lab writes "test" and
    "held_out"; other plain names are possible. Outputs that were neither saved nor loaded have no part.

    Examples:
        >>> probabilities = [[[0.9, 0.1]], [[0.4, 0.6]]]  # two members, one example, two classes
        >>> outputs = Outputs((("a", 4), ("a", 8)), np.log(probabilities).astype(np.float16), labels=np.array([0]))
        >>> outputs
        Outputs(members=2, examples=1, classes=2, part=None)
        >>> outputs.member_errors
        [0.0, 1.0]
    """

    members: tuple[Member, ...]
    log_probabilities: NDArray[np.float16]
    labels: NDArray[np.int64]
    part: str | None = None

    def __repr__(self) -> str:
        members, examples, classes = self.log_probabilities.shape
        return f"Outputs(members={members}, examples={examples}, classes={classes}, part={self.part!r})"

    def __post_init__(self) -> None:
        found, labels = self.log_probabilities, self.labels
        if len(set(self.members)) != len(self.members):
            raise ArgumentError(f"members must be distinct, got {self.members}")
        if found.dtype != np.float16 or found.ndim != 3 or 0 in found.shape or len(found) != len(self.members):
            raise ArgumentError(
                f"log_probabilities must be float16 of shape ({len(self.members)} members, examples, classes), "
                f"got {found.dtype} of shape {found.shape}"
            )
        if not np.isfinite(found.max(-1)).all():
            raise ArgumentError(
                "log_probabilities must not contain NaN, nor -inf for all classes of an example: check the scores"
            )
        classes = found.shape[-1]
        fit = labels.dtype == np.int64 and labels.shape == found.shape[1:2]
        if not fit or not 0 <= labels.min() <= labels.max() < classes:
            got = f"values from {labels.min()} to {labels.max()}" if fit else f"{labels.dtype} of shape {labels.shape}"
            raise ArgumentError(
                f"labels must be int64, one per example ({found.shape[1]}), from 0 to {classes - 1}, got {got}: "
                "convert them to class indices"
            )

    @classmethod
    def load(cls, folder: str | PathLike[str], part: str = "test") -> "Outputs":
        """Read a part from a run folder, for exactly the members in its manifest."""
        from .storage import parts  # tensor files need torch, metrics do not

        members, found, labels = parts.load(Path(folder), part)
        try:
            return cls(members, found, labels, part)
        except ArgumentError as error:  # format 1 had no checksum of its own
            raise DamagedError(f"{folder} must contain unaltered outputs, got {error}: restore them") from error

    def save(self, folder: str | PathLike[str], part: str) -> "Outputs":
        """Store these outputs as a part of the run folder of their snapshots; an existing part is replaced.

        Every snapshot of the run must be a member. Returns the outputs with the name of the part.
        """
        from .storage import parts

        if absent := sorted(set(parts.PartFolder(Path(folder), part).snapshots) - set(self.steps)):
            raise ArgumentError(
                f"outputs must be those of every snapshot in {folder}, but those of steps {absent} are missing: "
                "compute them with an ensemble of all members"
            )
        self._save(Path(folder), part, {}, replace=True)
        return replace(self, part=part)

    def append(
        self, folder: str | PathLike[str], part: str, snapshot: str | None = None, *, replace: bool = False
    ) -> None:
        """Add one member to a part, or `replace` all others by it.

        `snapshot` is the name of its snapshot if that is committed afterwards.
        """
        if len(self.members) != 1:
            raise ArgumentError(
                f"outputs must be those of one member to be appended, got {len(self.members)}: use save()"
            )
        self._save(Path(folder), part, {self.steps[0]: snapshot} if snapshot else {}, replace=replace)

    def _save(self, folder: Path, part: str, names: dict[int, str], replace: bool) -> None:
        from .storage import parts

        files = parts.PartFolder(folder, part)
        names = files.snapshots | names
        if missing := [member for member in self.members if member[0] != files.run or member[1] not in names]:
            raise ArgumentError(
                f"members must be snapshots of the run in {folder} ({files.run}, steps {list(names)}), got {missing}"
            )
        rows = zip(self.steps, self.log_probabilities, strict=True)
        parts.save(folder, part, {step: (names[step], row) for step, row in rows}, self.labels, replace=replace)

    @property
    def steps(self) -> tuple[int, ...]:
        """The step of each member."""
        return tuple(step for _, step in self.members)

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(members, examples, classes), oldest member first, each row with the sum 1."""
        found: NDArray[np.float64] = np.exp(self.log_probabilities.astype(np.float64))
        found /= found.sum(-1, keepdims=True)
        return found

    @cached_property
    def quality(self) -> Quality:
        """The quality of the members, alone and together."""
        return Quality.of(self.log_probabilities, self.labels)

    @property
    def member_errors(self) -> list[float]:
        """The error of each member alone, as a fraction, oldest first."""
        return [score.error for score in self.quality.alone.scores]

    @property
    def ensemble_errors(self) -> list[float]:
        """The error of the last m members together, for m = 1 … M."""
        return [score.error for score in self.quality.last.scores]
