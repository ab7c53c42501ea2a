"""SnapshotCallback: Snapshot Ensembles in a Lightning `Trainer`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..batches import first, second
from ..ensemble import Ensemble
from ..ensembler import SnapshotEnsembler
from ..errors import ArgumentError, MismatchError
from ..extras import package
from ..kept import Keep
from ..schedule import CyclicCosine, Schedule, missing_cycles
from ..snapshots import Snapshots
from ..weights import reject_fsdp1, unwrap
from .lightning_steps import OptimizerSteps, expected_steps
from .lightning_validation import Validation
from .trainer import begin

log = logging.getLogger("snapens")

_OPTIONS = {"on_restart", "on_nonfinite", "drive_lr"}
_COMPILED = ("_compiler_ctx", "forward", "training_step", "validation_step", "test_step", "predict_step")


def _callback_classes() -> tuple[Any, ...]:
    """The `Callback` class of each imported Lightning package: a `Trainer` expects the class of its own package."""
    names = ("lightning.pytorch", "pytorch_lightning")
    if not sys.modules.keys() & set(names):
        if find_spec("lightning") is None and find_spec("pytorch_lightning") is not None:
            package("pytorch_lightning", "lightning")
        else:
            package("lightning.pytorch", "lightning")
    return tuple(sys.modules[name].Callback for name in names if name in sys.modules)


class SnapshotCallback(*_callback_classes()):  # type: ignore[misc]
    """Sets the learning rate of a Lightning `Trainer` and stores a snapshot of the LightningModule at each minimum.

    - `cycles`: the number of cycles of `CyclicCosine`, and of snapshots; or pass a `schedule`.
    - `store`: a path, a `Snapshots`, or None for memory. Without a folder, the checkpoints contain the snapshots.
    - `total_steps`: the number of optimizer steps; by default `trainer.estimated_stepping_batches`.
    - `optimizer`: the index of the optimizer to schedule and count, if manual optimization uses several.
    - `keep`: what to store instead of the LightningModule: a module, Lightning's `WeightAveraging` callback, or a
      function that takes the LightningModule and returns a module or a dict of its tensors.
    - `validate`: at each minimum, log the validation error and NLL of the ensemble (`snapens/val_error`,
      `snapens/val_nll`); `inputs` and `targets` select from a batch, as in `Ensemble.outputs`.
    - `options`: `on_restart`, `on_nonfinite` and `drive_lr` of `SnapshotEnsembler`.

    The training stops after the last step of the schedule. This callback runs after all others except those that save
    checkpoints, so that an average that another callback updates is up to date.
    """

    def __init__(
        self,
        cycles: int | None = None,
        *,
        store: str | PathLike[str] | Snapshots | None,
        total_steps: int | None = None,
        schedule: Schedule | None = None,
        optimizer: int = 0,
        keep: Any = None,
        validate: bool = True,
        inputs: Callable[[Any], Any] = first,
        targets: Callable[[Any], Any] = second,
        **options: Any,
    ) -> None:
        if (cycles is None) == (schedule is None):
            raise ArgumentError(f"cycles or schedule must be given, but not both, got {cycles!r} and {schedule!r}")
        if schedule is not None and total_steps is not None:
            raise ArgumentError(f"total_steps must not be given together with a schedule, got {total_steps}: remove it")
        if unknown := options.keys() - _OPTIONS:
            raise ArgumentError(f"options must be among {sorted(_OPTIONS)}, got {sorted(unknown)}")
        self._cycles, self._schedule, self._total_steps, self._index = cycles, schedule, total_steps, optimizer
        self._store, self._keep, self._options = store, keep, options
        self._validation = Validation(inputs, targets) if validate else None
        self._ensembler: SnapshotEnsembler | None = None
        self._loaded: dict[str, Any] = {}  # the state in the checkpoint that fit() resumes from
        self._steps: OptimizerSteps | None = None  # while training
        self._begun = self._batches = 0  # the first step of this fit(), and its batches so far
        self._estimated = self._stored = False
        self._versions: list[int] = []  # of the tensors of a new snapshot
        self._least: tuple[Any, Any] | None = None  # min_epochs and min_steps of the Trainer, while they are not used

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint; it differs for callbacks of different optimizers."""
        return f"{type(self).__qualname__}{{'optimizer': {self._index}}}"

    @property
    def ensembler(self) -> SnapshotEnsembler:
        """The ensembler of the current or last `fit`."""
        if self._ensembler is None:
            raise ArgumentError(
                "the callback must have been used by trainer.fit() in this process: call trainer.fit() first, "
                "or load the snapshots of a folder with Ensemble.load(folder, module)"
            )
        return self._ensembler

    def ensemble(self, **options: Any) -> Ensemble:
        """The ensemble of the snapshots so far, of the module's `forward`; `options` are those of `Ensemble`."""
        keep = self.ensembler.keep
        with _uncompiled(unwrap(keep if isinstance(keep, nn.Module) else self.ensembler.model)):
            return self.ensembler.ensemble(**options)

    # Hooks, in the order in which the Trainer calls them

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Move this callback behind the others; only those that save checkpoints come later."""
        if stage == "fit":
            self._loaded = {}
            last = trainer.checkpoint_callbacks
            trainer.callbacks = [c for c in trainer.callbacks if c is not self and c not in last] + [self, *last]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the state: Lightning restores callbacks before the optimizers exist."""
        self._loaded = state

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Reject a scheduler before anything is computed."""
        if trainer.lr_scheduler_configs and self._options.get("drive_lr", True):
            name = type(trainer.lr_scheduler_configs[0].scheduler).__name__
            raise ArgumentError(
                f"configure_optimizers must not return a scheduler, because this callback sets the rate, got {name}: "
                "return the optimizer only, or pass drive_lr=False"
            )

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin, or continue at the step of the checkpoint; Lightning has already restored the optimizers."""
        if trainer.fast_dev_run:
            log.warning("fast_dev_run: no snapshots are stored, and the learning rate is not changed")
        else:
            self._begin(trainer, module)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Warn if the stored tensors changed after the last snapshot."""
        self._warn_if_changed()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Optimizer) -> None:
        """Note an attempted step."""
        if self._steps is not None:
            self._steps.attempt(optimizer)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the step of this batch, if it took one, and evaluate the ensemble after a new snapshot."""
        if self._steps is None:
            return
        self._batches += 1
        self._steps.settle()
        if self._stored:
            self._versions = [tensor._version for tensor in self.ensembler.kept().values()]
            if self._validation is not None:
                self._validation.log(trainer, module, self)
        self._stored = False
        total_steps = self.ensembler.schedule.total_steps
        if self.ensembler.completed == total_steps != trainer.estimated_stepping_batches:
            trainer.should_stop = True  # otherwise the Trainer would continue
            self._least = trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # they would prevent it

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """After the first epoch of manual optimization, compare the number of steps with the estimate."""
        self._warn_if_changed()
        estimated, self._estimated = self._estimated, False
        steps = self.ensembler.completed - self._begun if self._steps is not None else self._batches
        if estimated and not module.automatic_optimization and steps != self._batches:
            raise ArgumentError(
                f"total_steps must be given, because {self._batches} batches took {steps} steps of the optimizer, "
                f"and the estimate is one step per batch ({self.ensembler.schedule.total_steps}): pass total_steps="
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of the ensembler, for the Trainer's checkpoint."""
        if self._steps is not None:
            self._steps.settle()
        return self._loaded if self._ensembler is None else self._ensembler.state_dict()

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Warn if the training ended early. If the checkpoint is that of a finished run, there was no training."""
        if self._loaded and self._steps is None and not trainer.fast_dev_run:
            self._begin(trainer, module)
        self._end(trainer)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Release the store, and warn that the training ended early."""
        self._end(trainer)

    def _begin(self, trainer: Any, module: Any) -> None:
        reject_fsdp1(trainer.model)  # Lightning may wrap the module from outside
        if not 0 <= self._index < len(trainer.optimizers):
            raise ArgumentError(
                f"optimizer must be an index from 0 to {len(trainer.optimizers) - 1} of the optimizers that "
                f"configure_optimizers returns, got {self._index}"
            )
        if trainer.global_step and not self._loaded:
            raise MismatchError(
                "fit() must start at step 0 or resume from a checkpoint that has the state of this callback, got step "
                f"{trainer.global_step} without it: use a new Trainer, and module.load_state_dict() for the weights"
            )
        self._estimated = self._schedule is None and self._total_steps is None
        ensembler = begin(
            module,
            trainer.optimizers[self._index],
            self._schedule or self._cosine(trainer, module),
            state=self._loaded,
            remedy="choose another store, or pass ckpt_path= to trainer.fit()",
            store=self._store,
            keep=self._kept(module),
            **self._options,
        )
        self._ensembler, self._begun, self._batches = ensembler, ensembler.completed, 0
        self._stored, self._versions = False, []
        self._steps = OptimizerSteps(ensembler.optimizer, self._step)

    def _cosine(self, trainer: Any, module: Any) -> CyclicCosine:
        total_steps = expected_steps(trainer, module) if self._total_steps is None else self._total_steps
        return CyclicCosine(total_steps, self._cycles or 0)

    def _step(self) -> None:
        self._stored |= self.ensembler.step() is not None

    def _warn_if_changed(self) -> None:
        """Warn if the tensors of the last snapshot changed before the next batch, as an average in the module may."""
        if self._versions and self._versions != [tensor._version for tensor in self.ensembler.kept().values()]:
            log.warning(
                "the stored tensors changed after the snapshot of step %d, at the end of the same batch: update an "
                "average in optimizer_step or in a callback, not in the module's on_train_batch_end",
                self.ensembler.completed,
            )
        self._versions = []

    def _end(self, trainer: Any) -> None:
        if self._steps is None:
            return
        self._steps.close()
        self._steps = None
        if self._least is not None:
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = self._least
            self._least = None
        done, schedule = self.ensembler.completed, self.ensembler.schedule
        missing = missing_cycles(schedule, done)
        if missing and trainer.is_global_zero:
            log.warning(
                "the training ended after step %d of %d, without a snapshot of %s: continue it with "
                "trainer.fit(ckpt_path=...), or pass the number of optimizer steps as total_steps",
                done,
                schedule.total_steps,
                missing,
            )
        self.ensembler.close()

    def _kept(self, module: nn.Module) -> Keep | None:
        keep = self._keep
        if hasattr(keep, "_average_model"):  # Lightning's WeightAveraging has no public name for it
            keep = keep._average_model
            if keep is None:
                raise ArgumentError("keep must be a callback of the same Trainer, got another one: add it to callbacks")
        if keep is None or isinstance(keep, nn.Module):
            return keep
        if not callable(keep):
            raise ArgumentError(f"keep must be a module, a WeightAveraging callback or a function, got {keep!r}")
        found = keep(module)
        return found if isinstance(found, nn.Module) else lambda: keep(module)


@contextmanager
def _uncompiled(module: Any) -> Iterator[None]:
    """Remove the methods that `torch.compile` added, and restore them later: a copy would call those of this module."""
    if getattr(module, "_compiler_ctx", None) is None:
        yield
        return
    # Lightning's to_uncompiled() cannot be undone
    compiled = {name: vars(module).pop(name) for name in _COMPILED if name in vars(module)}
    module._compiler_ctx = None
    try:
        yield
    finally:
        vars(module).update(compiled)
