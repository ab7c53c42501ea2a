"""Learning-rate schedules: a pure function from a step to a factor on each group's own rate."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from .errors import ArgumentError, whole_number


class Schedule(ABC):
    """A factor for every step, and the steps after which a snapshot is taken.

    `schedule(step)` is the factor for the step that follows `step` completed ones.
    To write your own schedule, derive from this class and define the two attributes and the two abstract methods; make
    it a frozen dataclass, so that a checkpoint can compare its fields.
    """

    total_steps: int
    """T: the number of optimizer steps."""
    snapshot_steps: tuple[int, ...]
    """The numbers of completed steps after which a snapshot is taken; ascending, the last is `total_steps`."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The factor on the peak rate, for a step counted from 0; `total_steps`, after the last one, is valid too."""

    @property
    @abstractmethod
    def restart_steps(self) -> tuple[int, ...]:
        """The steps that begin a new cycle, except for the first cycle."""

    def table(self, lr: float = 1.0) -> str:
        """A preview with one line per snapshot: its first and last step, and the rates of these steps."""
        lines = [f"{'snapshot':>8} {'first step':>10} {'its rate':>10} {'last step':>10} {'its rate':>10}"]
        for k, end in enumerate(self.snapshot_steps):
            first, last = self.snapshot_steps[k - 1] if k else 0, end - 1
            lines.append(f"{k + 1:>8} {first:>10} {lr * self(first):>10.4g} {last:>10} {lr * self(last):>10.4g}")
        return "\n".join(lines)


