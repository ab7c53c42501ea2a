"""Between: errors of weights on the straight line from each earlier snapshot to the last one, the paper's Figure 5."""

from dataclasses import dataclass

from ..errors import ArgumentError

Series = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """Test errors in percent, at each of `Between.last_share`, on the way from a snapshot, counted from 1."""

    snapshot: int
    interpolated_percent: Series
    """With BatchNorm's running statistics interpolated as the weights are."""
    estimated_percent: Series
    """With statistics estimated anew from training images, as averages of weights need it."""

    @property
    def bump_points(self) -> float:
        """How far the error rises above both ends, statistics estimated anew; less than 0 where it never does."""
        first, *between, last = self.estimated_percent
        return max(between) - max(first, last)


@dataclass(frozen=True)
class Between:
    """The lines of a run, the earliest snapshot's first; `last_share` is the paper's λ: 1 is the last snapshot."""

    last_share: Series
    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        shares, snapshots = self.last_share, [line.snapshot for line in self.lines]
        if len(shares) < 3 or (shares[0], shares[-1]) != (0, 1) or list(shares) != sorted(set(shares)):
            raise ArgumentError(f"last_share must ascend from 0 to 1, with something between, got {shares}")
        if snapshots != sorted(set(snapshots)) or any(snapshot < 1 for snapshot in snapshots):
            raise ArgumentError(f"lines must be of ascending snapshots, counted from 1, got {snapshots}")
        for line in self.lines:
            for errors in (line.interpolated_percent, line.estimated_percent):
                if len(errors) != len(shares) or not all(0 <= error <= 100 for error in errors):
                    raise ArgumentError(f"a line must have a percentage for each of {len(shares)} shares, got {errors}")
