"""SnapshotEnsembler: the one object in the user's training loop."""

import logging
from collections.abc import Callable
from itertools import pairwise
from os import PathLike
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from .combination import Combination
from .ensemble import Ensemble
from .errors import ArgumentError, FinishedError, MismatchError, NonFiniteError
from .rates import Rates
from .schedule import Schedule
from .snapshots import Snapshots, check_finite
from .weights import layers, reject_sharded, tensors

log = logging.getLogger("snapens")


class SnapshotEnsembler:
    """Sets the learning rate by a schedule and stores a snapshot at each minimum.

    Call `step()` once after every attempted optimizer step. The peak rate of a parameter group is its
    own `lr`, or its `initial_lr` if a checkpoint or an earlier scheduler set one, as for torch's schedulers.

    - `store`: a path, a `Snapshots`, or None for memory.
    - `resume`: accept a store that already holds snapshots; call `load_state_dict` before `step()`.
    - `keep`: the module to store, if it is not the trained one (such as an EMA copy, updated before `step()`).
    - `on_restart`: called with this object when a new cycle begins; see `fresh_weights` and `reset_momentum`.
    - `on_nonfinite`: "raise" an error, or "skip" the snapshot, if the weights at a minimum contain a NaN or infinity.
    - `drive_lr`: False leaves the rates unchanged.

    `model`, `optimizer`, `schedule` and `snapshots` are attributes. A group that is added to the optimizer later
    takes its first step at its own `lr` and follows the schedule from then on: add it in `on_restart`, at the peak.

    Examples:
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
        keep: nn.Module | None = None,
        on_restart: "Callable[[SnapshotEnsembler], object] | None" = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        drive_lr: bool = True,
    ) -> None:
        for name, value, kind in (("model", model, nn.Module), ("schedule", schedule, Schedule)):
            if not isinstance(value, kind):
                raise ArgumentError(f"{name} must be an instance of {kind.__name__}, got {value!r}")
        if on_nonfinite not in ("raise", "skip"):
            raise ArgumentError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
        reject_sharded(model)
        _check_owner(model, optimizer)
        _check_order(schedule)
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.snapshots = store if isinstance(store, Snapshots) else Snapshots(store)
        self._kept = model if keep is None else keep
        self._on_restart, self._skip = on_restart, on_nonfinite == "skip"
        self._minima, self._restarts = frozenset(schedule.snapshot_steps), frozenset(schedule.restart_steps)
        self._completed = 0
        self._group = next((w.process_group for w in layers(model) if isinstance(w, DistributedDataParallel)), None)
        check_finite(tensors(self._kept), step=0)  # now, not only at the end of the first cycle
        self._rates = Rates(optimizer, schedule) if drive_lr else None
        self._on_rank_0(lambda: self.snapshots.open_to_write(resume))
        self._unloaded = bool(self._identity["snapshots"])
        self._set_rates()
        log.info("%r; peak rates %s", schedule, "set by the user" if self._rates is None else self._rates.peaks)

    @property
    def completed(self) -> int:
        """The number of completed steps."""
        return self._completed

    def step(self) -> int | None:
        """Count a step and set the next rate; at a minimum, commit a snapshot first and return its step.

        A call that fails to commit does not count and can be repeated.
        """
        if self._unloaded:
            raise MismatchError(
                f"store holds the snapshots of steps {list(self._identity['snapshots'])}, but this run is at step 0: "
                "call load_state_dict() with the checkpoint to resume from, or use another store"
            )
        if self._completed >= self.schedule.total_steps:
            raise FinishedError(
                f"step() must be called at most total_steps={self.schedule.total_steps} times: "
                "raise total_steps, or call it once per optimizer step, not once per micro-batch"
            )
        if self._rates is not None:
            self._rates.warn_if_changed()
        completed = self._completed + 1
        kept = completed in self._minima and self._commit(completed)
        self._completed = completed
        self._set_rates()
        if completed == self.schedule.total_steps:
            self.close()
        if self._on_restart is not None and completed in self._restarts:
            self._on_restart(self)
        return completed if kept else None

    def ensemble(self, **options: Any) -> Ensemble:
        """The ensemble of the snapshots so far; `options`, such as `last`, are those of `Ensemble`."""
        if self.snapshots.path is None and self._rank != 0:
            raise ArgumentError(
                "store must be a folder for an ensemble on every rank, got memory, which only rank 0 has"
            )
        known = [(self._identity["run"], step) for step in self._identity["snapshots"]]
        if known and "combination" not in options:  # equal on all ranks, even if the folder already has a later one
            options["combination"] = Combination.last(options.pop("last", len(known))).among(known)
        return Ensemble(self.snapshots, self._kept, **options)

    def close(self) -> None:
        """Release the folder to other writers; the last snapshot and the end of the process do this too."""
        self.snapshots.close()

    def state_dict(self) -> dict[str, Any]:
        """The number of completed steps, the schedule, the identity of the store and the snapshots of a memory store.

        These are plain values and tensors only. The user saves the model, the optimizer and the random state.
        """
        held = self.snapshots.steps if self.snapshots.path is None else ()
        return {
            "completed": self._completed,
            "schedule": _description(self.schedule),
            "store": self._identity,
            "held": {step: {name: e.read() for name, e in self.snapshots.entries(step).items()} for step in held},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to the step of a checkpoint; snapshots after it are replaced when training reaches them again."""
        if not {"completed", "schedule", "store", "held"} <= state.keys():
            raise MismatchError(f"state must be what state_dict() returned, got the keys {list(state)}")
        saved, own = state["schedule"], _description(self.schedule)
        finished = state["completed"] == self.schedule.total_steps  # then the ends of the cycles no longer matter
        if not finished and saved not in (own, repr(self.schedule)):  # format 1 stored the repr
            raise MismatchError(
                f"schedule must be that of the checkpoint, {saved}, got {own}: use that schedule; if an earlier "
                "version began the run with cycles of unequal length, finish the run with that version"
            )
        self._on_rank_0(lambda: self._restore(state))
        self._completed, self._unloaded = state["completed"], False
        self._set_rates()

    def _restore(self, state: dict[str, Any]) -> None:
        store, kept = self.snapshots, state["store"]
        store.open_to_write(resume=True)
        if kept["run"] != (run := store.identity["run"]):
            raise MismatchError(f"store must be that of the checkpoint (run {kept['run']}), got {store} of run {run}")
        if store.path is None:
            store.rewind(0)
            for step, held in state["held"].items():
                store.commit(step, held)
        saved = {int(step): name for step, name in kept["snapshots"].items()}  # JSON makes strings of the steps
        if store.path is not None and (lost := dict(saved.items() - store.identity["snapshots"].items())):
            raise MismatchError(
                f"store must hold the checkpoint's snapshots, but {store} lost or replaced {sorted(lost)}: "
                "restore the folder, or resume from the checkpoint that was used last"
            )
        store.rewind(state["completed"])

    def _commit(self, step: int) -> bool:
        try:
            self._on_rank_0(lambda: self.snapshots.commit(step, tensors(self._kept)))
        except NonFiniteError as error:
            if not self._skip:
                raise
            log.warning("no snapshot is stored at step %d: %s", step, error)
            return False
        return True

    def _set_rates(self) -> None:
        if self._rates is not None:
            self._rates.set(self._completed)

    @property
    def _rank(self) -> int:
        return 0 if self._group is None else dist.get_rank(self._group)

    def _on_rank_0(self, action: Callable[[], object]) -> None:
        """Call `action` and update the store's identity. Under DDP rank 0 calls it, and all ranks get the result."""
        outcome: list[Any] = [None, None]
        if self._rank == 0:
            try:
                action()
                outcome = [self.snapshots.identity, None]
            except BaseException as error:  # an interrupt too: the other ranks must not wait for what does not come
                if self._group is None:
                    raise
                outcome = [None, error]
        if self._group is not None:
            nccl = dist.get_backend(self._group) == "nccl"
            device = next(self.model.parameters()).device if nccl else None
            dist.broadcast_object_list(outcome, dist.get_global_rank(self._group, 0), self._group, device)
        if outcome[1] is not None:
            raise outcome[1]
        self._identity: dict[str, Any] = outcome[0]


