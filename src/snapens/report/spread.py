"""Spread: some values, their mean and their standard deviation."""

from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Spread:
    """One value per run or repetition.

    Examples:
        >>> spread = Spread((21.0, 22.0))
        >>> spread.n, spread.mean, round(spread.deviation, 3)
        (2, 21.5, 0.707)
    """

    values: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        """The number of values."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the sample; None for fewer than two values."""
        return stdev(self.values) if self.n > 1 else None