@dataclass(frozen=True)
class CyclicCosine(Schedule):
    """The paper's equation 2: `cycles` cosines from 1 down to `min_factor`, a snapshot at the end of each.

    Cycle k, counted from 0, ends after `warmup_steps + (k + 1) * (T - warmup_steps) // M` steps: any T of at least M
    steps after the warm-up works, and the lengths of two cycles differ by at most one step. With `first`, the first
    cycle is that many times as long as each of the others. With `later_peak`, the others start at that factor.

    Examples:
        >>> schedule = CyclicCosine(total_steps=12, cycles=3)
        >>> schedule
        CyclicCosine(total_steps=12, cycles=3, warmup_steps=0, min_factor=0.0, snapshot_steps=(4, 8, 12))
        >>> [round(schedule(step), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 1.0]
        >>> print(schedule.table(lr=0.1))
        snapshot first step   its rate  last step   its rate
               1          0        0.1          3    0.01464
               2          4        0.1          7    0.01464
               3          8        0.1         11    0.01464
        >>> CyclicCosine(total_steps=12, cycles=3, first=4).snapshot_steps
        (8, 10, 12)
        >>> CyclicCosine(total_steps=12, cycles=3, first=4, later_peak=0.5)(8)
        0.5
    """

    total_steps: int
    cycles: int
    _: KW_ONLY
    warmup_steps: int = 0
    min_factor: float = 0.0
    first: float = 1.0
    later_peak: float = 1.0
    snapshot_steps: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _require(1 <= self.first < math.inf, "first", "be a finite number of at least 1", self.first)
        _make_whole(self, total_steps=1, cycles=1, warmup_steps=0)
        steps = _cycle_ends(self.total_steps, "cycles", self.cycles, self.warmup_steps, self.first)
        _require(0 <= self.min_factor < 1, "min_factor", "be at least 0 and less than 1", self.min_factor)
        rule = f"be more than min_factor={self.min_factor} and at most 1"
        _require(self.min_factor < self.later_peak <= 1, "later_peak", rule, self.later_peak)
        object.__setattr__(self, "snapshot_steps", steps)

    def __repr__(self) -> str:
        # without newer parameters at their default: checkpoints of format 1 hold this text
        newer = [name for name in ("first", "later_peak") if getattr(self, name) != 1]
        names = ("total_steps", "cycles", "warmup_steps", "min_factor", *newer, "snapshot_steps")
        return f"CyclicCosine({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def restart_steps(self) -> tuple[int, ...]:
        """The steps at which the rate jumps back to its peak."""
        return self.snapshot_steps[:-1]

    def __call__(self, step: int) -> float:
        """The factor on the peak rate, for a step counted from 0."""
        _require(step >= 0, "step", "be at least 0", step)
        # 1. warm-up: a straight line that reaches the peak with the first step of the first cycle
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        # 2. after the last step the rate stays at its minimum
        if step >= self.total_steps:
            return self.min_factor
        # 3. eq. 2 counts t from 1; step counts from 0
        cycle = bisect_right(self.snapshot_steps, step)  # the first cycle that ends after this step
        begin, end = self.snapshot_steps[cycle - 1] if cycle else self.warmup_steps, self.snapshot_steps[cycle]
        cosine = (math.cos(math.pi * (step - begin) / (end - begin)) + 1) / 2
        peak = self.later_peak if cycle else 1
        return self.min_factor + (peak - self.min_factor) * cosine


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The standard schedule: the factor is multiplied by `gamma` at each milestone (a share of T).

    Its `snapshots` snapshots, spaced as the cycles of `CyclicCosine`, form the paper's NoCycle ensemble.

    Examples:
        >>> schedule = StepDecay(total_steps=100, snapshots=5)
        >>> schedule.snapshot_steps
        (20, 40, 60, 80, 100)
        >>> [round(schedule(step), 6) for step in (0, 49, 50, 74, 75, 99)]
        [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """

    total_steps: int
    snapshots: int = 1
    _: KW_ONLY
    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1
    warmup_steps: int = 0
    snapshot_steps: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        _make_whole(self, total_steps=1, snapshots=1, warmup_steps=0)
        steps = _cycle_ends(self.total_steps, "snapshots", self.snapshots, self.warmup_steps)
        _require(0 < self.gamma <= 1, "gamma", "be more than 0 and at most 1", self.gamma)
        object.__setattr__(self, "milestones", tuple(self.milestones))
        _require(
            all(0 < share < 1 for share in self.milestones),
            "milestones",
            "be shares of T, each between 0 and 1",
            self.milestones,
        )
        object.__setattr__(self, "snapshot_steps", steps)

    @property
    def restart_steps(self) -> tuple[int, ...]:
        """Empty: the rate never rises again."""
        return ()

    def __call__(self, step: int) -> float:
        """The factor on the peak rate, for a step counted from 0."""
        _require(step >= 0, "step", "be at least 0", step)
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        return self.gamma ** sum(step >= round(share * self.total_steps) for share in self.milestones)


def missing_cycles(schedule: Schedule, completed: int) -> str:
    """The cycles whose snapshot comes after the completed steps, such as "cycles 2, 3"; empty if there are none.

    Examples:
        >>> missing_cycles(CyclicCosine(12, 3), 5), missing_cycles(CyclicCosine(12, 3), 12)
        ('cycles 2, 3', '')
    """
    missing = [str(cycle) for cycle, step in enumerate(schedule.snapshot_steps, 1) if step > completed]
    return f"{'cycle' if len(missing) == 1 else 'cycles'} {', '.join(missing)}" if missing else ""


def check_order(schedule: Schedule) -> None:
    """Reject a user's own schedule whose snapshot steps do not ascend to the last step."""
    steps = (0, *schedule.snapshot_steps)
    if steps[-1] != schedule.total_steps or any(a >= b for a, b in pairwise(steps)):
        raise ArgumentError(f"snapshot_steps must ascend to total_steps={schedule.total_steps}, got {steps[1:]}")


def description(schedule: Schedule) -> dict[str, Any]:
    """The type, steps and parameters of a schedule, as plain values that JSON can store."""
    steps = {"total_steps": int(schedule.total_steps), "snapshot_steps": list(map(int, schedule.snapshot_steps))}
    values = {name: getattr(schedule, name) for name in getattr(schedule, "__dataclass_fields__", ())}
    plain = {name: value if isinstance(value, (int, float, str)) else repr(value) for name, value in values.items()}
    return {"type": type(schedule).__name__, **plain, **steps}


def differences(schedule: Schedule, saved: Any) -> dict[str, tuple[Any, Any]]:
    """The parameters that differ from the description of a schedule in a checkpoint: name -> (own, saved)."""
    own = description(schedule)
    if not isinstance(saved, Mapping):  # format 1 stored the repr
        return {} if saved == repr(schedule) else {"repr": (repr(schedule), saved)}
    known = getattr(schedule, "__dataclass_fields__", {})
    defaults = {name: field.default for name, field in known.items() if field.default is not MISSING}
    saved = {**defaults, **saved}  # a parameter that did not exist yet had its default
    both = {name: (own.get(name), saved.get(name)) for name in {**own, **saved}}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _make_whole(schedule: Schedule, **least: int) -> None:
    """Convert fields of a frozen schedule to ints of at least the given values."""
    for name, value in least.items():
        object.__setattr__(schedule, name, whole_number(name, getattr(schedule, name), value))


def _cycle_ends(total_steps: int, name: str, count: int, warmup_steps: int, first: float = 1) -> tuple[int, ...]:
    """The completed steps at the end of each of `count` cycles after the warm-up, the first `first` times as long."""
    steps = total_steps - warmup_steps
    if steps < count:
        remedy = f" or {name}={steps}" if steps > 0 else ""
        raise ArgumentError(
            f"total_steps must have at least one step for each of {name}={count} after warmup_steps={warmup_steps}, "
            f"got {total_steps}: use total_steps={warmup_steps + count}{remedy}"
        )
    longer = Fraction(str(first))  # exact: the last cycle must end with the last step
    least = math.ceil(longer) + count - 1
    if steps < least:
        raise ArgumentError(
            f"total_steps must have at least one step per cycle, and first={first} for the first, after warmup_steps="
            f"{warmup_steps}, got {total_steps}: use total_steps={warmup_steps + least} or a smaller first"
        )
    return tuple(warmup_steps + math.floor((longer + k) * steps / (longer + count - 1)) for k in range(count))


def _require(rule: bool, argument: str, must: str, value: Any) -> None:
    if not rule:
        raise ArgumentError(f"{argument} must {must}, got {value!r}")
