"""TrainingLog: writes the mean loss of each interval of steps, and the speed, to a run's log."""

import time
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import NonFiniteError
from ...schedule import Schedule
from ..recipe.recipe import Recipe
from ..records.run import Run
from .world import World

_MOST_STEPS = 1000  # between two lines of the log; an epoch if that is shorter
_LEAST_SECONDS = 1.0  # of a measured speed: shorter times are inaccurate


def diverged(loss: float, where: str, snapshots: int) -> NonFiniteError:
    """The error for a loss that is not finite; a lower rate is another recipe, so it needs another folder.

    `snapshots` is the number of snapshots that the run has stored.
    """
    intact = "; stored snapshots are intact" if snapshots else ""
    return NonFiniteError(
        f"loss must be finite, got {loss} {where}: use a lower --lr and another run folder (--out){intact}"
    )


class TrainingLog:
    """Reads the losses of a run, without waiting for the device, and writes them to the run's log.

    Of the processes of `world`, only the first writes. If it cannot, all of them end, because they do not wait for it.
    """

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        schedule: Schedule,
        examples: int,
        losses: Tensor,
        stream: Any,
        world: World,
    ) -> None:
        self._run, self._recipe, self._schedule, self._examples = run, recipe, schedule, examples
        self._losses, self._stream, self._world = losses, stream, world
        self.steps = min(-(-examples // recipe.budget.batch), _MOST_STEPS)
        """The number of steps between two lines."""
        self.loss: float | None = None
        """The mean training loss of the interval that was logged last; see also `preview`."""
        self.images_per_second: float | None = None
        self.lines = 0
        """The number of lines that this object has added."""
        self._stretches: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()
        """Steps up to the first number, and their mean loss, which has been copied to the host after the event."""
        self._timed_examples, self._timed_seconds = 0, 0.0
        self.begin(0, 0.0)

    def begin(self, completed: int, seconds: float) -> None:
        """Start the clock; a resumed run has already completed some steps and used some seconds."""
        self._completed = self._first = completed
        self._seen = self._started = time.monotonic()
        self._began = self._seen - seconds

    @property
    def seconds(self) -> float:
        """The training time, including the time before the run was resumed."""
        return time.monotonic() - self._began

    def speed(self, completed: int) -> float | None:
        """Images per second, estimated from the first steps until they are measured; None before the first step."""
        if self.images_per_second is not None:
            return self.images_per_second
        done = (completed - self._first) * self._recipe.budget.batch
        return done / (time.monotonic() - self._started) if done else None

    def end_stretch(self, completed: int) -> None:
        """Queue the mean loss since the last line; it is written when it has arrived on the host."""
        before = max((step for step in self._schedule.snapshot_steps if step < completed), default=0)
        first = max(before, (completed - 1) // self.steps * self.steps)
        mean = self._losses[first:completed].mean()
        if self._stream is None:
            self._stretches.append((completed, mean, None))
        else:
            held = torch.empty_like(mean, device="cpu", pin_memory=True).copy_(mean, non_blocking=True)
            self._stretches.append((completed, held, self._stream.record_event()))

    def preview(self, completed: int) -> None:
        """Before the first line, set `loss` to the mean of the steps so far; only on a CPU, which need not wait."""
        if self._stream is None and self._completed == self._first:
            self.loss = float(self._losses[self._first : completed].mean())

    def flush(self, wait: bool = False) -> None:
        """Write the lines whose losses have arrived, or all if `wait`; a loss that is not finite is an error."""
        while self._stretches:
            completed, mean, event = self._stretches[0]
            if event is not None and wait:
                event.synchronize()
            elif event is not None and not event.query():  # type: ignore[no-untyped-call]
                return
            self._stretches.popleft()
            self._write(completed, float(mean))

    def note(self, event: str, **values: Any) -> None:
        """Add a line."""
        if self._world.is_first:
            with self._world.failing_alone():
                self._run.note(event, **values)
            self.lines += 1

    def restart_clock(self) -> None:
        """Exclude the time since the last line, such as that of an evaluation, from the measured speed."""
        self._seen = time.monotonic()

    def _write(self, completed: int, loss: float) -> None:
        if not np.isfinite(loss):
            before = [step for step in self._schedule.snapshot_steps if step < completed]
            raise diverged(loss, f"up to step {completed}", len(before))
        batch, now = self._recipe.budget.batch, time.monotonic()
        self._measure_speed((completed - self._completed) * batch, now - self._seen)
        self.loss, self._completed, self._seen = loss, completed, now
        self.note(
            "trained",
            step=completed,
            epoch=round(completed * batch / self._examples, 4),
            lr=self._recipe.optimizer.lr * self._schedule(completed - 1),
            loss=loss,
            images_per_second=self.images_per_second and round(self.images_per_second),
            seconds=round(self.seconds, 3),
        )

    def _measure_speed(self, examples: int, seconds: float) -> None:
        self._timed_examples, self._timed_seconds = self._timed_examples + examples, self._timed_seconds + seconds
        if self._timed_seconds >= _LEAST_SECONDS:
            self.images_per_second = self._timed_examples / self._timed_seconds
            self._timed_examples, self._timed_seconds = 0, 0.0
