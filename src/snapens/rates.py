"""Rates: the learning rates of an optimizer, each group's peak times the factor of a schedule."""

import logging
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .errors import ArgumentError
from .schedule import Schedule

log = logging.getLogger("snapens")


class Rates:
    """Sets the rate of each parameter group. Its peak is its `initial_lr`, which is set to `lr` where it is missing.

    A peak of 0 freezes a group. Groups that are added to the optimizer later are included.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        self._optimizer, self._schedule = optimizer, schedule
        if not any(self.peaks):
            raise ArgumentError("lr must be greater than 0 in at least one group, got 0 in all of them: set it")
        if isinstance(shared := getattr(optimizer, "defaults", {}).get("lr"), Tensor):
            optimizer.defaults["lr"] = shared.clone()  # groups that are added later must start at the peak
        self._last: list[tuple[dict[str, Any], float]] = []  # the groups with float rates, and the rates that were set
        self._warned = False

    @property
    def peaks(self) -> list[float]:
        """The peak of each group."""
        return [_peak(group) for group in self._optimizer.param_groups]

    def restore(self, peaks: Sequence[float]) -> None:
        """Set the peaks from a checkpoint; an optimizer that was loaded without them has none."""
        groups = self._optimizer.param_groups
        for group, peak in zip(groups, peaks, strict=True) if len(groups) == len(peaks) else ():
            group["initial_lr"] = float(peak)

    def set(self, step: int) -> None:
        """Set the rates of a step, counted from 0."""
        factor = self._schedule(step)
        if not 0 <= factor < math.inf:
            raise ArgumentError(f"schedule must return finite factors of at least 0, got {factor} for step {step}")
        self._last = []
        for group in self._optimizer.param_groups:
            peak = group.get("initial_lr")
            if type(peak) is not float:  # at the start, after loading, or for a group that was added later
                if peak is None and step and isinstance(group["lr"], Tensor):
                    group["lr"] = group["lr"].clone()  # it is the default of the optimizer, which groups may share
                peak = group["initial_lr"] = _peak(group)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(peak * factor)
            else:
                group["lr"] = peak * factor
                self._last.append((group, group["lr"]))

    def warn_if_changed(self) -> None:
        """Warn once if something else, such as a second scheduler, has changed a rate since it was set."""
        # loading a checkpoint replaces the groups of the optimizer, and the old groups keep their rates
        changed = [(rate, group["lr"]) for group, rate in self._last if group["lr"] != rate]
        if changed and not self._warned:
            self._warned = True
            log.warning(
                "the learning rate was set to %g, but something else changed it to %g, and step() will overwrite it: "
                "remove the other scheduler, or pass drive_lr=False",
                *changed[0],
            )


def _peak(group: dict[str, Any]) -> float:
    peak = group.get("initial_lr", group.get("lr"))
    if peak is None or not 0 <= peak < math.inf:
        raise ArgumentError(
            f"lr must be a finite number of at least 0 in every group, got {peak}: set it, or pass drive_lr=False"
        )
    return float(peak)
