"""Lines between the last snapshot and the earlier ones, as a run folder keeps them (the paper's Figure 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DamagedError
from ..lab.runs import Run


@dataclass(frozen=True)
class Line:
    """Test errors, fractions, from an earlier snapshot (λ = 0) to the last one (λ = 1), as the paper draws them."""

    step: int
    mixing: tuple[float, ...]
    """λ, ascending."""
    interpolated: tuple[float, ...]
    """BatchNorm's statistics on the line, like the weights."""
    estimated: tuple[float, ...]
    """BatchNorm's statistics estimated anew."""

    @property
    def bump(self) -> float:
        """How far the error rises above both ends, statistics estimated anew; less than 0 where it never does."""
        first, *between, last = self.estimated
        return max(between, default=0.0) - max(first, last)


def read(run: Run) -> list[Line]:
    """The lines of a run, the earliest snapshot first; none where they were not measured."""
    curves = run.curves()
    if curves is None:
        return []
    try:
        mixing = tuple(1 - float(share) for share in reversed(curves["grid"]))
        found = [_line(entry, mixing, run.snapshots.steps) for entry in curves["lines"]]
        return sorted(found, key=lambda line: line.step)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(
            f"{run.path}/curves.json must be what snapens wrote, got {type(error).__name__}: {error}: remove it"
        ) from error


def _line(entry: Any, mixing: tuple[float, ...], steps: Sequence[int]) -> Line:
    errors = [tuple(map(float, reversed(entry[name]))) for name in ("interpolated", "estimated")]
    if entry["step"] not in steps or any(len(values) != len(mixing) or len(mixing) < 2 for values in errors):
        raise ValueError(f"a line of step {entry['step']}")
    return Line(int(entry["step"]), mixing, *errors)
