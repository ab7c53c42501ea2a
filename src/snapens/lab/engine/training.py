"""Training: one run, from its first step to its last snapshot, in a run folder."""

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cache
from os import PathLike
from typing import Any

import torch

from ... import __version__
from ...ensembler import SnapshotEnsembler
from ...errors import ArgumentError, DamagedError
from ..data.protocol import Placed
from ..recipe.recipe import Recipe
from ..records import gallery, source
from ..records.run import Run, State
from .device import device_name
from .evaluation import Evaluation
from .interpolate import between
from .log import TrainingLog
from .step import TrainingStep
from .teacher import Folders
from .world import World

_BURST_STEPS = 8  # queued at a time on a GPU, at most two bursts; then the other runs of the pack are advanced
_BURST_SECONDS = 0.05  # on a CPU; then progress is shown, and a run with slow steps can be stopped


class Training:
    """One run of a recipe, in its own folder.

    The constructor builds the network and, on a GPU, captures the step; `open` starts or resumes the run
    in its folder. The state is saved there every `state_seconds` and at each minimum: a run that was killed
    at any moment can be resumed and reaches the same weights.

    If several processes train the run, all of them call the same methods. Rank 0 alone evaluates and uses the folder.
    """

    def __init__(
        self,
        recipe: Recipe,
        placed: Placed,
        path: str | PathLike[str],
        *,
        state_seconds: float = 300.0,
        teachers: Folders = (),
        world: World | None = None,
    ) -> None:
        self.recipe, self.placed, self.run, self.world = recipe, placed, Run(path), world or World()
        examples = len(placed.data.train)
        if recipe.budget.batch > examples:
            raise ArgumentError(
                f"batch must be at most the {examples} training examples, got {recipe.budget.batch}: "
                "use a smaller batch, or hold out fewer examples"
            )
        self.schedule = recipe.schedule(examples)
        self.total_steps = self.schedule.total_steps
        self.pack = 1
        """The number of runs that share the device, including this one."""
        self.failure: Exception | None = None
        self._state_seconds = state_seconds
        self._stream = _stream(placed.device) if self.world.group is None else _common_stream(placed.device)
        self._bursts: deque[torch.cuda.Event] = deque()
        with self._queue():
            self.step = self.world.agree(lambda: TrainingStep(recipe, placed, self.schedule, teachers, world))
            begun = time.monotonic()
            self.step.rehearse(self._stream)
            self.rehearsal_seconds = time.monotonic() - begun if self._stream is None else None
            """The duration of a step in the rehearsal; None on a GPU, where the rehearsal also compiles."""
        self._evaluation = Evaluation(self.run, self.step)
        self.log = TrainingLog(self.run, recipe, self.schedule, examples, self.step.losses, self._stream, self.world)

    def open(self, resume: bool = False) -> None:
        """Start the run in its folder, or resume the existing run."""
        self.world.first(lambda: self.run.admit(self.recipe, resume))
        with self._queue():
            self._ensembler = SnapshotEnsembler(
                self.step.network,
                self.step.optimizer,
                self.schedule,
                keep=self.step.kept,
                store=self.run.path,
                resume=resume,
                on_restart=self._restart,
                drive_lr=False,
                process_group=self.world.group,
            )
            try:
                self._restore()
            except BaseException:
                self.close()
                raise

    @property
    def completed(self) -> int:
        """The number of completed steps; on a GPU, of queued steps."""
        return self._ensembler.completed

    @property
    def epoch(self) -> float:
        """The number of epochs so far, as a float."""
        return self.completed * self.recipe.budget.batch / len(self.placed.data.train)

    @property
    def lr(self) -> float:
        """The rate of the next step."""
        return self.recipe.optimizer.lr * self.schedule(self.completed)

    @property
    def finished(self) -> bool:
        """Whether all steps are completed."""
        return self.completed == self.total_steps

    @property
    def images_per_second(self) -> float | None:
        """The current speed; None before the first step."""
        return self.log.speed(self.completed)

    @property
    def ready(self) -> bool:
        """Whether more steps of this run can be queued on the device; with several processes, wait until they can."""
        if len(self._bursts) == 2 and self.world.group is not None:  # all ranks advance runs in the same order
            self._bursts[0].synchronize()
        if len(self._bursts) == 2 and self._bursts[0].query():  # type: ignore[no-untyped-call]
            self._bursts.popleft()
        return len(self._bursts) < 2

    def advance(self) -> None:
        """Take a few steps, at most to the next minimum; on a CPU, only for a short time."""
        several = self.world.group is not None
        with self._queue():
            first, begun = self.completed, time.monotonic()
            for completed in range(first + 1, min(first + _BURST_STEPS, self.total_steps) + 1):
                self.step(completed - 1)
                logged, minimum = completed % self.log.steps == 0, completed in self.schedule.snapshot_steps
                if logged or minimum:
                    self.log.end_stretch(completed)
                if minimum:
                    self._end_cycle(completed)
                    break
                self._ensembler.step()
                # several processes stop after the same step
                if self._stream is None and (several or time.monotonic() - begun > _BURST_SECONDS):
                    break
            if self._stream is not None:
                self._bursts.append(self._stream.record_event())
            self.log.flush(wait=several)
            self.log.preview(self.completed)
            if self.world.any(time.monotonic() - self._saved > self._state_seconds) and not self.finished:
                self.save()

    def save(self) -> None:
        """Save the current state."""
        with self._queue():
            self.log.flush(wait=True)
            self.world.first(self._save)
        self._saved = time.monotonic()

    def measure_between(self) -> None:
        """Measure and store the errors between the last snapshot and each earlier one, once the run is finished.

        Only rank 0 calls this.
        """
        with self._queue():
            found = between(self.step, self.run.snapshots)
        self.run.keep_curves(found)

    def close(self) -> None:
        """Release the folder to other writers."""
        self._ensembler.close()

    def _restore(self) -> None:
        """Load the state from the folder, or save the first state; all ranks get the state of rank 0."""
        state: State | None = None

        def read() -> tuple[int, dict[str, Any]] | None:
            nonlocal state
            state = self._begin()
            return None if state is None else (state.completed, state.notes)

        found = self.world.first(read)
        self._saved = time.monotonic()
        self.log.begin(*(found[0], found[1]["seconds"]) if found else (0, 0.0))
        if found is None:
            self.save()
        else:
            self._ensembler.load_state_dict(found[1]["ensembler"])
            self.world.first(lambda: self._load(state))
        self.step.share()
        if self.finished:
            self.world.first(self._finish)

    def _save(self) -> None:
        notes = {"seconds": self.log.seconds, "sources": self._sources, "ensembler": self._ensembler.state_dict()}
        self.run.save(State(self.completed, self.step.state(), notes))

    def _begin(self) -> State | None:
        """Check the folder, or write the recipe to it; the last state, if there is one."""
        transforms = [transform.written() for transform in self.step.transforms]
        augmentation = {"crop": asdict(self.placed.crop), "transforms": transforms}  # recipe's or data set's
        self.run.begin(self.recipe, {**self.placed.data.described(), "augmentation": augmentation})
        state = self.run.state()
        before = state.notes.get("sources", []) if state else []
        self._sources: list[str] = sorted({*before, source.digest()})
        if state is None and self.run.snapshots.steps:
            raise DamagedError(
                f"{self.run.path} must hold the state of its snapshots, but there is none: restore state/"
            )
        return state

    def _load(self, state: State | None) -> None:
        """Load the tensors of a state, after the snapshots that belong to it."""
        assert state is not None
        self._evaluation.restore(self._ensembler.snapshots)
        self.step.load(state.tensors)
        self.run.forget(self.completed)

    def _end_cycle(self, completed: int) -> None:
        """Evaluate the member, commit its snapshot, begin the next cycle, save the state."""
        self.log.flush(wait=True)  # first, so that the time of the evaluation is not included in that of the steps
        error = self.world.first(lambda: self._evaluation.add(completed, self._ensembler.snapshots.reserve(completed)))
        self._ensembler.step()
        self.log.note("snapshot", step=completed, test_error=error, seconds=round(self.log.seconds, 3))
        self.save()
        self.log.restart_clock()
        if self.finished:
            self.world.first(self._finish)

    def _restart(self, ensembler: SnapshotEnsembler) -> None:
        cycle = self.schedule.snapshot_steps.index(ensembler.completed) + 1
        if self.recipe.method.begins_fresh(cycle):
            self.step.restart(cycle)
        else:
            self.step.continue_cycle()

    def _finish(self) -> None:
        self.close()
        finished = self.run.finished
        if not finished or not gallery.is_intact(self.run, self.run.outputs()):
            gallery.keep(self.run, self.placed.data.pixels, self.placed.data.file_name)
        if not finished:
            environment = {"pack": self.pack, "sources": " ".join(self._sources), **self._environment()}
            self.log.note("finished", step=self.completed, seconds=round(self.log.seconds, 3), **environment)

    def _environment(self) -> dict[str, Any]:
        """The hardware and software of the run."""
        device, processes = self.placed.device, self.world.count
        name = device_name(device)
        return {
            "device": f"{processes} × {name}" if processes > 1 else name,
            "peak_memory_bytes": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
            "torch": torch.__version__,
            "snapens": __version__,
        }

    def _queue(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


# several processes use one stream for all runs, so that the communication of the runs has the same order everywhere
_common_stream = cache(_stream)
