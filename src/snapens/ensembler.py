"""SnapshotEnsembler: the one object in the user's training loop."""

import logging
import os
import weakref
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from . import cautions
from .combination import Combination
from .ensemble import Ensemble
from .errors import ArgumentError, FinishedError, MismatchError, NonFiniteError, whole_number
from .kept import Keep, kept, kept_by_all
from .preconditions import check
from .ranks import Ranks
from .rates import Rates
from .schedule import Schedule, description, differences
from .snapshots import Snapshots

log = logging.getLogger("snapens")

_UNEQUAL_CYCLES = (
    "; if an earlier version began the run with cycles of unequal length, finish the run with that version"
)


class SnapshotEnsembler:
    """Sets the learning rate by a schedule and stores a snapshot at each minimum.

    Call `step()` once after every attempted optimizer step. The peak rate of a parameter group is its
    own `lr`, or its `initial_lr` if a checkpoint or an earlier scheduler set one, as for torch's schedulers.

    - `store`: a path, a `Snapshots`, or None for memory.
    - `resume`: accept a store that already holds snapshots; call `load_state_dict` or `rewind` before `step()`.
    - `keep`: the module to store, if it is not the trained one (such as an EMA copy, updated before `step()`); or a
      function that returns the tensors to store, by the names that they have in the model (such as adapters only).
    - `on_restart`: called with this object when a new cycle begins; see `fresh_weights`,
      `noisy_weights` and `reset_momentum`.
    - `on_nonfinite`: "raise" an error, or "skip" the snapshot, if the weights at a minimum contain a NaN or infinity.
    - `drive_lr`: False leaves the rates unchanged.
    - `process_group`: the processes that train the model, where a framework hides the DDP wrapper. Under DDP and FSDP2
      (`fully_shard`) all ranks must call `step()`; rank 0 writes, and its errors are raised on all ranks.

    A run that ends between its first and its last step logs a warning, unless it was closed.
    `model`, `optimizer`, `schedule`, `keep` and `snapshots` are attributes. A group that is added to the optimizer
    later takes its first step at its own `lr` and then follows the schedule: add it in `on_restart`, at the peak.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> from snapens import CyclicCosine
        >>> ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=4, cycles=2))
        >>> for x in torch.randn(4, 8, 2):
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     if (step := ensembler.step()) is not None:
        ...         print("stored step", step)
        stored step 2
        stored step 4
        >>> ensembler.ensemble(last=2)
        Ensemble(steps=(2, 4), resident=True)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        store: str | PathLike[str] | Snapshots | None = None,
        resume: bool = False,
        keep: Keep | None = None,
        on_restart: "Callable[[SnapshotEnsembler], object] | None" = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        drive_lr: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check(model, optimizer, schedule, keep, on_restart, on_nonfinite)
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.snapshots = store if isinstance(store, Snapshots) else Snapshots(store)
        self.keep = model if keep is None else keep
        self.ranks = Ranks(model, process_group)
        self._on_restart, self._skip = on_restart, on_nonfinite == "skip"
        self._minima, self._restarts = frozenset(schedule.snapshot_steps), frozenset(schedule.restart_steps)
        self._progress = cautions.Progress()
        live = kept_by_all(model, self.keep, self.ranks)
        self.ranks.together(lambda: self.snapshots.check(live))  # now, not only at the end of the first cycle
        self._rates = Rates(optimizer, schedule) if drive_lr else None
        self._on_rank_0(lambda: self.snapshots.open_to_write(resume))
        self._unloaded = self._progress.closed = bool(self._identity["snapshots"])
        self._set_rates()
        log.info("%r; peak rates %s", schedule, "set by the user" if self._rates is None else self._rates.peaks)
        if self.ranks.rank == 0:
            cautions.untrained(model, optimizer, live)
            if self.keep is model or not isinstance(self.keep, nn.Module):  # not an average with names of its own
                cautions.unstored(model, optimizer, live)
            place = "memory" if self.snapshots.path is None else str(self.snapshots.path)
            weakref.finalize(self, cautions.early_end, self._progress, schedule, place, os.getpid())

    @property
    def completed(self) -> int:
        """The number of completed steps."""
        return self._progress.completed

    def kept(self) -> dict[str, Tensor]:
        """The live tensors that a snapshot stores, by their names in the model."""
        return kept(self.model, self.keep)

    def step(self) -> int | None:
        """Count a step and set the next rate; at a minimum, commit a snapshot first and return its step.

        A call that fails to commit does not count and can be repeated. An error of `on_restart` is different: the step
        is already counted and its snapshot stored, so call that function again, not `step()`.
        """
        if self._unloaded:
            raise MismatchError(
                f"store holds the snapshots of steps {list(self._identity['snapshots'])}, but this run is at step 0: "
                "call load_state_dict() with the checkpoint to resume from, or load the weights of an earlier step and "
                "call rewind() with it, or use another store"
            )
        if self.completed >= self.schedule.total_steps:
            raise FinishedError(
                f"step() must be called at most total_steps={self.schedule.total_steps} times: "
                "raise total_steps, or call it once per optimizer step, not once per micro-batch"
            )
        if self._rates is not None:
            self._rates.warn_if_changed()
        completed = self.completed + 1
        kept = completed in self._minima and self._commit(completed)
        self._progress.completed, self._progress.failed = completed, False
        self._set_rates()
        if completed == self.schedule.total_steps:
            self.close()
        if self._on_restart is not None and completed in self._restarts:
            self._on_restart(self)
        return completed if kept else None

    def ensemble(self, model: nn.Module | None = None, **options: Any) -> Ensemble:
        """The ensemble of the snapshots so far; `options`, such as `last`, are those of `Ensemble`.

        `model` is another instance of the architecture to copy. Under FSDP2 it is required and must not be sharded.
        """
        if self.snapshots.path is None and self.ranks.rank != 0:
            raise ArgumentError(
                "store must be a folder for an ensemble on every rank, got memory, which only rank 0 has: pass a path"
            )
        known = [(self._identity["run"], step) for step in self._identity["snapshots"]]
        if not known:
            raise ArgumentError(
                f"ensemble() must be called after the first snapshot, that of step {self.schedule.snapshot_steps[0]}, "
                f"got step {self.completed} of {self.schedule.total_steps}: train to the end of the first cycle"
            )
        if options.get("combination") is None:  # equal on all ranks, even if the folder has a later one
            last = options.pop("last", None)
            options["combination"] = Combination.last(len(known) if last is None else last).among(known)
        whole = self.keep if isinstance(self.keep, nn.Module) else None
        model = next(one for one in (model, whole, self.model) if one is not None)
        return Ensemble(self.snapshots, model, **{"strict": whole is not None, **options})

    def __repr__(self) -> str:
        steps = f"step={self.completed}, total_steps={self.schedule.total_steps}"
        return f"SnapshotEnsembler({steps}, store={self.snapshots!r})"

    def close(self) -> None:
        """Release the folder to other writers; the last step and the end of the process do this too."""
        self._progress.closed = True
        self.snapshots.close()

    def state_dict(self) -> dict[str, Any]:
        """The completed steps, peak rates, schedule, identity of the store, and the snapshots of a memory store.

        These are plain values and tensors only. The user saves the model, the optimizer and the random state.
        """
        held = self.snapshots.steps if self.snapshots.path is None else ()
        return {
            "completed": self.completed,
            "peaks": [] if self._rates is None else self._rates.peaks,
            "schedule": description(self.schedule),
            "store": self._identity,
            "held": {step: {name: e.read() for name, e in self.snapshots.entries(step).items()} for step in held},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the step of a checkpoint; snapshots after it are replaced when training reaches them again."""
        if not {"completed", "schedule", "store", "held"} <= state.keys():
            raise MismatchError(f"state must be what state_dict() returned, got the keys {list(state)}")
        finished = state["completed"] == self.schedule.total_steps  # then the ends of the cycles no longer matter
        if not finished and (different := differences(self.schedule, state["schedule"])):
            raise MismatchError(
                f"schedule must be that of the checkpoint, got {_listed(different)}: use that schedule and that "
                f"number of steps{'' if different.keys() - {'snapshot_steps', 'repr'} else _UNEQUAL_CYCLES}"
            )
        self._on_rank_0(lambda: self._restore(state))
        if self._rates is not None:
            self._rates.restore(state.get("peaks", ()))  # format 1 has none
        self._continue_at(state["completed"])

    def rewind(self, step: int) -> None:
        """Continue at a step that a checkpoint of your own recorded, instead of `load_state_dict`.

        It restores neither the weights of the model nor the state of the optimizer: load those of this step yourself.
        Snapshots up to this step must be in the store. Later ones are replaced when training reaches them again.
        """
        step = whole_number("step", step, 0)
        if step > self.schedule.total_steps:
            raise ArgumentError(f"step must be at most total_steps={self.schedule.total_steps}, got {step}")
        self._on_rank_0(lambda: self._rewind(step))
        self._continue_at(step)

    def _rewind(self, step: int) -> None:
        self.snapshots.open_to_write(resume=True)
        expected = {minimum for minimum in self._minima if minimum <= step}
        found = {one for one in self.snapshots.steps if one <= step}
        if found - expected or (expected - found and not self._skip):
            raise MismatchError(
                f"store must hold the snapshots of steps {sorted(expected)} to continue at step {step}, got "
                f"{sorted(found)} in {self.snapshots}: use the schedule and the store of the run that is resumed"
            )
        self.snapshots.rewind(step)

    def _continue_at(self, step: int) -> None:
        self._progress.completed, self._progress.closed, self._unloaded = step, False, False
        self._set_rates()
        if step == self.schedule.total_steps:
            self.close()

    def _restore(self, state: dict[str, Any]) -> None:
        store, kept = self.snapshots, state["store"]
        store.open_to_write(resume=True)
        if kept["run"] != (run := store.identity["run"]):
            raise MismatchError(
                f"store must be that of the checkpoint (run {kept['run']}), got {store} of run {run}: "
                "pass the folder of the run that is resumed"
            )
        if store.path is None:
            store.rewind(0)
            for step, held in state["held"].items():
                store.commit(step, held)
        saved = {int(step): name for step, name in kept["snapshots"].items()}  # JSON converts the steps to strings
        if store.path is not None and (lost := dict(saved.items() - store.identity["snapshots"].items())):
            raise MismatchError(
                f"store must hold the checkpoint's snapshots, but in {store} {sorted(lost)} are missing or replaced: "
                "restore the folder, or resume from the checkpoint that was used last"
            )
        store.rewind(state["completed"])

    def _commit(self, step: int) -> bool:
        live = kept_by_all(self.model, self.keep, self.ranks)
        commit = partial(self.snapshots.commit, step, live, partial=not isinstance(self.keep, nn.Module))
        try:
            self._on_rank_0(commit, others=lambda: commit(write=False))
        except NonFiniteError as error:
            if not self._skip:
                self._progress.failed = True
                raise
            log.warning("no snapshot is stored at step %d: %s", step, error)
            return False
        if self.ranks.rank == 0:
            cautions.repeated(self.snapshots)
        return True

    def _set_rates(self) -> None:
        if self._rates is not None:
            self._rates.set(self.completed)

    def _on_rank_0(self, action: Callable[[], object], others: Callable[[], object] = lambda: None) -> None:
        """Call `action` on rank 0, `others` on the other ranks, and update the identity of the store on all ranks."""

        def identity() -> dict[str, Any]:
            action()
            return self.snapshots.identity

        self._identity: dict[str, Any] = self.ranks.on_first(identity, others)


def _listed(different: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}={own!r} instead of {saved!r}" for name, (own, saved) in different.items())
