"""Account: what one run says of itself, as numbers."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedError
from ..lab.recipe.recipe import Recipe
from ..lab.records.run import Run
from ..lab.records.scores import Running, Score
from ..outputs import Outputs

_RATE_POINTS = 400


@dataclass(frozen=True)
class Trace:
    """What the log says of the training; the last five are None before a run has finished."""

    steps: tuple[int, ...]
    epochs: tuple[float, ...]
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    seconds: float | None
    pack: int | None
    """How many runs shared the device."""
    device: str | None
    torch: str | None
    snapens: str | None

    @classmethod
    def of(cls, run: Run) -> "Trace":
        """From the lines of the log."""
        trained = [line for line in run.log() if line.get("event") == "trained"]
        finished = run.last_words or {}
        seconds, pack = finished.get("seconds"), finished.get("pack")
        device, torch, snapens = (finished.get(name) and str(finished[name]) for name in ("device", "torch", "snapens"))
        epochs, rates, losses = (tuple(_finite(line[name]) for line in trained) for name in ("epoch", "lr", "loss"))
        return cls(
            tuple(int(line["step"]) for line in trained),
            epochs,
            rates,
            losses,
            None if seconds is None else _finite(seconds),
            None if pack is None else int(pack),
            device,
            torch,
            snapens,
        )

    def loss_at(self, step: int) -> float | None:
        """The mean loss of the stretch that ends with this step."""
        return self.losses[self.steps.index(step)] if step in self.steps else None


@dataclass(frozen=True)
class Account:
    """A run, how it was trained, and what its members are worth on the test images, alone and together."""

    name: str
    recipe: Recipe
    classes: tuple[str, ...]
    steps: tuple[int, ...]
    images: int
    """How many it was trained on."""
    trace: Trace
    members: tuple[Score, ...]
    """Each alone, oldest first."""
    first: tuple[Score, ...]
    """The first 1 … M together."""
    last: tuple[Score, ...]
    """The last 1 … M together."""
    wrong: NDArray[np.bool_]
    """(2, examples): where the last snapshot errs, and where all together do."""

    @property
    def complete(self) -> bool:
        """Whether all snapshots of the recipe are there."""
        return len(self.members) == self.recipe.cycles

    @classmethod
    def of(cls, run: Run, outputs: Outputs, running: Running) -> "Account":
        """From a run and what its members say of the test images, alone and as their mean grows."""
        p, labels = outputs.probabilities, outputs.labels
        classes = tuple(str(name) for name in run.data.get("classes", ()))
        if len(classes) != p.shape[-1]:
            raise DamagedError(
                f"{run.path}/recipe.json must name the {p.shape[-1]} classes of the outputs, got {len(classes)} names: "
                "restore the file"
            )
        first, last = (Score.of_growing(members, labels) for members in (p, p[::-1]))
        members = tuple(Score.of(member, labels) for member in p)
        return cls(
            run.path.resolve().name,
            run.recipe,
            classes,
            run.snapshots.steps,
            _images(run),
            _trace(run),
            members,
            first,
            last,
            running.choice[[0, -1]] != labels,
        )

    @property
    def single(self) -> Score:
        """The last snapshot alone."""
        return self.members[-1]

    @property
    def ensemble(self) -> Score:
        """All snapshots together."""
        return self.last[-1]

    @property
    def minima(self) -> tuple[float, ...]:
        """The epochs at which snapshots were taken."""
        return tuple(step * self.recipe.batch / self.images for step in self.steps)

    def rates(self) -> tuple[list[float], list[float]]:
        """Epochs and learning rates of the schedule."""
        schedule = self.recipe.schedule(self.images)
        steps = set(np.linspace(0, schedule.total_steps - 1, _RATE_POINTS).astype(int).tolist())
        for restart in schedule.restart_steps:  # a jump is a vertical line
            steps |= {restart - 1, restart}
        ordered = sorted(steps)
        rates = [self.recipe.lr * schedule(step) for step in ordered]
        return [step * self.recipe.batch / self.images for step in ordered], rates


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is not finite")
    return number


def _images(run: Run) -> int:
    try:
        if (count := int(run.data["images"]["train"]["count"])) < 1:
            raise ValueError(count)
        return count
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{run.path}/recipe.json must count the training images: restore the file") from error


def _trace(run: Run) -> Trace:
    try:
        return Trace.of(run)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedError(
            f"{run.path}/log.jsonl must be what snapens wrote, got {type(error).__name__}: {error}: remove the line"
        ) from error
