"""Trace: the training loss, time and environment of a run, from its folder."""

from dataclasses import dataclass
from typing import Any

from ...errors import DamagedError
from ...storage.typed import decoded
from .run import Run

# the fields of a line of the log that are read, with their types
_TRAINED: dict[str, Any] = {"step": int, "epoch": float, "lr": float, "loss": float}
_FINISHED: dict[str, Any] = {"seconds": float | None, "pack": int | None}
_FINISHED |= dict.fromkeys(("device", "torch", "snapens", "sources"), str | None)


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
            trained, finished = [line for line in run.log() if line.get("event") == "trained"], run.finish_event or {}
            columns: list[Any] = [
                tuple(decoded(kind, line[name], name) for line in trained) for name, kind in _TRAINED.items()
            ]
            return cls(images, *columns, *(decoded(kind, finished.get(name), name) for name, kind in _FINISHED.items()))
        except (KeyError, ValueError) as error:
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
