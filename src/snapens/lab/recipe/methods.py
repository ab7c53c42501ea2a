"""Methods: the schedule of the learning rate, and what happens when a new cycle begins."""

from dataclasses import dataclass, field
from typing import Literal

from ...schedule import CyclicCosine, Schedule, StepDecay
from .value import Value, require, require_at_least

Restart = Literal["warm", "fresh"]


@dataclass(frozen=True)
class Method(Value):
    """The schedule of a run, and the start of each cycle."""

    cycles: int = 5
    """M: the number of snapshots."""
    first_cycle: float = field(default=1.0, kw_only=True)
    """The length of the first cycle as a multiple of the others."""
    later_peak: float = field(default=1.0, kw_only=True)
    """The peak rate of every cycle after the first, as a multiple of the first peak."""
    restart_noise: float = field(default=0.0, kw_only=True)
    """The noise that is added to the weights when a cycle continues from the previous one, relative to their size."""

    def check(self) -> None:
        """There is at least one cycle; the first is not shorter than the others, and its peak not lower."""
        require_at_least(1, cycles=self.cycles, first_cycle=self.first_cycle)
        require(0 < self.later_peak <= 1, "later_peak", "be more than 0 and at most 1", self.later_peak)
        require_at_least(0, restart_noise=self.restart_noise)

    def schedule(self, total_steps: int, warmup_steps: int) -> Schedule:
        """The factor on the peak rate at every step."""
        shape = {"first": self.first_cycle, "later_peak": self.later_peak}
        return CyclicCosine(total_steps, self.cycles, warmup_steps=warmup_steps, **shape)

    def begins_fresh(self, cycle: int) -> bool:
        """Whether a cycle, counted from 0, starts from fresh weights; the first cycle always does."""
        return cycle == 0


@dataclass(frozen=True)
class Single(Method):
    """The rate is multiplied by 0.1 at 50 % and 75 %; the snapshots taken on the way form the paper's NoCycle."""

    def check(self) -> None:
        """There are no restarts."""
        super().check()
        require(self.first_cycle == 1, "first_cycle", "be 1 for the method single", self.first_cycle)
        require(self.later_peak == 1, "later_peak", "be 1 for the method single", self.later_peak)
        require(not self.restart_noise, "restart_noise", "be 0 for the method single", self.restart_noise)

    def schedule(self, total_steps: int, warmup_steps: int) -> Schedule:
        """The standard schedule."""
        return StepDecay(total_steps, self.cycles, warmup_steps=warmup_steps)


@dataclass(frozen=True)
class Snapshot(Method):
    """Cosine cycles, each of which continues from the end of the previous one."""


@dataclass(frozen=True)
class SingleCycle(Method):
    """Cosine cycles, each from fresh weights."""

    def check(self) -> None:
        """No cycle continues from the previous one."""
        super().check()
        require(not self.restart_noise, "restart_noise", "be 0 for the method singlecycle", self.restart_noise)

    def begins_fresh(self, cycle: int) -> bool:
        """Every cycle."""
        return True


@dataclass(frozen=True)
class Grow(Method):
    """Cosine cycles that start as given by a pattern, which the paper proposes as future work."""

    pattern: tuple[Restart, ...] = ("fresh",)
    """The start of each cycle after the first, such as `warm warm fresh`; repeated as needed."""

    def check(self) -> None:
        """The pattern has at least one word."""
        super().check()
        require(bool(self.pattern), "pattern", "have at least one of the words 'warm' and 'fresh'", self.pattern)

    def begins_fresh(self, cycle: int) -> bool:
        """As given by the pattern."""
        return cycle == 0 or self.pattern[(cycle - 1) % len(self.pattern)] == "fresh"


METHODS: dict[str, type[Method]] = {"single": Single, "snapshot": Snapshot, "singlecycle": SingleCycle, "grow": Grow}
Method.kinds = METHODS
