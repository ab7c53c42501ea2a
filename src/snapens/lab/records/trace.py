"""Trace: the training loss, time and environment of a run, from its folder."""

import math
from dataclasses import dataclass
from typing import Any

from ...errors import DamagedError
from .run import Run


@dataclass(frozen=True)
class Trace:
    """The training loss as it was logged, and how the run finished; fields after `losses` are None before the end.

    The trace of a loop of the user's own is empty.
    """

    images: int = 0
    """The number of training images."""
    steps: tuple[int, ...] = ()
    epochs: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    """Each is the mean since the previous logged step."""
    seconds: float | None = None
    pack: int | None = None
    """The number of runs that shared the device."""
    device: str | None = None
    torch: str | None = None
    snapens: str | None = None
    sources: str | None = None
    """Digests of the code that trained the run, separated by spaces."""

    @classmethod
    def of(cls, run: Run) -> "Trace":
        """Read recipe.json and the log."""
        images = _images(run)
        try:
            trained = [line for line in run.log() if line.get("event") == "trained"]
            epochs, rates, losses = (tuple(_finite(line[name]) for line in trained) for name in ("epoch", "lr", "loss"))
            finished = run.finish_event or {}
            seconds, pack = finished.get("seconds"), finished.get("pack")
            return cls(
                images,
                tuple(int(line["step"]) for line in trained),
                epochs,
                rates,
                losses,
                None if seconds is None else _finite(seconds),
                None if pack is None else int(pack),
                *(_text(finished.get(name)) for name in ("device", "torch", "snapens", "sources")),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedError(
                f"{run.path}/log.jsonl must be unaltered, got {type(error).__name__}: {error}: "
                "restore the file or remove the line"
            ) from error

    def loss_at(self, step: int) -> float | None:
        """The loss logged at this step; None if there is none."""
        return self.losses[self.steps.index(step)] if step in self.steps else None


def _images(run: Run) -> int:
    try:
        if (count := int(run.data["images"]["train"]["count"])) < 1:
            raise ValueError(count)
        return count
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{run.path}/recipe.json must state the number of training images: restore the file"
        ) from error


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is not finite")
    return number


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
