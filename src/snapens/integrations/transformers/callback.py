"""SnapshotCallback: snapshots of a model that the Hugging Face Trainer trains."""

import logging
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ...ensemble import Ensemble
from ...ensembler import SnapshotEnsembler
from ...errors import ArgumentError, MismatchError
from ...extras import package
from ...kept import Keep
from ...schedule import CyclicCosine, Schedule
from ...snapshots import Snapshots
from ...weights import tensors, unwrap
from ..trainer import begin

TrainerCallback: Any = package("transformers", "hf").TrainerCallback
log = logging.getLogger("snapens")

_KEY = "snapens"  # of the state in trainer_state.json


class SnapshotCallback(TrainerCallback):  # type: ignore[misc]  # its type is not known
    """Makes the Trainer's learning rate follow a cyclic schedule, and stores a snapshot at each minimum.

    The schedule has the warm-up steps of the `TrainingArguments`, then `cycles` cosine cycles; for another one, pass
    `schedule` instead. `store` is a new folder. The peak rate is `learning_rate` of the `TrainingArguments`.
    The rate that the Trainer logs is the rate that it uses. A checkpoint of the Trainer contains the state, so
    `train(resume_from_checkpoint=True)` with a new callback of the same arguments continues in the middle of a cycle.

    `keep`, `on_restart` and `on_nonfinite` are those of `SnapshotEnsembler`. For a PEFT model, a snapshot
    contains only the trainable parameters and the buffers. A callback that updates an EMA must be listed before this
    one.

    Examples:
        >>> callback = SnapshotCallback(cycles=5, store="runs/a")  # Trainer(..., callbacks=[callback])
        >>> callback.ensemble()
        Traceback (most recent call last):
        ...
        snapens.errors.ArgumentError: ensemble() must be called after the training has begun: call Trainer.train()
    """

    def __init__(
        self,
        cycles: int | None = None,
        *,
        store: str | PathLike[str] | Snapshots,
        schedule: Schedule | None = None,
        keep: Keep | None = None,
        on_restart: Callable[[SnapshotEnsembler], object] | None = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
    ) -> None:
        if (cycles is None) is (schedule is None):
            raise ArgumentError(f"cycles or schedule must be given, but not both, got {cycles!r} and {schedule!r}")
        self._snapshots = store if isinstance(store, Snapshots) else Snapshots(store)
        if self._snapshots.path is None:
            raise ArgumentError(
                "store must be a folder, because the checkpoints contain no snapshots, got memory: pass a path"
            )
        self._cycles, self._schedule, self._keep = cycles, schedule, keep
        self._options: dict[str, Any] = {"on_restart": on_restart, "on_nonfinite": on_nonfinite}
        self._ensembler: SnapshotEnsembler | None = None
        self._version: int | None = None
        self._warned: set[str] = set()

    @property
    def ensembler(self) -> SnapshotEnsembler:
        """The ensembler of the current or last training."""
        if self._ensembler is None:
            raise ArgumentError("ensemble() must be called after the training has begun: call Trainer.train()")
        return self._ensembler

    def ensemble(self, **options: Any) -> Ensemble:
        """The ensemble of the snapshots so far; `options` are those of `Ensemble`."""
        config = getattr(unwrap(self.ensembler.model), "config", None)
        if getattr(config, "problem_type", None) == "multi_label_classification":
            options.setdefault("activation", torch.sigmoid)
        return self.ensembler.ensemble(**options)

    def on_init_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **_: Any) -> None:
        """Reject a scheduler that the user passed."""
        if lr_scheduler is not None:
            raise _foreign(lr_scheduler)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module, optimizer: Any, lr_scheduler: Any, **_: Any
    ) -> None:
        """Begin a run, or continue that of the checkpoint from which the Trainer resumes."""
        _check(args, lr_scheduler)
        schedule = self._schedule_of(args, state.max_steps)
        saved, step = state.stateful_callbacks.get(_KEY), state.global_step
        if step and saved is None:
            raise MismatchError(
                f"resume_from_checkpoint must name a checkpoint that was saved with SnapshotCallback, got one of step "
                f"{step} without it: resume from another checkpoint, or train without resuming"
            )
        _follow(lr_scheduler, schedule, step)
        keep = partial(trainable, model) if self._keep is None and getattr(model, "peft_config", None) else self._keep
        self._snapshots.close()  # if an earlier training was interrupted
        self._ensembler = begin(
            model,
            optimizer,
            schedule,
            state=saved if step else None,
            remedy="choose another folder, or pass resume_from_checkpoint=True",
            store=self._snapshots,
            keep=keep,
            drive_lr=False,
            **self._options,
        )
        self._version = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Warn if the EMA was updated after the last step was counted."""
        if self._version not in (None, self._kept_version()):
            self._warn_once(
                "the module passed as keep was updated after SnapshotCallback, so snapshots contain its state of one "
                "step earlier: list the callback that updates it before SnapshotCallback"
            )

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any, lr_scheduler: Any, **_: Any
    ) -> None:
        """Warn if something else has changed the rate."""
        found, expected = [group["lr"] for group in optimizer.param_groups], lr_scheduler.get_last_lr()
        if found != expected:
            self._warn_once(
                "learning rates must be those of the schedule, %s, but something else changed them to %s: "
                "remove the other scheduler or callback",
                expected,
                found,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any, **_: Any) -> None:
        """Count the step, and store a snapshot at a minimum."""
        if lr_scheduler.last_epoch != state.global_step:  # a GradScaler skipped the update, but the step counts
            _follow(lr_scheduler, self.ensembler.schedule, state.global_step)
        if self.ensembler.completed < state.global_step <= self.ensembler.schedule.total_steps:
            self.ensembler.step()
            state.stateful_callbacks[_KEY] = self.ensembler.state_dict()
            self._version = self._kept_version()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Release the folder, also if the training stopped early."""
        self.ensembler.snapshots.close()

    def _schedule_of(self, args: Any, max_steps: int) -> Schedule:
        warmup = args.get_warmup_steps(max_steps)
        if self._schedule is None:
            assert self._cycles is not None
            return CyclicCosine(max_steps, self._cycles, warmup_steps=warmup)
        if warmup:
            raise ArgumentError(
                f"warmup_steps must be 0 if a schedule is given, got {args.warmup_steps}: add it to the schedule"
            )
        if self._schedule.total_steps != max_steps:
            raise ArgumentError(
                f"schedule must have the {max_steps} steps of the training, got total_steps="
                f"{self._schedule.total_steps}: change it or max_steps, or pass cycles instead"
            )
        return self._schedule

    def _kept_version(self) -> int | None:
        """A number that changes when the module to keep changes; None without such a module."""
        if not isinstance(self._keep, nn.Module):
            return None
        return sum(tensor._version for tensor in tensors(self._keep).values())

    def _warn_once(self, message: str, *values: object) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, *values)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters by name, and all buffers: training also changes the BatchNorm statistics of a base."""
    every = tensors(model).items()
    return {name: tensor for name, tensor in every if tensor.requires_grad or not isinstance(tensor, nn.Parameter)}


def _follow(scheduler: LambdaLR, schedule: Schedule, step: int) -> None:
    """Make the Trainer's scheduler follow our schedule from a step on, and set the rates of the optimizer."""

    def factor(step: int) -> float:  # a function: LambdaLR saves other callables in its state
        return schedule(min(step, schedule.total_steps))

    LambdaLR.__init__(scheduler, scheduler.optimizer, factor, last_epoch=step - 1)


def _check(args: Any, scheduler: Any) -> None:
    """Reject settings that conflict with our schedule; it replaces the types "linear", the default, and "constant"."""
    if (kind := str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))) not in ("linear", "constant"):
        raise ArgumentError(
            f"lr_scheduler_type must not be set, because SnapshotCallback sets the rate, got {kind!r}: remove it, or "
            "pass schedule= to SnapshotCallback"
        )
    if getattr(args, "deepspeed", None):
        raise ArgumentError("deepspeed must not be set, because SnapshotCallback does not support it: train with DDP")
    function = next(iter(getattr(scheduler, "lr_lambdas", ())), None)
    if type(scheduler) is not LambdaLR or not _of_transformers(getattr(function, "func", function)):
        raise _foreign(scheduler)


def _of_transformers(function: Any) -> bool:
    return getattr(function, "__module__", "").startswith("transformers.")


def _foreign(scheduler: Any) -> ArgumentError:
    return ArgumentError(
        f"optimizers must be (optimizer, None), because SnapshotCallback sets the rate, got a "
        f"{type(scheduler).__name__}: remove the scheduler, or pass schedule= to SnapshotCallback"
    )
