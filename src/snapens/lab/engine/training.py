"""Training: one recipe on its way to its snapshots, in a run folder."""

import logging
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import __version__, metrics
from ...ensembler import SnapshotEnsembler
from ...errors import ArgumentError, DamagedError, NonFiniteError, StoreError
from ..data.images import Images
from ..recipe.recipe import Recipe
from ..records import gallery, source
from ..records.run import Run, State
from .feed import Placed
from .interpolate import between, set_weights
from .step import TrainingStep

log = logging.getLogger("snapens")

_BURST_STEPS = 8  # queued at a time on a GPU, and two bursts at most: the others of a pack have their turn
_LOG_STEPS = 1000  # at most, between two lines of the log; an epoch where that is shorter


class Training:
    """One recipe on its way to its snapshots, in a folder of its own.

    Made in two parts: the constructor builds the network and, on a GPU, records the step; `open` begins
    or resumes the run in its folder. Whatever it takes to go on is kept there, every `state_seconds`
    and at each minimum: a run killed at any instant resumes to the weights it would have had.
    """

    def __init__(
        self, recipe: Recipe, placed: Placed, path: str | PathLike[str], *, state_seconds: float = 300.0
    ) -> None:
        self.recipe, self.placed, self.run = recipe, placed, Run(path)
        images = len(placed.data.train)
        if recipe.batch > images:
            raise ArgumentError(f"batch must be at most the {images} training images, got {recipe.batch}")
        self.schedule = recipe.schedule(images)
        self.total_steps = self.schedule.total_steps
        self.loss: float | None = None
        """The mean training loss of the last stretch that was logged."""
        self.images_per_second: float | None = None
        self._timed_images, self._timed_seconds = 0, 0.0
        self.lines_logged = 0
        """How many lines this object added to the log."""
        self.pack = 1
        """How many runs share the device with this one, itself included."""
        self.failure: Exception | None = None
        self._log_steps = min(-(-images // recipe.batch), _LOG_STEPS)
        self._state_seconds = state_seconds
        self._stream = _stream(placed.device)
        self._bursts: deque[torch.cuda.Event] = deque()
        self._stretches: deque[_Stretch] = deque()
        with self._queue():
            self.step = TrainingStep(recipe, placed, self.schedule)
            self.step.rehearse(self._stream)

    def open(self, resume: bool = False) -> None:
        """Begin the run in its folder, or go on with the one that is there."""
        self.run.admit(self.recipe, resume)
        with self._queue():
            self._ensembler = SnapshotEnsembler(
                self.step.network,
                self.step.optimizer,
                self.schedule,
                store=self.run.path,
                resume=resume,
                on_restart=self._restart,
                drive_lr=False,
            )
            try:
                self._restore()
            except BaseException:
                self.close()
                raise

    @property
    def completed(self) -> int:
        """Steps done; on a GPU, those queued."""
        return self._ensembler.completed

    @property
    def epoch(self) -> float:
        """How often the training images were seen."""
        return self.completed * self.recipe.batch / len(self.placed.data.train)

    @property
    def lr(self) -> float:
        """The rate of the next step."""
        return self.recipe.lr * self.schedule(self.completed)

    @property
    def finished(self) -> bool:
        """Whether all steps were taken."""
        return self.completed == self.total_steps

    @property
    def seconds(self) -> float:
        """Spent in training, the time before a resume included."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before there is one."""
        if self.images_per_second is None:
            return None
        return (self.total_steps - self.completed) * self.recipe.batch / self.images_per_second

    @property
    def ready(self) -> bool:
        """Whether the device has room for more of this run's steps."""
        if len(self._bursts) == 2 and self._bursts[0].query():  # type: ignore[no-untyped-call]
            self._bursts.popleft()
        return len(self._bursts) < 2

    def advance(self) -> None:
        """Take a few steps; none beyond the next minimum."""
        with self._queue():
            first = self.completed
            for completed in range(first + 1, min(first + _BURST_STEPS, self.total_steps) + 1):
                self.step(completed - 1)
                logged, minimum = completed % self._log_steps == 0, completed in self.schedule.snapshot_steps
                if logged or minimum:
                    self._end_stretch(completed)
                if minimum:
                    self._end_cycle(completed)
                    break
                self._ensembler.step()
            if self._stream is not None:
                self._bursts.append(self._stream.record_event())
            self._log_stretches()
            if time.monotonic() - self._saved > self._state_seconds and not self.finished:
                self.save()

    def save(self) -> None:
        """Keep the state as it is now."""
        with self._queue():
            self._log_stretches(wait=True)
            notes = {"seconds": self.seconds, "sources": self._sources, "ensembler": self._ensembler.state_dict()}
            self.run.save(State(self.completed, self.step.state(), notes))
        self._saved = time.monotonic()

    def measure_between(self) -> None:
        """Keep the errors on the lines between the last snapshot and the earlier ones, once the run is finished."""
        with self._queue():
            found = between(self.step, self.run.snapshots)
        self.run.keep_curves(found)

    def close(self) -> None:
        """Let another writer have the folder."""
        self._ensembler.close()

    def _restore(self) -> None:
        """Take up the state in the folder, or write down the first one."""
        self.run.begin(self.recipe, self.placed.data.described())
        state = self.run.state()
        self._saved = self._seen = time.monotonic()
        self._began = self._saved - (state.notes["seconds"] if state else 0.0)
        before = state.notes.get("sources", []) if state else []
        self._sources: list[str] = sorted({*before, source.digest()})
        if state is None and self.run.snapshots.steps:
            raise DamagedError(f"{self.run.path} must hold the state that its snapshots belong to: restore state/")
        if state is None:
            self.save()
        else:
            self._ensembler.load_state_dict(_with_integer_steps(state.notes["ensembler"]))
            self._mend_outputs()
            self.step.load(state.tensors)
            self.run.forget(self.completed)
        self._logged = self.completed
        if self.finished:
            self._finish()

    def _mend_outputs(self) -> None:
        """Ask the snapshots again where the folder has lost what they said; the network ends as the last of them."""
        snapshots = self._ensembler.snapshots
        try:
            for part in self._parts if snapshots.steps else ():
                self.run.outputs(part)
        except StoreError as error:
            log.warning("%s: the snapshots are asked again", error)
            for step in snapshots.steps:
                set_weights(self.step.network, snapshots.load(step))
                found = self.run.add_outputs(step, self._outputs(), anew=step == snapshots.steps[0])
            if self.run.outputs_sha256(step) not in (None, found):  # another device, or another torch
                self._note("outputs", step=step, outputs_sha256=found)

    def _outputs(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Log-probabilities and labels of each part, from the weights as they are."""
        found = {
            part: (self.step.log_probabilities(self.placed.batches(images)), torch.from_numpy(images.labels))
            for part, images in self._parts.items()
        }
        self.step.release()
        return found

    @property
    def _parts(self) -> dict[str, Images]:
        data = self.placed.data
        return {"test": data.test} | ({"held_out": data.held_out} if data.held_out else {})

    def _end_stretch(self, completed: int) -> None:
        """Queue the mean loss since the last line of the log for reading."""
        before = max((step for step in self.schedule.snapshot_steps if step < completed), default=0)
        first = max(before, (completed - 1) // self._log_steps * self._log_steps)
        mean = self.step.losses[first:completed].mean()
        if self._stream is None:
            self._stretches.append(_Stretch(completed, mean, None))
        else:
            held = torch.empty_like(mean, device="cpu", pin_memory=True).copy_(mean, non_blocking=True)
            self._stretches.append(_Stretch(completed, held, self._stream.record_event()))

    def _log_stretches(self, wait: bool = False) -> None:
        """Write the lines whose losses have arrived; a loss that is not finite ends the run."""
        while self._stretches:
            completed, mean, event = self._stretches[0]
            if event is not None and wait:
                event.synchronize()
            elif event is not None and not event.query():  # type: ignore[no-untyped-call]
                return
            self._stretches.popleft()
            loss, now = float(mean), time.monotonic()
            if not np.isfinite(loss):
                raise NonFiniteError(
                    f"loss must be finite, got {loss} up to step {completed}: take a lower lr; what was kept is intact"
                )
            images = (completed - self._logged) * self.recipe.batch
            self.loss, self._logged = loss, completed
            self._measure_speed(images, now - self._seen)
            self._seen = now
            self._note(
                "trained",
                step=completed,
                epoch=round(completed * self.recipe.batch / len(self.placed.data.train), 4),
                lr=self.recipe.lr * self.schedule(completed - 1),
                loss=loss,
                images_per_second=self.images_per_second and round(self.images_per_second),
                seconds=round(self.seconds, 3),
            )

    def _measure_speed(self, images: int, seconds: float) -> None:
        """Over a second at least: on a shorter stretch the clock says little."""
        self._timed_images, self._timed_seconds = self._timed_images + images, self._timed_seconds + seconds
        if self._timed_seconds >= 1:
            self.images_per_second = self._timed_images / self._timed_seconds
            self._timed_images, self._timed_seconds = 0, 0.0

    def _end_cycle(self, completed: int) -> None:
        """Evaluate the member, commit its snapshot, begin the next cycle, keep the state."""
        self._log_stretches(wait=True)  # first: the time of an evaluation is not that of the steps before it
        outputs = self._outputs()
        sha256 = self.run.add_outputs(completed, outputs)
        self._ensembler.step()
        test, labels = outputs["test"]
        error = metrics.error(test.float().exp().numpy(), labels.numpy())
        seconds = round(self.seconds, 3)
        self._note("snapshot", step=completed, test_error=error, outputs_sha256=sha256, seconds=seconds)
        self.save()
        self._seen = time.monotonic()
        if self.finished:
            self._finish()

    def _restart(self, ensembler: SnapshotEnsembler) -> None:
        cycle = self.schedule.snapshot_steps.index(ensembler.completed) + 1
        if self.recipe.begins_fresh(cycle):
            self.step.restart(cycle)

    def _finish(self) -> None:
        self.close()
        if not self.run.finished:
            gallery.keep(self.run, self.placed.data.test.central)
            surroundings = {"pack": self.pack, "sources": " ".join(self._sources), **_surroundings(self.placed)}
            self._note("finished", step=self.completed, seconds=round(self.seconds, 3), **surroundings)

    def _note(self, event: str, **values: Any) -> None:
        self.run.note(event, **values)
        self.lines_logged += 1

    def _queue(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class _Stretch(NamedTuple):
    """Steps up to `completed` whose mean loss is on its way to the host."""

    completed: int
    loss: Tensor
    arrived: torch.cuda.Event | None


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _with_integer_steps(state: dict[str, Any]) -> dict[str, Any]:
    """An ensembler's state as it was before JSON made its steps words."""
    store = state["store"]
    snapshots = {int(step): file for step, file in store["snapshots"].items()}
    return {**state, "store": {**store, "snapshots": snapshots}, "held": {}}


def _surroundings(placed: Placed) -> dict[str, Any]:
    """What the run was made with."""
    cuda, threads = placed.device.type == "cuda", torch.get_num_threads()
    return {
        "device": torch.cuda.get_device_name(placed.device) if cuda else f"CPU, {threads} thread{'s' * (threads > 1)}",
        "peak_memory_bytes": torch.cuda.max_memory_reserved(placed.device) if cuda else None,
        "torch": torch.__version__,
        "snapens": __version__,
    }