def reset_momentum(ensembler: SnapshotEnsembler) -> None:
    """For `on_restart`: clear the optimizer's state (momentum, moments, counts)."""
    ensembler.optimizer.state.clear()


def fresh_weights(factory: Callable[[], nn.Module]) -> Callable[[SnapshotEnsembler], None]:
    """For `on_restart`: begin each cycle with the weights of a new `factory()` and an empty optimizer state.

    This makes the paper's SingleCycle ensemble. Under DDP all ranks use the weights of rank 0. The module
    passed as `keep` starts from the same weights, and an `AveragedModel` counts from 0 again.
    """

    def restart(ensembler: SnapshotEnsembler) -> None:
        fresh, live = tensors(factory()), tensors(ensembler.model)
        trained = {id(tensor) for tensor in live.values()}
        copies = {name: tensor for name, tensor in tensors(ensembler._kept).items() if id(tensor) not in trained}
        if _shapes(fresh) != _shapes(live):
            raise MismatchError("factory must build the architecture of the model that is trained, got other tensors")
        if not _shapes(copies).items() <= _shapes(live).items():
            raise MismatchError(
                "keep must have the tensors of the model for fresh_weights to restart it, got others: "
                "pass the averaged model itself, such as keep=ema.module"
            )
        group = ensembler._group
        with torch.no_grad():
            for name, tensor in live.items():
                tensor.copy_(fresh[name])
                if group is not None:
                    dist.broadcast(tensor, src=dist.get_global_rank(group, 0), group=group)
                if name in copies:
                    copies[name].copy_(tensor)
            for layer in layers(ensembler._kept):
                if isinstance(layer, AveragedModel):
                    layer.n_averaged.zero_()
        reset_momentum(ensembler)

    return restart


def _shapes(named: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in named.items()}


def _check_owner(model: nn.Module, optimizer: Optimizer) -> None:
    owned = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in owned for group in optimizer.param_groups for parameter in group["params"]):
        raise ArgumentError(
            "optimizer must hold parameters of model, got one that holds none: build it from model.parameters()"
        )


def _check_order(schedule: Schedule) -> None:
    steps = (0, *schedule.snapshot_steps)
    if steps[-1] != schedule.total_steps or any(a >= b for a, b in pairwise(steps)):
        raise ArgumentError(f"snapshot_steps must ascend to total_steps={schedule.total_steps}, got {steps[1:]}")


def _description(schedule: Schedule) -> dict[str, Any]:
    """The type, steps and parameters of a schedule, as plain values that JSON can store."""
    steps = {"total_steps": schedule.total_steps, "snapshot_steps": list(schedule.snapshot_steps)}
    values = {name: getattr(schedule, name) for name in getattr(schedule, "__dataclass_fields__", ())}
    plain = {name: value if isinstance(value, (int, float, str)) else repr(value) for name, value in values.items()}
    return {"type": type(schedule).__name__, **plain, **steps}
