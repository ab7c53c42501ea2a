"""Outputs: the predictions of the members of a run for one part of the data."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import metrics
from .errors import ArgumentError, DamagedError


@dataclass(frozen=True, eq=False)
class Outputs:
    """Log-probabilities (members, examples, classes) in float16, oldest member first, with the labels (examples,).

    A run folder stores them by part: the lab writes "test" and "held_out"; other plain names are possible.

    Examples:
        >>> outputs = Outputs((4, 8), np.log([[[0.9, 0.1]], [[0.4, 0.6]]]).astype(np.float16), np.array([0]))
        >>> outputs.member_errors
        [0.0, 1.0]
    """

    steps: tuple[int, ...]
    log_probabilities: NDArray[np.float16]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        found, labels = self.log_probabilities, self.labels
        if list(self.steps) != sorted(set(self.steps)):
            raise ArgumentError(f"steps must be ascending, got {self.steps}")
        if found.dtype != np.float16 or found.ndim != 3 or 0 in found.shape or len(found) != len(self.steps):
            raise ArgumentError(
                f"log_probabilities must be float16 of shape ({len(self.steps)} steps, examples, classes), "
                f"got {found.dtype} of {found.shape}"
            )
        if not np.isfinite(found.max(-1)).all():
            raise ArgumentError("log_probabilities must not be NaN, nor -inf for all classes of an example")
        classes = found.shape[-1]
        if (
            labels.dtype != np.int64
            or labels.shape != found.shape[1:2]
            or not (0 <= labels.min() <= labels.max() < classes)
        ):
            raise ArgumentError(
                f"labels must be int64, one per example ({found.shape[1]}), from 0 to {classes - 1}, "
                f"got {labels.dtype} of shape {labels.shape}"
            )

    @classmethod
    def load(cls, folder: str | PathLike[str], part: str = "test") -> "Outputs":
        """Read a part from a run folder, for exactly the members in its manifest."""
        from .storage import parts  # tensor files need torch, metrics do not

        steps, found, labels = parts.load(Path(folder), part)
        try:
            return cls(steps, found, labels)
        except ArgumentError as error:  # format 1 had no checksum of its own
            raise DamagedError(f"{folder} must contain unaltered outputs, got {error}: restore them") from error

    def save(self, folder: str | PathLike[str], part: str) -> None:
        """Store these outputs as a part of the run folder with their snapshots, and replace that part if it exists."""
        self._save(Path(folder), part, {}, replace=True)

    def append(
        self, folder: str | PathLike[str], part: str, snapshot: str | None = None, *, replace: bool = False
    ) -> None:
        """Add one member to a part, or `replace` all others by it.

        `snapshot` is the name of its snapshot if that is committed afterwards.
        """
        if len(self.steps) != 1:
            raise ArgumentError(
                f"outputs must be those of one member to be appended, got {len(self.steps)}: use save()"
            )
        self._save(Path(folder), part, {self.steps[0]: snapshot} if snapshot else {}, replace=replace)

    def _save(self, folder: Path, part: str, names: dict[int, str], replace: bool) -> None:
        from .storage import parts

        names = parts.PartFolder(folder, part).snapshots | names
        if missing := [step for step in self.steps if step not in names]:
            raise ArgumentError(f"steps must be those of snapshots in {folder} ({list(names)}), got {missing}")
        members = {step: (names[step], rows) for step, rows in zip(self.steps, self.log_probabilities, strict=True)}
        parts.save(folder, part, members, self.labels, replace=replace)

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(members, examples, classes), oldest member first, each row with the sum 1."""
        found: NDArray[np.float64] = np.exp(self.log_probabilities.astype(np.float64))
        found /= found.sum(-1, keepdims=True)
        return found

    @property
    def member_errors(self) -> list[float]:
        """The error of each member alone, as a fraction, oldest first."""
        return metrics.error(self.probabilities, self.labels).tolist()  # type: ignore[no-any-return]

    @property
    def ensemble_errors(self) -> list[float]:
        """The error of the last m members together, for m = 1 … M."""
        return [float(metrics.error(mean, self.labels)) for mean in running_means(self.probabilities[::-1])]


def running_means(members: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """The mean of the first 1, 2, … of (members, examples, classes), each a new array."""
    total = np.zeros_like(members[0])
    for k, member in enumerate(members, 1):
        total += member
        yield total / k
