"""Between: errors of weights on the straight line from each earlier snapshot to the last one, the paper's Figure 5."""

from dataclasses import dataclass

from ...errors import ArgumentError

Series = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """Test errors in percent at each of `Between.last_share`, on the line from a snapshot, counted from 1."""

    snapshot: int
    interpolated_percent: Series
    """With BatchNorm's running statistics interpolated like the weights."""
    estimated_percent: Series
    """With BatchNorm statistics re-estimated from training images, as is necessary for averages of weights."""

    @property
    def bump_points(self) -> float:
        """How far the error with re-estimated statistics rises above the straight line between the errors of the ends.

        It is negative if the error never rises above this line. The points are evenly spaced.
        """
        first, *_, last = errors = self.estimated_percent
        steps = len(errors) - 1
        return max(error - (first + (last - first) * k / steps) for k, error in enumerate(errors) if 0 < k < steps)

    @property
    def dip_points(self) -> float:
        """How much lower the error with re-estimated statistics is half-way than at both ends."""
        errors = self.estimated_percent
        return min(errors[0], errors[-1]) - errors[len(errors) // 2]


@dataclass(frozen=True)
class Between:
    """The lines of a run, earliest snapshot first; `last_share` is the paper's λ: 1 is the last snapshot."""

    last_share: Series
    lines: tuple[Line, ...]
    estimated_from: str
    """The images from which the statistics were estimated."""

    def __post_init__(self) -> None:
        shares, snapshots = self.last_share, [line.snapshot for line in self.lines]
        if len(shares) < 3 or any(abs(share - k / (len(shares) - 1)) > 1e-9 for k, share in enumerate(shares)):
            raise ArgumentError(f"last_share must go from 0 to 1 in equal steps, got {shares}")
        if snapshots != sorted(set(snapshots)) or any(snapshot < 1 for snapshot in snapshots):
            raise ArgumentError(f"lines must be of ascending snapshots, counted from 1, got {snapshots}")
        for line in self.lines:
            for errors in (line.interpolated_percent, line.estimated_percent):
                if len(errors) != len(shares) or not all(0 <= error <= 100 for error in errors):
                    raise ArgumentError(f"a line must have a percentage for each of {len(shares)} shares, got {errors}")
